"""Training: our trainer beside plain loops around other models, on the same batches."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headlab.benchmark.contest import MARIAN, OURS, TORCH, Contest, Entry, ratios
from headlab.benchmark.flops import Sizes, training_flops
from headlab.benchmark.material import Material
from headlab.benchmark.networks import differences, drops_more, refusal
from headlab.benchmark.process import Worker
from headlab.transformer import Transformer

TIMED = 3  # batches that tell how long a turn will take, after all have been seen once
FEWEST = 4  # batches of a turn


def measure_training(
    contest: Contest,
    model: Transformer,
    material: Material,
    profile: bool,
    keep: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Rounds of training; a turn is the same steps for every contestant.

    * Headlab: Lightning's loop with all callbacks and TensorBoard, without validation, with our
      memory settings (``headlab.allocator``), as users run it.
    * torch.nn.Transformer in a plain loop, as its users run it; with our memory settings; and,
      where ours drops in other places, with our dropout as well.
    * transformers' MarianMTModel in a plain loop.
    * on a GPU, ours compiled by torch.compile, in a plain loop.

    All start from fresh weights, with the optimizer, schedule, clipping and label smoothing of the
    checkpoint's configuration; float32 on the CPU, bfloat16 (autocast) on a GPU.

    Args:
        contest: where they meet.
        model: the checkpoint's.
        material: batches.
        profile: whether to profile ours at the end.
        keep: called after each turn with what would be returned if it were the last.

    Returns:
        What goes into the JSON file under ``training``.
    """
    workers = contest.ready(_start(contest, model))
    entries = [Entry(worker.name, worker, {}) for worker in workers]
    plan = _plan(contest, entries, len(material.plan))
    for entry in entries:
        entry.command = dict(plan)
    lengths = pair_lengths(material, plan["batches"])

    def figures() -> dict[str, Any]:
        there = contest.measured(entries)
        return {
            **plan,
            "sentences": len(lengths),
            "source_tokens": sum(source for source, _ in lengths),
            "target_tokens": sum(target for _, target in lengths),
            "contestants": list(_rows(contest, there, model, lengths, plan["passes"])),
            "not_run": contest.not_run,
            "left_out": contest.left_out,
            "matrix_product_gflops": contest.peaks,
        }

    contest.rounds(entries, "training", lambda: keep(figures()))
    found = figures()
    if profile:
        contest.progress("training, profile")
        ours = entries[0].worker.turn(batches=plan["batches"], passes=1, profile=True)
        found["profile"] = ours["profile"]
    return found


def _start(contest: Contest, model: Transformer) -> list[Worker]:
    def start(name: str, kind: str, keep_memory: bool = False) -> Worker:
        return contest.start(name, keep_memory, phase="training", kind=kind)

    workers = [start(OURS, "headlab", keep_memory=True)]
    if contest.device != "cpu":
        workers.append(start(f"{OURS}, torch.compile", "compiled", keep_memory=True))
    against = refusal(model.hparams)
    if against is not None:
        contest.not_run |= dict.fromkeys((TORCH, MARIAN), f"not comparable: {against}")
        return workers
    workers.append(start(TORCH, "torch"))
    workers.append(start(f"{TORCH}, our memory settings", "torch", keep_memory=True))
    if drops_more(model.hparams):
        name = f"{TORCH}, our memory settings and dropout"
        workers.append(start(name, "torch-same-dropout", keep_memory=True))
    if contest.installed("transformers", MARIAN):
        workers.append(start(MARIAN, "marian"))
    return workers


def _plan(contest: Contest, entries: Sequence[Entry], batches: int) -> dict[str, int]:
    """Warm up, and see how many steps a turn can have.

    All batches once: memory is asked for when a size is met for the first time. As many as a
    quarter of the time allows, by the time of the first.
    """
    first = _seconds_a_batch(contest, entries, 1)
    fits = math.floor(min(batches, 0.25 * contest.left / max(sum(first), 1e-9)))
    fits = max(min(FEWEST, batches), fits)
    if fits < batches:
        contest.left_out.append(f"training: {batches - fits} of {batches} batches")
        batches = fits
    for entry in entries:
        contest.progress(f"training, warm-up: {entry.name}")
        if entry.worker.name not in contest.not_run:
            contest.attempt(entry.worker, entry.worker.turn, batches=batches, passes=1)
    every = _seconds_a_batch(contest, entries, min(TIMED, batches))
    plan = plan_turn(batches, max(every), contest.seconds)
    needed = contest.turns * plan["batches"] * plan["passes"] * sum(every)
    if needed > contest.left:  # shorter turns, rather than fewer
        seconds = contest.seconds * max(0.0, contest.left) / needed
        plan = plan_turn(batches, max(every), seconds)
    return plan


def _seconds_a_batch(contest: Contest, entries: Sequence[Entry], batches: int) -> list[float]:
    """Of each contestant that is still there, in the order of the entries."""
    found = []
    for entry in entries:
        if entry.worker.name not in contest.not_run:
            turn = {"batches": batches, "passes": 1}
            answer = contest.attempt(entry.worker, entry.worker.turn, **turn)
            found += [answer["seconds"] / batches] if answer else []
    return found


def plan_turn(batches: int, seconds_a_batch: float, seconds: float) -> dict[str, int]:
    """How many of the batches, and how many passes over them, take about so many seconds.

    Fewer than all batches only where one pass would take twice as long.
    """
    seconds_a_batch = max(seconds_a_batch, 1e-9)
    size = min(batches, max(FEWEST, int(2 * seconds / seconds_a_batch)))
    return {"batches": size, "passes": max(1, int(seconds / (size * seconds_a_batch)))}


def pair_lengths(material: Material, batches: int) -> list[tuple[int, int]]:
    """Source and target tokens of each pair of the first batches, EOS counted."""
    used = [material.pairs[i] for batch in material.plan[:batches] for i in batch]
    pairs = material.read_tokenizers().encode_pairs(*zip(*used, strict=True))
    return [(len(source) + 1, len(target) + 1) for source, target in pairs]


def _rows(
    contest: Contest,
    entries: Sequence[Entry],
    model: Transformer,
    lengths: Sequence[tuple[int, int]],
    passes: int,
) -> Iterator[dict[str, Any]]:
    compared = ratios(entries)
    for entry in entries:
        ours = entry.name.startswith(OURS)
        sizes = Sizes.of_model(model) if ours else Sizes.of_plain(model.hparams)
        flops = None if sizes is None else passes * training_flops(sizes, lengths)
        kind = "marian" if entry.name == MARIAN else "torch"
        yield {
            "name": entry.name,
            "parameters": entry.worker.answers[0]["parameters"],
            "differences": [] if ours else differences(model, kind),
            "seconds": entry.seconds,
            "losses": [turn["loss"] for turn in entry.turns],
            "sentences_per_second": entry.per_second(passes * len(lengths)),
            "target_tokens_per_second": entry.per_second(passes * sum(t for _, t in lengths)),
            "flops_of_a_turn": flops,
            "model_flops_utilisation": flops and entry.per_second(flops / contest.peak),
            "peak_memory_bytes": entry.worker.peak_memory,
            "headlab_ratio": compared.get(entry.name),
        }
