"""Ablation: a model with some of its heads switched off, compared with the whole one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from headlab.head_names import Head, compress
from headlab.heads.gates import gates_without
from headlab.heads.measure import Measurement, Measurer
from headlab.heads.plans import Configuration
from headlab.heads.significance import bleu_p_value, likelihood_p_value
from headlab.heads.study import Study

# What can be measured. More is better for the first two, less for the negative log-likelihood.
METRICS = ("bleu", "chrf", "nll")
TESTED = ("bleu", "nll")  # whose changes get a p-value

Row = dict[str, Any]


@dataclass(frozen=True)
class Significance:
    """How changes are tested.

    Attributes:
        level: p-values below it are called significant.
        resamples: swappings of outputs that each test draws.
        seed: of the swappings.
    """

    level: float
    resamples: int
    seed: int


class Tested(NamedTuple):
    """The p-values of a configuration, as they are recorded."""

    resamples: int
    seed: int
    p: dict[str, float]  # metric -> its p-value


class Ablation:
    """Measures configurations of a model on one set of sentences, and their change from the full.

    What is measured is recorded in the study at once, so that an interrupted study goes on where
    it stopped. The same heads are never measured twice, whatever configuration they are off in.

    Args:
        measurer: has the model and the sentences.
        study: where measurements are kept.
        part: of the data, such as "test"; tells measurements of one study apart.
        metrics: which of ``METRICS`` go into the rows; the measurer must measure them.
        significance: how changes are tested.
    """

    def __init__(
        self,
        measurer: Measurer,
        study: Study,
        part: str,
        metrics: Sequence[str],
        significance: Significance,
    ) -> None:
        self.measurer, self.study, self.part = measurer, study, part
        self.metrics = [name for name in METRICS if name in metrics]
        self.significance = significance

    def steps(self, configurations: Sequence[Configuration]) -> int:
        """How far ``run`` counts in its progress."""
        return len(self.measurer.sources) * (1 + len(configurations))

    def known(self, configurations: Sequence[Configuration]) -> int:
        """How many of them were measured already."""
        return sum(
            self.study.done(self._key(one.off), Measurement) is not None for one in configurations
        )

    def run(
        self,
        configurations: Sequence[Configuration],
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Row]:
        """One row a configuration, that of the full model first.

        A row has: ``configuration``; the labels; ``part``; ``off`` and ``left``, lists of patterns;
        ``heads_off`` and ``heads_left``, numbers; each metric; ``METRIC_change``, the difference
        from the full model; and ``METRIC_p`` and ``METRIC_significant`` for BLEU and likelihood.

        Args:
            configurations: what to switch off.
            progress: called with the number of sentences done so far, of ``steps``.
        """
        done = 0

        def within(sentences: int) -> None:
            progress(done + sentences)

        progress(0)
        full = self._measure((), within)
        # The same columns in every row, in the same order.
        labels = dict.fromkeys(label for one in configurations for label in one.labels)
        rows = [self._row(Configuration("full", (), labels), full, full)]
        for one in configurations:
            done += len(self.measurer.sources)
            progress(done)
            rows.append(self._row(one, self._measure(one.off, within), full))
        progress(self.steps(configurations))
        return rows

    def about(self) -> Row:
        """How the rows came about: the sentences, sacreBLEU's signatures, the tests."""
        scores = self._measure((), lambda done: None).scores
        row: Row = {"part": self.part, "sentences": len(self.measurer.sources)}
        for name in [name for name in self.metrics if name != "nll"]:
            row[f"{name}_signature"] = scores and getattr(scores, f"{name}_signature")
        return {**row, **asdict(self.significance)}

    def _measure(self, off: Sequence[Head], progress: Callable[[int], None]) -> Measurement:
        key = self._key(off)
        known = self.study.done(key, Measurement)
        if known is not None:
            return known
        gates = gates_without(self.measurer.loaded.model, off) if off else None
        found = self.measurer.measure(gates, progress=progress)
        self.study.record(key, found)
        return found

    def _key(self, off: Sequence[Head]) -> str:
        return f"{self.part}: {' '.join(compress(off)) or 'nothing'} off"

    def _row(self, one: Configuration, found: Measurement, full: Measurement) -> Row:
        existing = self.measurer.loaded.model.head_names
        left = [head for head in existing if head not in set(one.off)]
        row: Row = {
            "configuration": one.name,
            **one.labels,
            "part": self.part,
            "off": compress(one.off),
            "left": compress(left),
            "heads_off": len(one.off),
            "heads_left": len(left),
        }
        p_values = self._p_values(one, found, full) if one.off else {}
        for name in self.metrics:
            value, before = _value(found, name), _value(full, name)
            change = None if value is None or before is None else value - before
            row[name], row[f"{name}_change"] = value, change
            if name in TESTED:
                p = None if change is None else p_values.get(name, 1.0)
                row[f"{name}_p"] = p
                row[f"{name}_significant"] = p is not None and p < self.significance.level
        return row

    def _p_values(
        self, one: Configuration, found: Measurement, full: Measurement
    ) -> Mapping[str, float]:
        options = {"resamples": self.significance.resamples, "seed": self.significance.seed}
        key = f"{self._key(one.off)}, tested"
        known = self.study.done(key, Tested)
        if known is not None and known[:2] == tuple(options.values()):
            return known.p
        p = {}
        if "bleu" in self.metrics and found.hypotheses is not None and full.hypotheses is not None:
            lowercase, tokenize = self.measurer.scoring
            references = self.measurer.references or []
            p["bleu"] = bleu_p_value(
                full.hypotheses,
                found.hypotheses,
                references,
                lowercase=lowercase,
                tokenize=tokenize,
                **options,
            )
        if "nll" in self.metrics:
            p["nll"] = likelihood_p_value(full.losses, found.losses, **options)
        self.study.record(key, Tested(**options, p=p))
        return p


def _value(found: Measurement, metric: str) -> float | None:
    if metric == "nll":
        return found.nll
    return None if found.scores is None else getattr(found.scores, metric)


def best_heads(rows: Sequence[Row], metric: str) -> list[Row]:
    """Of each layer of each site the row whose metric is best; of equals, the first.

    Args:
        rows: with ``site``, ``layer`` and ``head``, such as those of ``all_but_one``.
        metric: BLEU and chrF are best when large, the negative log-likelihood when small.
    """
    sign = -1.0 if metric == "nll" else 1.0
    best: dict[tuple[str, int], Row] = {}
    for row in rows:
        if row.get("head") is None or row[metric] is None:
            continue
        place = row["site"], row["layer"]
        if place not in best or sign * row[metric] > sign * best[place][metric]:
            best[place] = row
    return list(best.values())


def spread(rows: Sequence[Row], metrics: Sequence[str]) -> list[Row]:
    """Mean, standard deviation and extremes over the draws of each k, for each metric's change.

    The standard deviation is that of a sample (n - 1); None for a single draw.
    """
    found = []
    for k in dict.fromkeys(row["k"] for row in rows if row.get("k") is not None):
        of = [row for row in rows if row.get("k") == k]
        line: Row = {"k": k, "draws": len(of), "heads_left": of[0]["heads_left"]}
        for name in metrics:
            for column in (name, f"{name}_change"):
                values = [row[column] for row in of if row[column] is not None]
                line[f"{column}_mean"] = float(np.mean(values)) if values else None
                line[f"{column}_sd"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
            changes = [row[f"{name}_change"] for row in of if row[f"{name}_change"] is not None]
            line[f"{name}_change_min"] = min(changes, default=None)
            line[f"{name}_change_max"] = max(changes, default=None)
        found.append(line)
    return found
