"""Pruning step by step: which heads go, what is left of the model, and what it is then worth."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headlab.checkpoint import Loaded, read_checkpoint
from headlab.data.text import is_blank
from headlab.errors import HeadlabError
from headlab.head_names import SITES, Head
from headlab.heads.importance import Scores, ascending
from headlab.heads.measure import Measurement, Measurer
from headlab.heads.speed import Speeds, compare_speeds
from headlab.heads.study import Study
from headlab.heads.surgery import cut_heads
from headlab.transformer import Transformer

Ranking = Callable[[Loaded, int], Scores]  # the scores of a model's heads before a step
Tuning = Callable[[Loaded, int, Path], None]  # trains a step's model on, into a checkpoint


@dataclass(frozen=True)
class Point:
    """What is left after a step, and what it is worth.

    Attributes:
        step: 0 is the model as it was.
        cut: all heads that went, by their numbers in the model as it was trained.
        left: those that stay.
        parameters: of the whole model.
        chosen: measured on the sentences that decide.
        reported: measured on those that do not.
        speeds: of the model as it was, and of this one.
        training_steps: optimizer steps taken since the pruning began.
    """

    step: int
    cut: list[Head]
    left: list[Head]
    parameters: int
    chosen: Measurement
    reported: Measurement
    speeds: Speeds
    training_steps: int

    def row(self, choice: str, report: str) -> dict[str, Any]:
        """Plain types for a table; the two sets of sentences by these names."""
        row: dict[str, Any] = {"step": self.step, "heads": len(self.left)}
        row |= {site: sum(one.site == site for one in self.left) for site in SITES}
        row["parameters"] = self.parameters
        for name, measured in ((choice, self.chosen), (report, self.reported)):
            scores = measured.scores
            row[f"{name}_bleu"] = scores and scores.bleu
            row[f"{name}_chrf"] = scores and scores.chrf
            row[f"{name}_nll"] = measured.nll
        row["tokens_per_second"] = self.speeds.after
        row["sentences_per_second"] = self.speeds.sentences
        row["tokens_per_sentence"] = self.speeds.length
        row["speed_ratio"] = self.speeds.ratio
        row["training_steps"] = self.training_steps
        return row


def cuts_to_share(heads: int, keep: float, steps: int) -> list[int]:
    """How many heads to cut at each step, so that ``keep`` of them are left at the end.

    What is left is ``keep * heads``, rounded to the nearest number, and a half up. The steps are
    as even as can be; there are fewer of them where there is less to cut than ``steps``.

    Raises:
        HeadlabError: ``keep`` is no share, or ``steps`` is below 1.
    """
    if not 0.0 <= keep <= 1.0:
        raise HeadlabError(f"--keep {keep:g} must be a share of the heads, from 0 to 1")
    if steps < 1:
        raise HeadlabError(f"--steps {steps} must be at least 1")
    total = heads - math.floor(keep * heads + 0.5)
    borders = [round(total * i / steps) for i in range(steps + 1)]
    sizes = [after - before for before, after in itertools.pairwise(borders)]
    return [size for size in sizes if size]


def cuts_one_by_one(heads: int, step_heads: int) -> list[int]:
    """How many heads to cut at each step until none is left.

    Raises:
        HeadlabError: ``step_heads`` is below 1.
    """
    if step_heads < 1:
        raise HeadlabError(f"--step-heads {step_heads} must be at least 1")
    return [min(step_heads, heads - start) for start in range(0, heads, step_heads)]


def random_scores(heads: Sequence[Head], seed: int) -> Scores:
    """A random order, as scores: the same for the same heads and seed."""
    order = list(heads)
    random.Random(seed).shuffle(order)
    return {one: float(place) for place, one in enumerate(order)}


class Pruning:
    """Cuts heads a few at a time, and measures what is left each time.

    All of it is remembered by the study, so that an interrupted pruning goes on where it stopped:
    scores and measurements in its journal, a model that was trained on as ``step-N.ckpt``.

    Args:
        loaded: the checkpoint to prune; left as it is.
        study: where results are kept.
        choice, report: sentences that decide, and those that do not.
        ranking: the scores by which heads go, the lowest first.
        rank_once: whether they are estimated on the whole model only, and not before each step.
        allowed: the heads that may go.
        tuning: trains a step's model on and writes it, with its step, where it is told; None:
            heads are cut and nothing else is changed.
        tell: called with a line about each step.
    """

    def __init__(
        self,
        loaded: Loaded,
        study: Study,
        choice: Measurer,
        report: Measurer,
        ranking: Ranking,
        *,
        rank_once: bool = False,
        allowed: Sequence[Head] | None = None,
        tuning: Tuning | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.loaded, self.study, self.tell = loaded, study, tell
        self.choice, self.report = choice, report
        self.ranking, self.rank_once, self.tuning = ranking, rank_once, tuning
        self.allowed = list(loaded.model.head_names if allowed is None else allowed)
        self._scores: Scores = {}
        self._last = 0

    def steps(self, sizes: Sequence[int]) -> Iterator[tuple[Point, Loaded]]:
        """The model as it is, then after each cut of so many heads: what is left, and its worth.

        Each is computed when it is asked for, so the caller decides where to stop.
        """
        current, self._last = self.loaded, len(sizes)
        yield self._measure(0, current), current
        for step, size in enumerate(sizes, start=1):
            current = self._cut(current, step, size)
            yield self._measure(step, current), current

    def _cut(self, current: Loaded, step: int, size: int) -> Loaded:
        there = [one for one in current.model.head_names if one in set(self.allowed)]
        if not self._scores or not self.rank_once:
            self._scores = self._rank(current, step)
        gone = ascending(self._scores, there)[:size]
        line = f"step {step} of {self._last}: cutting {', '.join(map(str, gone))}"
        if self.tuning is None:
            self.tell(line)
            return replace(current, model=cut_heads(current.model, gone))
        tuned = self.study.folder / f"step-{step}.ckpt"
        if not tuned.exists():
            self.tell(f"{line}, then training on")
            smaller = replace(current, model=cut_heads(current.model, gone))
            self.tuning(smaller, step, tuned)
        return read_checkpoint(tuned, next(current.model.parameters()).device)

    def _rank(self, current: Loaded, step: int) -> Scores:
        """The scores before a step, from the journal where they are there."""
        key = f"scores of step {step}"
        found = self.study.done(key, dict[str, float])
        if found is None or not found.keys() >= set(map(str, current.model.head_names)):
            found = {str(one): score for one, score in self.ranking(current, step).items()}
            self.study.record(key, found)
        return {one: found[str(one)] for one in current.model.head_names}

    def _measure(self, step: int, current: Loaded) -> Point:
        model = current.model
        left = set(model.head_names)
        chosen = self._recall(step, "choice", self.choice, model)
        reported = self._recall(step, "report", self.report, model)
        speeds = self._speeds(step, model)
        point = Point(
            step=step,
            cut=[one for one in self.loaded.model.head_names if one not in left],
            left=list(model.head_names),
            parameters=sum(p.numel() for p in model.parameters()),
            chosen=chosen,
            reported=reported,
            speeds=speeds,
            training_steps=current.step - self.loaded.step,
        )
        self.tell(
            f"step {step} of {self._last}: {len(point.left)} heads left, "
            f"BLEU {bleu(chosen):.2f}, loss {chosen.nll or math.nan:.3f}"
        )
        return point

    def _recall(self, step: int, name: str, measurer: Measurer, model: Transformer) -> Measurement:
        key = f"{name} of step {step}"
        found = self.study.done(key, Measurement)
        if found is None:
            found = measurer.measure(model=model)
            self.study.record(key, found)
        return found

    def _speeds(self, step: int, model: Transformer) -> Speeds:
        """Of the model as it was, and of this one; blank sentences are no work."""
        key = f"decoding speed of step {step}"
        found = self.study.done(key, Speeds)
        if found is None:
            found = compare_speeds(
                self.loaded.model,
                model,
                self.loaded.tokenizers,
                [text for text in self.choice.sources if not is_blank(text)],
                self.choice.translator.options,
            )
            self.study.record(key, found)
        # The model as it was is no faster than itself, whatever the clock says.
        return found if step else found._replace(after=found.before)


def bleu(measured: Measurement) -> float:
    """BLEU of a measurement that has references."""
    return math.nan if measured.scores is None else measured.scores.bleu


def within(points: Sequence[Point], most: float) -> bool:
    """Whether BLEU, on the sentences that decide, fell by no more than ``most`` at the last one."""
    return bleu(points[0].chosen) - bleu(points[-1].chosen) <= most
