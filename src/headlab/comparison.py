"""What a model costs to run, measured: cache sizes, the speeds of training and of decoding."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from headlab.attention import READ_BY
from headlab.data.batches import Batch
from headlab.data.tokenizer import BOS, PAD
from headlab.decoding import Translator
from headlab.head_names import SITES
from headlab.training.loss import linear_cross_entropy
from headlab.training.routing import balance_losses
from headlab.transformer import Transformer

LONG = 16  # the longer one of two lengths that cache sizes are measured at


@dataclass(frozen=True)
class CacheSize:
    """Bytes that decoding one sentence keeps, all layers together, from the tensors themselves.

    Attributes:
        per_target_token: what self-attention adds with every token that is emitted.
        constant: what self-attention keeps whatever the length; without what a recurrent state
            keeps of its last step, so that tokens can be taken back.
        per_source_token: what cross-attention keeps for every source token.
    """

    per_target_token: float
    constant: float
    per_source_token: float


@torch.inference_mode()
def cache_size(model: Transformer) -> CacheSize:
    """Fill the caches at two lengths and look at the difference."""
    parameter = next(model.parameters())
    most = min(LONG, model.max_length or LONG)
    lengths, sizes = (most // 2, most), []
    for length in lengths:
        ids = torch.full((1, length), BOS, device=parameter.device)
        cache = model.new_cache(1, 0)
        model.decode(ids, model.encode(ids), cache)
        sizes.append(
            [
                sum(one.numbers() for one in caches) * parameter.element_size()
                for caches in (cache.self_attention, cache.cross_attention)
            ]
        )
    (short, cross), (long, longer_cross) = sizes
    added = lengths[1] - lengths[0]
    growth = (long - short) / added
    return CacheSize(growth, short - growth * lengths[0], (longer_cross - cross) / added)


def describe_kind(model: Transformer) -> str:
    """The kinds of attention and the position scheme in a few words, such as "gqa 2, rope"."""
    options, position = model.hparams["attention"], model.hparams["position"]
    kind, fewer = options.get("kind") or "mha", options.get("kv_heads")
    kinds = {"": kind} | {f"{site} ": options[site] for site in SITES if options.get(site)}
    named = [
        f"{place}{one} {fewer}" if fewer and one in READ_BY["kv_heads"] else f"{place}{one}"
        for place, one in kinds.items()
    ]
    return ", ".join([*named, position["kind"]])


def decoding_speeds(
    translators: Sequence[Translator], sentences: Sequence[str], turns: int
) -> list[float]:
    """Target tokens a second of each translator, EOS counted; the best of a few turns.

    The translators take turns, so that whatever else the machine does meets all of them alike.
    """
    best = [0.0] * len(translators)
    for _ in range(turns):
        for i, translator in enumerate(translators):
            start = time.perf_counter()
            found = translator.hypotheses(sentences)
            seconds = time.perf_counter() - start
            tokens = sum(len(one.ids) + one.finished for one in found)
            best[i] = max(best[i], tokens / seconds)
    return best


def training_speeds(
    models: Sequence[Transformer], batches: Sequence[Batch], turns: int
) -> list[float]:
    """Target tokens a second of whole training steps; the best of a few turns, which alternate.

    Args:
        models: each is trained, with AdamW and label smoothing, and is another one afterwards.
        batches: of one turn.
        turns: how many; a batch for each model before them warms up.
    """
    optimizers = [torch.optim.AdamW(model.parameters(), fused=True) for model in models]
    tokens = sum(batch.target_tokens for batch in batches)
    best = [0.0] * len(models)
    for turn in range(turns + 1):
        for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            start = time.perf_counter()
            for batch in batches[: 1 if turn == 0 else None]:
                _step(model.train(), optimizer, batch)
            if turn:
                best[i] = max(best[i], tokens / (time.perf_counter() - start))
    return best


def _step(model: Transformer, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    hidden = model.decode(batch.target_input, model.encode(batch.source)).hidden
    real = batch.target_output != PAD
    loss, _ = linear_cross_entropy(
        hidden[real], model.output.weight, batch.target_output[real], 0.1
    )
    (loss / batch.target_tokens + 0.01 * sum(balance_losses(model, batch))).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
