"""Speculative decoding: a small model drafts, the large one checks several tokens at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from headlab.data.tokenizer import BOS, EOS
from headlab.decoding.hypothesis import (
    MAX_EXTRA,
    MAX_RATIO,
    Hypothesis,
    encode_sources,
    log_normaliser,
    next_token_scores,
    token_limits,
)
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.transformer import DecoderCache, Encoded, Transformer


@dataclass
class Speculation:
    """What the drafts were worth.

    Attributes:
        tokens: emitted, EOS counted.
        passes: calls of the large model's decoder; greedy search would have made ``tokens``.
        proposed, accepted: drafted tokens, and those that the large model would have emitted too.
    """

    tokens: int = 0
    passes: int = 0
    proposed: int = 0
    accepted: int = 0

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that were right; 0 when none was drafted."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def passes_per_token(self) -> float:
        """1 for greedy search, less where drafts were right."""
        return self.passes / self.tokens if self.tokens else 0.0


@torch.inference_mode()
def speculative_search(
    model: "Transformer",
    draft: "Transformer",
    sources: Sequence[Sequence[int]],
    *,
    draft_tokens: int = 4,
    length_penalty: float = 1.0,
    max_ratio: float = MAX_RATIO,
    max_extra: float = MAX_EXTRA,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Hypothesis], Speculation]:
    """Greedy translations of ``model``, token for token, in fewer of its passes.

    The draft proposes a few tokens, the model reads them all in one pass, and the longest prefix
    that it would have emitted itself is kept, with its own next token behind it (Leviathan et al.
    2023, section 2, in the greedy case). One sentence at a time: it is about waiting less for one.

    Args:
        model: in evaluation mode; decides what is emitted.
        draft: in evaluation mode, with the same tokenizers.
        sources: source pieces without EOS.
        draft_tokens: tokens proposed at a time.
        length_penalty: only enters the returned score, see ``Hypothesis``.
        max_ratio, max_extra: see ``token_limits``.
        progress: called after each sentence with the number done so far.

    Returns:
        One hypothesis a source, and what the drafts were worth over all of them.

    Raises:
        HeadlabError: ``draft_tokens`` is below 1.
    """
    if draft_tokens < 1:
        raise HeadlabError(f"--draft-tokens {draft_tokens} must be at least 1")
    report, found = Speculation(), []
    for done, ids in enumerate(sources, start=1):
        (limit,) = token_limits(model, [ids], max_ratio, max_extra)
        found.append(_translate(model, draft, ids, limit, draft_tokens, length_penalty, report))
        if progress is not None:
            progress(done)
    return found, report


def _translate(
    model: "Transformer",
    draft: "Transformer",
    ids: Sequence[int],
    limit: int,
    draft_tokens: int,
    length_penalty: float,
    report: Speculation,
) -> Hypothesis:
    encoded = encode_sources(model, [ids], None)
    if draft.max_length is not None and len(ids) >= draft.max_length:
        draft = model  # which proposes nothing below
        draft_tokens = 0
    drafted = encode_sources(draft, [ids], None) if draft_tokens else encoded
    # A pass may read tokens that are then thrown away.
    cache = model.new_cache(1, limit + draft_tokens)
    draft_cache = draft.new_cache(1, limit + draft_tokens)
    emitted, total = [BOS], 0.0
    while len(emitted) <= limit and emitted[-1] != EOS:
        most = min(draft_tokens, limit - len(emitted))
        if draft.max_length is not None:
            most = min(most, draft.max_length - len(emitted))
        proposal = _propose(draft, drafted, draft_cache, emitted, most) if most > 0 else []
        device = encoded.memory.device
        read = torch.tensor([[emitted[-1], *proposal]], device=device)
        hidden = model.decode(read, encoded, cache).hidden
        scores = next_token_scores(model, hidden.transpose(0, 1))  # a row for each position
        best, tokens = scores.max(dim=-1)
        log_p = (best - log_normaliser(scores, best)).tolist()
        own = tokens.tolist()
        right = 0
        while right < len(proposal) and proposal[right] == own[right]:
            right += 1
        # All that was accepted, and the model's own next token: the first right + 1 of its own.
        emitted += own[: right + 1]
        total += sum(log_p[: right + 1])
        cache.truncate(len(emitted) - 1)
        report.passes += 1
        report.proposed += len(proposal)
        report.accepted += right
    length = len(emitted) - 1
    report.tokens += length
    finished = emitted[-1] == EOS
    score = total / length**length_penalty
    return Hypothesis(emitted[1:-1] if finished else emitted[1:], score, finished)


def _propose(
    draft: "Transformer",
    encoded: "Encoded",
    cache: "DecoderCache",
    emitted: Sequence[int],
    most: int,
) -> list[int]:
    """Up to ``most`` tokens that the draft would go on with before its EOS.

    ``cache`` is brought up to date with what has been emitted, and sees nothing of the proposal.
    """
    proposal: list[int] = []
    read = list(emitted[cache.length :])
    while len(proposal) < most:
        row = torch.tensor([read], device=encoded.memory.device)
        hidden = draft.decode(row, encoded, cache).hidden
        token = int(next_token_scores(draft, hidden).argmax(dim=-1))
        if token == EOS:
            break  # the model's own token after the last proposed one may be EOS, too
        proposal.append(token)
        if len(proposal) == 1:
            cache = cache.fork()
        read = [token]
    return proposal
