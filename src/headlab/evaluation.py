"""How good translations are: BLEU and chrF through sacreBLEU, and the loss on the references."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from headlab.data.tokenizer import BOS, EOS, PAD
from headlab.decoding.hypothesis import pad_sources
from headlab.decoding.search import BATCH_TOKENS, plan_batches
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.transformer import Transformer

# Languages written without spaces, whose words sacreBLEU's standard tokenizer cannot find.
CHARACTER_LANGUAGES = ("ja", "th", "lo", "km", "my", "bo")


@dataclass(frozen=True)
class Scores:
    """Corpus scores, each with the signature that says how it was computed.

    Attributes:
        bleu: BLEU, 0 to 100 (Papineni et al. 2002, as sacreBLEU computes it, Post 2018).
        chrf: chrF2, 0 to 100 (Popović 2015).
        brevity_penalty: BLEU's, 1 where the hypotheses are at least as long as the references.
        length_ratio: tokens in the hypotheses for each one in the references.
        sentences: number of pairs scored.
    """

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    brevity_penalty: float
    length_ratio: float
    sentences: int


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    lowercase: bool = False,
    tokenize: str = "13a",
) -> Scores:
    """BLEU and chrF of raw, detokenised text against one reference each.

    Neither side is changed here: the signature names all that sacreBLEU does to them. Blank
    hypotheses and references count like any other.

    Args:
        hypotheses: translations, in the order of ``references``.
        references: one reference a hypothesis.
        lowercase: whether both sides are lower-cased first.
        tokenize: sacreBLEU's tokenizer for BLEU, see ``bleu_tokenizer``.

    Raises:
        HeadlabError: there is nothing to score, the numbers of sentences differ, or an entry is
            not a text (such as a list of references: several references are not supported).
    """
    from sacrebleu.metrics import BLEU, CHRF

    for name, side in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(side, str) or not all(isinstance(text, str) for text in side):
            raise HeadlabError(f"scores: {name} must be a flat list of texts, one a sentence")
    if len(hypotheses) != len(references):
        raise HeadlabError(
            f"scores: {len(hypotheses)} hypotheses and {len(references)} references; "
            "there must be one reference a hypothesis"
        )
    if not hypotheses:
        raise HeadlabError("scores: there is no sentence to score; give at least one pair")
    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise HeadlabError(
            f"evaluation.tokenize={tokenize} is unknown to sacreBLEU; it has {known}"
        )

    # ``force`` only silences a warning about texts that end in " .", which is no business of ours.
    try:
        bleu = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    except (ImportError, RuntimeError) as error:
        raise HeadlabError(
            f"evaluation.tokenize={tokenize} needs a package that is not installed; "
            "choose char, or install sacreBLEU's extra for that language"
        ) from error
    chrf = CHRF(lowercase=lowercase)
    # One *stream* of references, as long as the hypotheses; not a list for each sentence.
    stream = [list(references)]
    bleu_score = bleu.corpus_score(list(hypotheses), stream)
    chrf_score = chrf.corpus_score(list(hypotheses), stream)
    length = bleu_score.sys_len / bleu_score.ref_len if bleu_score.ref_len else 0.0
    return Scores(
        bleu=float(bleu_score.score),
        chrf=float(chrf_score.score),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        brevity_penalty=float(bleu_score.bp),
        length_ratio=length,
        sentences=len(hypotheses),
    )


def bleu_tokenizer(language: str) -> str:
    """sacreBLEU's tokenizer for a language code: "zh", "char" without word spaces, else "13a"."""
    code = language.lower().replace("_", "-").split("-")[0]
    if code in ("zh", "yue"):
        return "zh"
    return "char" if code in CHARACTER_LANGUAGES else "13a"


@dataclass(frozen=True)
class ReferenceLoss:
    """How surprised the model is by the references.

    Attributes:
        nll: mean negative log-likelihood of a target token (EOS counted), in nats.
        tokens: number of target tokens.
        left_out: pairs left out because a side is longer than the model has positions for.
    """

    nll: float
    tokens: int
    left_out: int

    @property
    def perplexity(self) -> float:
        """``exp(nll)``."""
        return math.exp(self.nll) if self.nll < 700 else math.inf


@torch.inference_mode()
def reference_loss(
    model: "Transformer",
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    batch_tokens: int = BATCH_TOKENS,
) -> ReferenceLoss | None:
    """Mean loss per target token under teacher forcing, without label smoothing.

    Args:
        model: in evaluation mode.
        pairs: source and target pieces, without BOS and EOS.
        batch_tokens: tokens of the longer side in a batch, padding counted.

    Returns:
        None when no pair is left to measure.
    """
    limit = math.inf if model.max_length is None else model.max_length
    kept = [pair for pair in pairs if max(len(side) for side in pair) + 1 <= limit]
    if not kept:
        return None
    device = next(model.parameters()).device
    lengths = [max(len(side) for side in pair) + 1 for pair in kept]
    total, tokens = 0.0, 0
    for batch in plan_batches(lengths, batch_tokens):
        output = pad_sources([kept[i][1] for i in batch], device)
        source = pad_sources([kept[i][0] for i in batch], device)
        logits = model(source, _shift_right(output))
        losses = F.cross_entropy(
            logits.flatten(0, 1).float(), output.flatten(), ignore_index=PAD, reduction="none"
        )
        total += float(losses.double().sum())
        tokens += int((output != PAD).sum())
    return ReferenceLoss(total / tokens, tokens, len(pairs) - len(kept))


def _shift_right(output: Tensor) -> Tensor:
    """Decoder targets (pieces, EOS, padding) to decoder inputs (BOS, pieces, padding)."""
    start = torch.full_like(output[:, :1], BOS)
    return torch.cat([start, output[:, :-1].masked_fill(output[:, :-1] == EOS, PAD)], dim=1)
