"""Decoding: our translator beside transformers' Marian and CTranslate2, on the same sentences."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headlab.benchmark import ctranslate, networks
from headlab.benchmark.contest import (
    CTRANSLATE,
    CTRANSLATE_ONE,
    MARIAN,
    OURS,
    Contest,
    Entry,
    ratios,
)
from headlab.benchmark.material import Material
from headlab.benchmark.process import Worker
from headlab.transformer import Transformer

ROWS = 64  # sentences of a batch, where ours and Marian's are the same
BATCHES = (32, ROWS, 128, 256, 512)  # of which the others' best is found
BEAM = 4
OURS_ROWS, OURS_BEAM = f"{OURS}, {ROWS} a batch", f"{OURS}, beam {BEAM}"
TRIAL = 64  # sentences that the time of a turn is estimated on


def measure_decoding(
    contest: Contest,
    checkpoint: Path,
    model: Transformer,
    material: Material,
    profile: bool,
    keep: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Rounds of translation; a turn is the same sentences for every contestant.

    * Headlab: ``Translator``, greedy, with its own batches as in ``headlab translate``; in batches
      of 64 sentences; and with beam 4. On a CPU the threads translate a batch each.
    * transformers' Marian, with random weights, made to write as many tokens for each sentence
      as our greedy translation has; in batches of 64, of the number that suits it best, and of 64
      with beam 4.
    * CTranslate2 with our weights: a batch for each thread (on a CPU), of the number that suits it
      best, and of 64 with beam 4; its greedy translations are compared with ours. And as it is
      when nothing is said about threads: one batch at a time, of 64 and of its best number.

    All in float32, sentences sorted by length, from texts to texts with our tokenizers, and with
    our memory settings (``headlab.allocator``), which make the others no slower.

    Args:
        contest: where they meet.
        checkpoint: the file.
        model: the checkpoint's.
        material: sentences.
        profile: whether to profile ours at the end.
        keep: called after each turn with what would be returned if it were the last.

    Returns:
        What goes into the JSON file under ``decoding``.
    """
    total = len(material.sentences)
    (ours,) = contest.ready(
        [contest.start(OURS, True, phase="decoding", kind="headlab", checkpoint=str(checkpoint))]
    )
    used = _sentences_used(contest, ours, total)
    if used > 1:
        contest.left_out.append(f"decoding: all but every {used}th of {total:,} sentences")
        total = len(range(0, total, used))
    contest.progress(f"decoding, the translations of {total:,} sentences")
    known = ours.turn(every=used, batch=0, beam=1, ids=True)
    lengths = [len(row) + end for row, end in zip(known["ids"], known["finished"], strict=True)]
    others = contest.ready(_start(contest, model, lengths, used))
    entries = [
        Entry(OURS, ours, {"batch": 0, "beam": 1}),
        Entry(OURS_ROWS, ours, {"batch": ROWS, "beam": 1}),
        Entry(OURS_BEAM, ours, {"batch": 0, "beam": BEAM}),
    ]
    tried = [
        Entry(f"{worker.name}, beam {beam}", worker, {"batch": ROWS, "beam": beam})
        for worker in others
        for beam in ((1,) if worker.name == CTRANSLATE_ONE else (1, BEAM))
    ]
    every, round_seconds = _share(contest, entries, tried, total, used)
    sentences = len(range(0, total, every))
    for worker in others:
        entries += _rows_of(contest, worker, used * every, sentences, round_seconds)
    for entry in entries:
        entry.command["every"] = used * every

    def figures() -> dict[str, Any]:
        return {
            "sentences": total,
            "sentences_of_a_turn": sentences,
            "contestants": list(_rows(contest.measured(entries), sentences)),
            "equal_outputs": None,
            "marian_differences": networks.differences(model, "marian"),
            "not_run": contest.not_run,
            "left_out": contest.left_out,
            "matrix_product_gflops": contest.peaks,
        }

    contest.rounds(entries, "decoding", lambda: keep(figures()))
    equal = _equal_outputs(contest, contest.measured(entries), known, used)
    found = {**figures(), "equal_outputs": equal}
    if profile:
        contest.progress("decoding, profile")
        found["profile"] = ours.turn(**entries[0].command, profile=True)["profile"]
    return found


