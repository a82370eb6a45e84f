"""Greedy and beam search, and ``Translator``: the one door from a checkpoint to text."""

from headlab.decoding.beam import beam_search
from headlab.decoding.greedy import greedy_search
from headlab.decoding.hypothesis import Hypothesis
from headlab.decoding.search import search, search_n_best
from headlab.decoding.translator import Translator, one_line

__all__ = [
    "Hypothesis",
    "Translator",
    "beam_search",
    "greedy_search",
    "one_line",
    "search",
    "search_n_best",
]
