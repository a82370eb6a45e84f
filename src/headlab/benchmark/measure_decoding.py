"""Decoding: our translator beside transformers' Marian and CTranslate2, on the same sentences."""

import math
from collections.abc import Iterator, Sequence
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
    contest: Contest, checkpoint: Path, model: Transformer, material: Material, profile: bool
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

    Returns:
        What goes into the JSON file under ``decoding``.
    """
    total = len(material.sentences)
    (ours,) = contest.ready(
        [contest.start(OURS, True, phase="decoding", kind="headlab", checkpoint=str(checkpoint))]
    )
    contest.progress(f"decoding, the translations of {total:,} sentences")
    known = ours.turn(every=1, batch=0, beam=1, ids=True)
    lengths = [len(row) + end for row, end in zip(known["ids"], known["finished"], strict=True)]
    others = contest.ready(_start(contest, model, lengths))
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
    every = _share(contest, [*entries, *tried], total)
    for worker in others:
        entries += _rows_of(contest, worker, every, len(range(0, total, every)))
    for entry in entries:
        entry.command["every"] = every
    entries = contest.rounds(entries, "decoding")
    found = {
        "sentences": total,
        "sentences_of_a_turn": len(range(0, total, every)),
        "contestants": list(_rows(entries, len(range(0, total, every)))),
        "equal_outputs": _equal_outputs(contest, entries, known),
        "marian_differences": networks.differences(model, "marian"),
        "not_run": contest.not_run,
        "matrix_product_gflops": contest.peaks,
    }
    if profile:
        contest.progress("decoding, profile")
        found["profile"] = ours.turn(**entries[0].command, profile=True)["profile"]
    return found


def _start(contest: Contest, model: Transformer, lengths: Sequence[int]) -> list[Worker]:
    """The others, of those that can be compared; ``lengths`` are those of our translations."""
    shared: dict[str, Any] = {"phase": "decoding", "lengths": lengths}
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


def _share(contest: Contest, entries: Sequence[Entry], total: int) -> int:
    """Warm up; n for a turn of every n-th sentence, so that the slowest one's is not too long."""
    most = max(1, total // TRIAL)
    slowest = 0.0
    for entry in entries:
        contest.progress(f"decoding, warm-up: {entry.name}")
        if entry.worker.name in contest.not_run:
            continue
        answer = contest.attempt(entry.worker, entry.worker.turn, every=most, **entry.command)
        slowest = max(slowest, answer["seconds"] if answer else 0.0)
    whole = slowest / len(range(0, total, most)) * total
    return max(1, min(most, math.ceil(whole / (2 * contest.seconds))))


def _rows_of(contest: Contest, worker: Worker, every: int, sentences: int) -> list[Entry]:
    """A contestant's rows: batches of 64, or a beam, or both, and the batches that suit it best."""
    seconds: dict[int, float] = {}
    for batch in BATCHES:
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
    contest: Contest, entries: Sequence[Entry], ours: dict[str, Any]
) -> float | None:
    """The share of all sentences that CTranslate2 translates as we do; None without it."""
    for entry in entries:
        if entry.worker.name == CTRANSLATE:
            contest.progress("decoding, comparing the translations")
            command = {**entry.command, "every": 1}
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
