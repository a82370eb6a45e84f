"""From weights between subword pieces to weights between words, by the characters they hold."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headlab.data.tokenizer import Tokenizer
from headlab.errors import HeadlabError

Span = tuple[int, int]  # first character of a text and the one after the last

_UNSPACED = re.compile(r"\S")
_SPACED = re.compile(r"\w+|[^\w\s]")
_WHITE = re.compile(r"\S+")


class Words(NamedTuple):
    """The words of many sentences of one language."""

    owners: list[list[int | None]]  # the word of each piece
    counts: list[int]  # how many words each sentence has

    def membership(self, rows: Sequence[int], length: int, shift: int, like: Tensor) -> Tensor:
        """``membership`` of the given sentences, on the device of ``like``."""
        owners, counts = [self.owners[i] for i in rows], [self.counts[i] for i in rows]
        return membership(owners, counts, length, shift).to(like.device)


def words_of_pieces(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    ids: Sequence[Sequence[int]],
    words: Sequence[Sequence[Span]],
) -> Words:
    """Which words the pieces of many sentences belong to.

    Args:
        tokenizer: that made the pieces.
        texts: sentences, as they were before the tokenizer.
        ids: their pieces.
        words: where their words stand.
    """
    owners = [
        word_of_pieces(piece_spans(tokenizer, text, row), some, text)
        for text, row, some in zip(texts, ids, words, strict=True)
    ]
    return Words(owners, [len(some) for some in words])


def white_words(text: str) -> list[Span]:
    """The words of a text by white space, as Pharaoh alignments count them."""
    return [match.span() for match in _WHITE.finditer(text)]


def plain_words(text: str, spaced: bool = True) -> list[Span]:
    """Runs of letters and digits, and every other visible character by itself.

    Args:
        text: one sentence.
        spaced: False for a language written without spaces: every character is a word.
    """
    return [match.span() for match in (_SPACED if spaced else _UNSPACED).finditer(text)]


def find_words(text: str, forms: Sequence[str], where: str) -> list[Span]:
    """Where the given words stand in a text, with nothing but white space between them.

    Args:
        text: one sentence.
        forms: its words in order; capitals do not matter.
        where: names the sentence and the source of the words, for the error.

    Raises:
        HeadlabError: the text does not consist of these words.
    """
    spans, at = [], 0
    for form in forms:
        while at < len(text) and text[at].isspace():
            at += 1
        end = at + len(form)
        if not form or text[at:end].lower() != form.lower():
            rest = text[at : at + 20]
            raise HeadlabError(
                f"{where}: the word {form!r} stands where the text reads {rest!r}; "
                "parse the same sentences, in the same order"
            )
        spans.append((at, end))
        at = end
    if rest := text[at:].strip():
        raise HeadlabError(f"{where}: its words end before {rest[:20]!r}")
    return spans


def piece_spans(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[Span]:
    """The characters of ``text`` that each piece holds, at least a part of.

    Args:
        tokenizer: that made the pieces; it may lower-case.
        text: one sentence, as it was before the tokenizer.
        ids: ``tokenizer.encode(text)``, or its beginning.

    Returns:
        A span a piece. The mark of a space is that space; the one which every sentence begins
        with has no character: its span is empty, at 0. Pieces of one byte share a character.
    """
    # Where the bytes of each character end, of what the tokenizer encodes: a space and the text.
    # Lower-casing may lengthen a character (Turkish capital I with a dot), so each by itself.
    ends, total = [1], 1
    for character in text:
        total += len((character.lower() if tokenizer.lowercase else character).encode())
        ends.append(total)
    spans, start = [], 0
    for surface in tokenizer.surfaces(ids):
        end = start + len(surface)
        first, last = bisect_right(ends, start), bisect_right(ends, end - 1)
        # One less, for the space that the tokenizer adds in front.
        spans.append((max(first - 1, 0), last) if end > start else (first - 1, first - 1))
        start = end
    return spans


def word_of_pieces(pieces: Sequence[Span], words: Sequence[Span], text: str) -> list[int | None]:
    """The word that each piece belongs to: the one it holds most characters of.

    Of words with equally many it is the first. A piece of nothing but white space (the mark of a
    space by itself) belongs to the word that begins behind it, if one does.

    Returns:
        An index into ``words`` a piece; None for a piece of no word.
    """
    owners: list[int | None] = []
    for start, end in pieces:
        while start < end and text[start].isspace():
            start += 1
        if start == end:
            owner = next((w for w, (first, _) in enumerate(words) if first == end), None)
        else:
            shared = [min(end, last) - max(start, first) for first, last in words]
            most = max(shared, default=0)
            owner = shared.index(most) if most > 0 else None
        owners.append(owner)
    return owners


def membership(
    owners: Sequence[Sequence[int | None]], words: Sequence[int], length: int, shift: int = 0
) -> Tensor:
    """Which positions of a padded row of pieces make up each word, (batch, words, length).

    Args:
        owners: for each sentence the word of each piece, from ``word_of_pieces``.
        words: how many words each sentence has.
        length: of the rows.
        shift: where the first piece stands: 0 for the encoder, 1 behind the ``<s>`` of what the
            decoder reads, 0 for the position that predicts a piece.

    Returns:
        1.0 where a piece belongs to a word, else 0.0; a word may have no piece.
    """
    table = np.zeros((len(owners), max(words, default=0), length), dtype=np.float32)
    for row, found in enumerate(owners):
        for place, owner in enumerate(found[: length - shift], start=shift):
            if owner is not None:
                table[row, owner, place] = 1.0
    return torch.from_numpy(table)


def merge(weights: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Weights between words: TO a word summed over its pieces, FROM a word averaged over them.

    Clark et al. 2019, section 4.1. What goes to ``<s>``, the end of sentence and pieces of no word
    is left out, without renormalisation.

    Args:
        weights: (batch, heads, queries, keys), between pieces.
        queries: ``membership`` of the queries, (batch, query words, queries).
        keys: ``membership`` of the keys, (batch, key words, keys).

    Returns:
        (batch, heads, query words, key words); zeros from and to a word without pieces.
    """
    averaging = queries / queries.sum(dim=-1, keepdim=True).clamp(min=1.0)
    return averaging.unsqueeze(1) @ weights @ keys.transpose(1, 2).unsqueeze(1)
