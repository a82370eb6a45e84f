"""Beam search with length normalisation."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.transformer import Encoded, Gates, Transformer


@torch.inference_mode()
def beam_search(
    model: "Transformer",
    sources: Sequence[Sequence[int]],
    *,
    beam: int = 4,
    n_best: int = 1,
    length_penalty: float = 1.0,
    max_ratio: float = MAX_RATIO,
    max_extra: float = MAX_EXTRA,
    gates: "Gates | None" = None,
    encoded: "Encoded | None" = None,
) -> list[list[Hypothesis]]:
    """Translate one batch, keeping ``beam`` hypotheses of each sentence at every step.

    A hypothesis that ends gives up its place: the beam of that sentence narrows by one (Sutskever
    et al. 2014, section 3.2), so that one beam is exactly greedy search. A sentence is done when
    its beam is empty, or when no live hypothesis can still beat its ``n_best``-th finished one.
    That bound is safe: log-probabilities only fall, so the best that a live hypothesis with sum s
    can reach is ``s / limit ** length_penalty`` for a positive penalty, and s over its shortest
    completion for a negative one. Hence asking for more hypotheses never changes the first.

    A finished hypothesis ranks before every one that the length limit cut. Equal scores go to the
    earlier hypothesis, then to the smaller id.

    Args:
        model: in evaluation mode.
        sources: source pieces without EOS, one list a sentence; at least one sentence.
        beam: hypotheses kept at each step.
        n_best: hypotheses returned for each sentence, at most ``beam``.
        length_penalty: see ``Hypothesis`` and ``length_norms``.
        max_ratio, max_extra: see ``token_limits``.
        gates: a factor for each head's output, see ``Transformer``.
        encoded: the encoder's output for ``sources``, where it is known already.

    Returns:
        For each source, in order, between 1 and ``n_best`` hypotheses, best first.

    Raises:
        HeadlabError: ``beam`` or ``n_best`` is below 1, or ``n_best`` above ``beam``.
    """
    if beam < 1:
        raise HeadlabError(f"decoding.beam={beam} must be at least 1; 1 is greedy search")
    if not 1 <= n_best <= beam:
        raise HeadlabError(f"n_best={n_best} must lie between 1 and the beam, {beam}")
    device = next(model.parameters()).device
    limits = token_limits(model, sources, max_ratio, max_extra)
    limit = torch.tensor(limits, device=device)
    batch = len(sources)

    if encoded is None:
        encoded = encode_sources(model, sources, gates)
    # Buffers that grow with the hypotheses: every reordering copies them whole.
    cache = model.new_cache(batch, 0)
    # The model sees the live hypotheses only, one row each; to begin with, one for each sentence.
    sentence = torch.arange(batch, device=device)
    slot = torch.zeros_like(sentence)
    history = torch.full((batch, 1), BOS, dtype=torch.long, device=device)
    sums = torch.zeros(batch, dtype=score_type(encoded.memory), device=device)  # of log p
    places = torch.full((batch, 1), beam, device=device)
    bar = torch.full((batch, n_best), -math.inf, dtype=sums.dtype, device=device)
    norms = length_norms(max(limits), length_penalty, sums)
    ranking = _Ranking(batch, n_best)

    for step in range(1, max(limits) + 1):
        hidden = model.decode(history[:, -1:], encoded, cache, gates).hidden
        scores = next_token_scores(model, hidden)
        log_p, token = top_tokens(scores, min(beam, scores.size(1)))
        width = log_p.size(1)
        log_p = log_p - log_normaliser(scores, log_p[:, 0]).unsqueeze(1)

        # All continuations of a sentence side by side, (batch, beam * width): the best stay.
        spread = scores.new_full((batch, beam, width), -math.inf)
        spread[sentence, slot] = sums.unsqueeze(1) + log_p
        row_of = torch.zeros(batch, beam, dtype=torch.long, device=device)
        row_of[sentence, slot] = torch.arange(len(sentence), device=device)
        ranked, order = spread.flatten(1).sort(dim=-1, descending=True, stable=True)
        ranked, order = ranked[:, :beam], order[:, :beam]
        parent = row_of.gather(1, order // width)
        chosen = token[parent, order % width]  # (batch, beam)
        kept = (torch.arange(ranked.size(1), device=device) < places) & (ranked > -math.inf)

        ended = kept & (chosen == EOS)
        cut = kept & ~ended & (limit == step).unsqueeze(1)
        live = kept & ~ended & ~cut
        places -= ended.sum(dim=1, keepdim=True)
        for which, has_end in ((ended, True), (cut, False)):
            if which.any():
                found = which.nonzero()[:, 0]
                pieces = history[parent[which]][:, 1:]
                if not has_end:
                    pieces = torch.cat([pieces, chosen[which].unsqueeze(1)], dim=1)
                ranking.add(found, pieces, ranked[which] / norms[step], has_end)

        # The n_best finished scores of each sentence so far, and what a live one may still reach.
        finished = (ranked / norms[step]).masked_fill(~ended, -math.inf)
        bar = torch.cat([bar, finished], dim=1).topk(n_best, dim=1).values
        final = limit if length_penalty > 0 else (limit * 0 + step + 1).minimum(limit)
        reach = (ranked / norms[final].unsqueeze(1)).masked_fill(~live, -math.inf)
        live &= (reach.amax(dim=1) > bar[:, -1]).unsqueeze(1)

        sentence, slot = live.nonzero(as_tuple=True)
        if not len(sentence):
            break
        parent, sums = parent[live], ranked[live]
        if not torch.equal(parent, torch.arange(len(history), device=device)):
            cache.reorder(parent)
            encoded = encoded.select(parent)
        history = torch.cat([history[parent], chosen[live].unsqueeze(1)], dim=1)
    return ranking.best()


def top_tokens(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest entries of each row, best first, equal ones by the smaller index.

    ``Tensor.topk`` leaves the choice among equal entries open; here they never depend on it.

    Args:
        scores: (rows, vocabulary).

    Returns:
        Values and indices, each (rows, k).
    """
    if k == 1:
        return scores.max(dim=-1, keepdim=True)
    spare = min(k + 1, scores.size(1))
    values, indices = scores.topk(spare, dim=-1)
    # The first one left out equals the last one kept: which of them was kept is chance.
    at_border = (values[:, -1] == values[:, k - 1]) & (spare > k)
    tied = at_border.nonzero().squeeze(1)
    indices, by_index = indices[:, :k].sort(dim=-1)
    values, by_value = values.gather(1, by_index).sort(dim=-1, descending=True, stable=True)
    indices = indices.gather(1, by_value)
    if len(tied):
        exact, positions = scores[tied].sort(dim=-1, descending=True, stable=True)
        values[tied], indices[tied] = exact[:, :k], positions[:, :k]
    return values, indices


class _Ranking:
    """Hypotheses as they come, a list for each sentence; sorted at the end."""

    def __init__(self, batch: int, n_best: int) -> None:
        self.n_best = n_best
        self.found: list[list[Hypothesis]] = [[] for _ in range(batch)]

    def add(self, sentences: Tensor, pieces: Tensor, scores: Tensor, finished: bool) -> None:
        """``pieces`` (found, length), with the sentence and the score of each, (found,)."""
        rows = zip(sentences.tolist(), pieces.tolist(), scores.tolist(), strict=True)
        for sentence, ids, score in rows:
            self.found[sentence].append(Hypothesis(ids, score, finished))

    def best(self) -> list[list[Hypothesis]]:
        """The best few of each sentence: finished ones first, then by score, then as they came."""
        ranked = [
            sorted(found, key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
            for found in self.found
        ]
        # A model of NaNs has no likeliest token at all; that is still a result, and a cut one.
        return [found[: self.n_best] or [Hypothesis([], -math.inf, False)] for found in ranked]
