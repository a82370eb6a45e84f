"""What a search returns, and the few rules that greedy and beam search share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlab.data.tokenizer import BOS, EOS, PAD, UNK
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.transformer import Encoded, Gates, Transformer

MAX_RATIO = 2.0
MAX_EXTRA = 20
# The tokenizers spell unknown letters in bytes, so a translation never needs UNK.
NEVER_EMITTED = (PAD, UNK, BOS)


@dataclass(frozen=True)
class Hypothesis:
    """One translation, in subword ids.

    Attributes:
        ids: the pieces, without BOS and EOS.
        score: ``sum of log p / length ** length_penalty``, in nats, where ``length`` counts the
            pieces and EOS; higher is better.
        finished: False when the length limit cut the hypothesis before its EOS.
    """

    ids: list[int]
    score: float
    finished: bool


def token_limits(
    model: "Transformer", sources: Sequence[Sequence[int]], max_ratio: float, max_extra: float
) -> list[int]:
    """The most tokens, EOS counted, that each source may be given as its translation.

    ``max_ratio * source pieces + max_extra``, and no more than the model has positions for. It
    looks at one sentence at a time, so that a translation cannot depend on its neighbours.

    Raises:
        HeadlabError: ``max_ratio`` or ``max_extra`` is negative or not finite.
    """
    for name, value in (("max_ratio", max_ratio), ("max_extra", max_extra)):
        if not math.isfinite(value) or value < 0:
            raise HeadlabError(f"decoding.{name}={value} must be a number of at least 0")
    most = math.inf if model.max_length is None else model.max_length
    return [int(max(1, min(max_ratio * len(ids) + max_extra, most))) for ids in sources]


def pad_sources(sources: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Pieces to encoder input: EOS after each row, PAD to the right, (batch, longest + 1)."""
    width = max(len(ids) for ids in sources) + 1
    rows = [[*ids, EOS] + [PAD] * (width - 1 - len(ids)) for ids in sources]
    return torch.tensor(rows, dtype=torch.long, device=device)


@torch.inference_mode()
def encode_sources(
    model: "Transformer", sources: Sequence[Sequence[int]], gates: "Gates | None"
) -> "Encoded":
    """The encoder's output for a batch of sources, given as pieces without EOS."""
    return model.encode(pad_sources(sources, next(model.parameters()).device), gates)


def next_token_scores(model: "Transformer", hidden: Tensor) -> Tensor:
    """Logits of the next token, (rows, vocabulary), with -inf for what is never emitted.

    Args:
        hidden: the decoder's output for one position, (rows, 1, d_model).
    """
    logits = model.logits(hidden)[:, -1].to(score_type(hidden))
    for token in NEVER_EMITTED:
        logits[:, token] = -math.inf
    return logits


def log_normaliser(scores: Tensor, best: Tensor) -> Tensor:
    """``log sum exp`` of each row, (rows,), given the largest entry of each, (rows,).

    Overwrites ``scores``, (rows, vocabulary): at every step that saves two passes over it and the
    memory of one more.
    """
    return best + scores.sub_(best.unsqueeze(1)).exp_().sum(dim=-1).log()


def score_type(computed: Tensor) -> torch.dtype:
    """The type that scores are summed in: at least single precision, whatever the model's is."""
    return torch.promote_types(computed.dtype, torch.float32)


def length_norms(longest: int, length_penalty: float, like: Tensor) -> Tensor:
    """``length ** length_penalty`` for lengths 0 to ``longest``, with 1 in the place of 0.

    Scores are divided by it. Log-probabilities are negative, so a positive penalty favours long
    hypotheses, a negative one short ones, and 0 leaves the raw sum (GNMT, Wu et al. 2016, eq. 14,
    in its plain form).

    Raises:
        HeadlabError: ``length_penalty`` is not a number between -10 and 10.
    """
    if not -10 <= length_penalty <= 10:  # also catches NaN
        raise HeadlabError(
            f"decoding.length_penalty={length_penalty} must lie between -10 and 10; "
            "0 ranks by the plain sum, 1 by the mean per token"
        )
    norms = [1.0] + [float(n) ** length_penalty for n in range(1, longest + 1)]
    return torch.tensor(norms, dtype=like.dtype, device=like.device)
