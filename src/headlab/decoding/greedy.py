"""Greedy search: take the likeliest token at every step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from headlab.data.tokenizer import BOS, EOS
from headlab.decoding.hypothesis import (
    MAX_EXTRA,
    MAX_RATIO,
    Hypothesis,
    encode_sources,
    length_norms,
    log_normaliser,
    next_token_scores,
    score_type,
    token_limits,
)

if TYPE_CHECKING:
    from headlab.transformer import Encoded, Gates, Transformer

# Finished rows cost a whole step each, copying the caches of the rest costs part of a step:
# so the batch is repacked only when this share of its rows has finished.
REPACK_SHARE = 0.25


@torch.inference_mode()
def greedy_search(
    model: "Transformer",
    sources: Sequence[Sequence[int]],
    *,
    length_penalty: float = 1.0,
    max_ratio: float = MAX_RATIO,
    max_extra: float = MAX_EXTRA,
    gates: "Gates | None" = None,
    encoded: "Encoded | None" = None,
) -> list[Hypothesis]:
    """Translate one batch, each row on its own, with a key/value cache.

    The same result as beam search with one beam. Equal logits go to the smaller id.

    Args:
        model: in evaluation mode.
        sources: source pieces without EOS, one list a sentence; at least one sentence.
        length_penalty: only enters the returned score, see ``Hypothesis``.
        max_ratio, max_extra: see ``token_limits``.
        gates: a factor for each head's output, see ``Transformer``.
        encoded: the encoder's output for ``sources``, where it is known already.

    Returns:
        One hypothesis a source, in order.
    """
    device = next(model.parameters()).device
    limits = token_limits(model, sources, max_ratio, max_extra)
    limit = torch.tensor(limits, device=device)
    longest, batch = max(limits), len(sources)

    if encoded is None:
        encoded = encode_sources(model, sources, gates)
    cache = model.new_cache(batch, longest)
    emitted = torch.full((batch, longest + 1), EOS, dtype=torch.long, device=device)
    emitted[:, 0] = BOS
    lengths = limit.clone()  # tokens emitted, EOS counted
    totals = torch.zeros(batch, dtype=score_type(encoded.memory), device=device)

    rows = torch.arange(batch, device=device)  # which sentence each row of the batch is
    finished = torch.zeros(batch, dtype=torch.bool, device=device)
    for step in range(1, longest + 1):
        last = emitted[rows, step - 1].unsqueeze(1)
        scores = next_token_scores(model, model.decode(last, encoded, cache, gates).hidden)
        best, token = scores.max(dim=-1)
        # Finished rows that are still in the batch go on emitting EOS, for free.
        log_p = best - log_normaliser(scores, best)
        totals[rows] += log_p.masked_fill(finished, 0.0)
        emitted[rows, step] = token.masked_fill(finished, EOS)
        ended = (token == EOS) & ~finished
        lengths[rows] = lengths[rows].masked_fill(ended, step)
        finished = finished | ended | (limit[rows] == step)

        done = int(finished.sum())
        if done == len(finished):
            break
        if done >= REPACK_SHARE * len(finished):
            keep = (~finished).nonzero().squeeze(1)
            rows, finished = rows[keep], finished[keep]
            cache.reorder(keep)
            encoded = encoded.select(keep)

    totals = totals / length_norms(longest, length_penalty, totals)[lengths]
    texts, sizes, final = emitted.tolist(), lengths.tolist(), totals.tolist()
    hypotheses = []
    for text, size, score in zip(texts, sizes, final, strict=True):
        ids = text[1 : size + 1]
        has_end = ids[-1] == EOS
        hypotheses.append(Hypothesis(ids[:-1] if has_end else ids, score, has_end))
    return hypotheses
