"""How good translations are: BLEU and chrF through sacreBLEU, and the loss on the references."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headlab.data.tokenizer import BOS, EOS, PAD
from headlab.decoding.hypothesis import encode_sources, pad_sources
from headlab.decoding.search import BATCH_TOKENS, Memory, plan_batches
from headlab.errors import HeadlabError
from headlab.workers import READERS

if TYPE_CHECKING:
    from headlab.transformer import Gates, Transformer

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


def scoring_options(config: Mapping[str, Any], lowercase: bool | None = None) -> tuple[bool, str]:
    """Whether to score without case, and sacreBLEU's tokenizer, for a checkpoint's configuration.

    Args:
        config: the configuration.
        lowercase: in place of what it says; None: as it says.
    """
    configured = config.get("evaluation") or {}
    if lowercase is None:
        lowercase = bool(configured.get("lowercase", False))
    language = str((config.get("data") or {}).get("target", ""))
    return lowercase, configured.get("tokenize") or bleu_tokenizer(language)


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


def reference_loss(
    model: "Transformer",
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    batch_tokens: int = BATCH_TOKENS,
) -> ReferenceLoss | None:
    """Mean loss per target token under teacher forcing, without label smoothing.

    Arguments as for ``sentence_losses``; None when no pair is left to measure.
    """
    found = sentence_losses(model, pairs, batch_tokens)
    measured = [one for one in found if one is not None]
    if not measured:
        return None
    tokens = sum(count for _, count in measured)
    nll = sum(loss for loss, _ in measured) / tokens
    return ReferenceLoss(nll, tokens, len(pairs) - len(measured))


@torch.inference_mode()
def sentence_losses(
    model: "Transformer",
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    batch_tokens: int = BATCH_TOKENS,
    gates: "Gates | None" = None,
    memory: "Memory | None" = None,
) -> list[tuple[float, int] | None]:
    """Negative log-likelihood of each reference under teacher forcing, without label smoothing.

    Args:
        model: in evaluation mode.
        pairs: source and target pieces, without BOS and EOS.
        batch_tokens: tokens of the longer side measured at once, padding counted.
        gates: a factor for each head's output, see ``Transformer``.
        memory: the encoder's output by batch, filled where it is empty and read where it is not:
            for calls with the same pairs and encoder, which then runs once.

    Returns:
        For each pair the sum over its target tokens (EOS counted), in nats, and their number; or
        None where a side is longer than the model has positions for.
    """
    limit = math.inf if model.max_length is None else model.max_length
    kept = [i for i, pair in enumerate(pairs) if max(len(side) for side in pair) + 1 <= limit]
    lengths = [max(len(side) for side in pairs[i]) + 1 for i in kept]
    device = next(model.parameters()).device
    found: list[tuple[float, int] | None] = [None] * len(pairs)

    def measure(batch: list[int]) -> tuple[list[float], list[int]]:
        rows = [kept[i] for i in batch]
        output = pad_sources([pairs[i][1] for i in rows], device)
        encoded = None if memory is None else memory.get(tuple(batch))
        if encoded is None:
            encoded = encode_sources(model, [pairs[i][0] for i in rows], gates)
        if memory is not None:
            memory[tuple(batch)] = encoded
        real = output != PAD
        hidden = model.decode(shift_right(output), encoded, gates=gates).hidden[real]
        losses = F.cross_entropy(model.logits(hidden).float(), output[real], reduction="none")
        sentence = real.nonzero()[:, 0]
        sums = torch.zeros(len(rows), dtype=torch.float64, device=device)
        sums.index_add_(0, sentence, losses.double())
        return sums.tolist(), real.sum(dim=1).tolist()

    plan = list(plan_batches(lengths, batch_tokens, parts=READERS.parts(device)))
    for batch, measured in zip(plan, READERS.map(measure, plan), strict=True):
        for i, loss, count in zip(batch, *measured, strict=True):
            found[kept[i]] = loss, count
    return found


def shift_right(output: Tensor) -> Tensor:
    """Decoder targets (pieces, EOS, padding) to decoder inputs (BOS, pieces, padding)."""
    start = torch.full_like(output[:, :1], BOS)
    return torch.cat([start, output[:, :-1].masked_fill(output[:, :-1] == EOS, PAD)], dim=1)