def _sentences_used(contest: Contest, ours: Worker, total: int) -> int:
    """n where only every n-th sentence is translated at all: ours take an eighth of the time."""
    most = max(1, total // TRIAL)
    if math.isinf(contest.left):
        return 1
    contest.progress(f"decoding, warm-up: {OURS}")
    answer = ours.turn(every=most, batch=0, beam=1)
    whole = answer["seconds"] / len(range(0, total, most)) * total
    return max(1, min(most, math.ceil(8 * whole / max(contest.left, 1e-9))))


def _start(contest: Contest, model: Transformer, lengths: Sequence[int], used: int) -> list[Worker]:
    """The others, of those that can be compared; ``lengths`` are those of our translations."""
    shared: dict[str, Any] = {"phase": "decoding", "lengths": lengths, "every": used}
    workers = []
    against = networks.refusal(model.hparams)
    if against is not None:
        contest.not_run[MARIAN] = f"not comparable: {against}"
    elif contest.installed("transformers", MARIAN):
        workers.append(contest.start(MARIAN, True, kind="marian", **shared))
    against = ctranslate.refusal(model)
    if against is not None:
        contest.not_run[CTRANSLATE] = f"not comparable: {against}"
    elif contest.installed("ctranslate2", CTRANSLATE):
        folder = contest.folder / ctranslate.FOLDER
        folder.mkdir(exist_ok=True)
        ctranslate.write_model(model, folder)
        at_once = contest.threads if contest.device == "cpu" else 1
        shared["kind"] = "ctranslate2"
        workers.append(contest.start(CTRANSLATE, True, at_once=at_once, **shared))
        if at_once > 1:
            workers.append(contest.start(CTRANSLATE_ONE, True, at_once=1, **shared))
    return workers


def _share(
    contest: Contest, ours: Sequence[Entry], others: Sequence[Entry], total: int, used: int
) -> tuple[int, float]:
    """Warm up, and see how much a turn can have.

    Returns:
        n for a turn of every n-th of the sentences that are used, so that the slowest one's is not
        too long and all of them have time; and the seconds of a round of such turns, about.
    """
    most = max(1, total // TRIAL)
    slowest, one_round, tries = 0.0, 0.0, 0.0
    for entry in [*ours, *others]:
        contest.progress(f"decoding, warm-up: {entry.name}")
        if entry.worker.name in contest.not_run:
            continue
        turn = {**entry.command, "every": used * most}
        answer = contest.attempt(entry.worker, entry.worker.turn, **turn)
        if answer is not None:
            slowest = max(slowest, answer["seconds"])
            one_round += answer["seconds"]
            if entry in others and entry.command["beam"] == 1:
                tries += len(BATCHES) * answer["seconds"]
    one_round += tries / len(BATCHES)  # most have a row more, of the batches that suit them best
    scale = total / len(range(0, total, most))
    needed = (contest.turns * one_round + tries) * scale
    every = max(slowest * scale / (2 * contest.seconds), needed / max(contest.left, 1e-9))
    every = max(1, math.ceil(min(most, every)))
    return every, one_round * scale / every


def _rows_of(
    contest: Contest, worker: Worker, every: int, sentences: int, round_seconds: float
) -> list[Entry]:
    """A contestant's rows: batches of 64, or a beam, or both, and the batches that suit it best.

    Where there is no time to try them all, the best of those that were tried.
    """
    seconds: dict[int, float] = {}
    for batch in BATCHES:
        if seconds and contest.left < round_seconds:
            contest.left_out.append(f"decoding: {worker.name}, {batch} a batch and more")
            break
        # More rows than there are sentences are the same batch again.
        if worker.name not in contest.not_run and batch <= max(ROWS, sentences):
            contest.progress(f"decoding, {worker.name}, {batch} a batch")
            answer = contest.attempt(worker, worker.turn, every=every, batch=batch, beam=1)
            if answer is not None:
                seconds[batch] = answer["seconds"]
    if worker.name in contest.not_run:
        return []
    best = min(seconds, key=lambda batch: seconds[batch])
    name, rows = worker.name, []
    if name in (MARIAN, CTRANSLATE_ONE):
        command = {"batch": ROWS, "beam": 1}
        rows.append(Entry(f"{name}, {ROWS} a batch", worker, command, OURS_ROWS))
    command = {"batch": best, "beam": 1}
    rows.append(Entry(f"{name}, {best} a batch (its best)", worker, command))
    if name != CTRANSLATE_ONE:
        command = {"batch": ROWS, "beam": BEAM}
        rows.append(Entry(f"{name}, beam {BEAM}, {ROWS} a batch", worker, command, OURS_BEAM))
    return rows


def _rows(entries: Sequence[Entry], sentences: int) -> Iterator[dict[str, Any]]:
    compared = ratios(entries)
    for entry in entries:
        ratio = compared.get(entry.name)
        yield {
            "name": entry.name,
            "batch": entry.command["batch"] or None,
            "beam": entry.command["beam"],
            "seconds": entry.seconds,
            "target_tokens": entry.turns[0]["tokens"],
            "sentences_per_second": entry.per_second(sentences),
            "target_tokens_per_second": entry.per_second(entry.turns[0]["tokens"]),
            "peak_memory_bytes": entry.worker.peak_memory,
            "versus": None if ratio is None else entry.versus,
            "headlab_ratio": ratio,
        }


def _equal_outputs(
    contest: Contest, entries: Sequence[Entry], ours: dict[str, Any], used: int
) -> float | None:
    """The share of all sentences that CTranslate2 translates as we do; None without it."""
    for entry in entries:
        if entry.worker.name == CTRANSLATE:
            contest.progress("decoding, comparing the translations")
            command = {**entry.command, "every": used}
            theirs = contest.attempt(entry.worker, entry.worker.turn, **command, ids=True)
            if theirs is not None:
                return equal_share(ours["ids"], ours["finished"], theirs["ids"])
    return None


def equal_share(
    ours: Sequence[Sequence[int]], finished: Sequence[bool], theirs: Sequence[Sequence[int]]
) -> float:
    """Of translations that are the same, piece for piece.

    Where our length limit cut one (``finished`` is False), theirs may go on.
    """
    rows = zip(ours, finished, theirs, strict=True)
    same = [list(b if end else b[: len(a)]) == list(a) for a, end, b in rows]
    return sum(same) / len(same)
