"""From any number of sources to as many hypotheses: sorting, batching, and the input order back."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headlab.decoding.beam import beam_search
from headlab.decoding.greedy import greedy_search
from headlab.decoding.hypothesis import MAX_EXTRA, MAX_RATIO, Hypothesis, encode_sources
from headlab.errors import HeadlabError
from headlab.workers import READERS

if TYPE_CHECKING:
    from headlab.transformer import Encoded, Gates, Transformer

BATCH_TOKENS = 4096

Progress = Callable[[int], None]
Memory = dict[tuple[int, ...], "Encoded"]  # by the places of a batch's sentences

# The fewest rows of a batch that is made smaller to give every thread one: a step of fewer rows
# takes as long, most of it being the calls themselves.
FEWEST_ROWS = 16


def search(
    model: "Transformer",
    sources: Sequence[Sequence[int]],
    *,
    beam: int = 1,
    length_penalty: float = 1.0,
    max_ratio: float = MAX_RATIO,
    max_extra: float = MAX_EXTRA,
    batch_tokens: int = BATCH_TOKENS,
    batch_rows: int | None = None,
    progress: Progress | None = None,
    gates: "Gates | None" = None,
    memory: Memory | None = None,
) -> list[Hypothesis]:
    """The best translation of each source: greedy with one beam, beam search with more.

    Args:
        model: put into evaluation mode for the time of the call.
        sources: source pieces without EOS; an empty list gives an empty list.
        beam: hypotheses kept at each step.
        length_penalty: exponent of the length that sums of log-probabilities are divided by:
            0 ranks by the plain sum, a larger one favours longer translations.
        max_ratio, max_extra: a translation has at most ``max_ratio * source pieces + max_extra``
            tokens, EOS counted, and no more than the model has positions for.
        batch_tokens: source tokens translated at once, in all threads, padding and beams counted;
            bounds the memory, except that one sentence is always translated. No influence on the
            result.
        batch_rows: sentences in a batch, at most; None: as many as the tokens allow.
        progress: called after each batch with the number of sentences done so far.
        gates: a factor for each head's output, see ``Transformer``.
        memory: the encoder's output by batch, filled where it is empty and read where it is not:
            for calls with the same sources and encoder, which then runs once.

    Returns:
        One hypothesis a source, in the order of ``sources``.

    Raises:
        HeadlabError: a setting is out of its range, or a source longer than the model's positions.
    """
    found = search_n_best(
        model,
        sources,
        beam=beam,
        n_best=1,
        length_penalty=length_penalty,
        max_ratio=max_ratio,
        max_extra=max_extra,
        batch_tokens=batch_tokens,
        batch_rows=batch_rows,
        progress=progress,
        gates=gates,
        memory=memory,
    )
    return [hypotheses[0] for hypotheses in found]


def search_n_best(
    model: "Transformer",
    sources: Sequence[Sequence[int]],
    *,
    beam: int = 4,
    n_best: int = 4,
    length_penalty: float = 1.0,
    max_ratio: float = MAX_RATIO,
    max_extra: float = MAX_EXTRA,
    batch_tokens: int = BATCH_TOKENS,
    batch_rows: int | None = None,
    progress: Progress | None = None,
    gates: "Gates | None" = None,
    memory: Memory | None = None,
) -> list[list[Hypothesis]]:
    """The best few translations of each source, best first; arguments as for ``search``.

    The first one does not depend on ``n_best``. There are fewer than ``n_best`` where the model
    allows no more.
    """
    options: dict[str, Any] = {"length_penalty": length_penalty, "gates": gates}
    options |= {"max_ratio": max_ratio, "max_extra": max_extra}
    results: list[list[Hypothesis]] = [[] for _ in sources]

    def translate(batch: list[int]) -> list[list[Hypothesis]]:
        ids = [sources[i] for i in batch]
        encoded = None if memory is None else memory.get(tuple(batch))
        if encoded is None and memory is not None:
            encoded = memory[tuple(batch)] = encode_sources(model, ids, gates)
        if beam == 1 and n_best == 1:
            return [[best] for best in greedy_search(model, ids, encoded=encoded, **options)]
        return beam_search(model, ids, beam=beam, n_best=n_best, encoded=encoded, **options)

    done = 0

    def report(place: int) -> None:
        nonlocal done
        done += len(plan[place])
        if progress is not None:
            progress(done)

    parts = READERS.parts(next(model.parameters()).device)
    lengths = [len(ids) + 1 for ids in sources]
    plan = list(plan_batches(lengths, batch_tokens, beam, parts, batch_rows))
    was_training = model.training
    model.eval()
    try:
        for batch, found in zip(plan, READERS.map(translate, plan, report), strict=True):
            for i, hypotheses in zip(batch, found, strict=True):
                results[i] = hypotheses
    finally:
        model.train(was_training)
    return results


def plan_batches(
    lengths: Sequence[int],
    batch_tokens: int,
    beam: int = 1,
    parts: int = 1,
    batch_rows: int | None = None,
) -> Iterator[list[int]]:
    """Indices in batches of like length, longest first, each index once.

    A batch of n rows, the longest of length L, has ``n * L * beam <= batch_tokens``, unless it is
    a single row.

    Args:
        lengths: tokens of each row.
        batch_tokens: the budget, of all batches that are worked on at once.
        beam: rows that each row becomes.
        parts: how many batches are worked on at once.
        batch_rows: rows in a batch, at most.

    Raises:
        HeadlabError: ``batch_tokens`` or ``beam`` is below 1.
    """
    for name, value in (("batch_tokens", batch_tokens), ("beam", beam)):
        if value < 1:
            raise HeadlabError(f"decoding.{name}={value} must be at least 1")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    start = number = 0
    while start < len(order):
        if number % parts == 0:  # what is left is shared out, so that none runs out of work early
            share = max(FEWEST_ROWS, -(-(len(order) - start) // parts))
        size = batch_tokens // (max(1, lengths[order[start]]) * beam * parts)
        end = start + max(1, min(size, share, batch_rows or share))
        yield order[start:end]
        start, number = end, number + 1
