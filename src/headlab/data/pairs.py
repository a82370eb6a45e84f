"""Sentence pairs, and the account of how many of them were kept."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headlab.data.text import is_blank

SPLITS = ("train", "validation", "test")

Pair = tuple[str, str]


@dataclass
class SplitReport:
    """How many pairs of one split were read, how many kept, and why the others were dropped.

    ``notes`` are warnings about what was read; every run that uses the split shows them.
    """

    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def drop(self, reason: str, count: int = 1) -> None:
        """Counts `count` pairs as dropped for `reason`."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count


def format_report(split: str, report: SplitReport) -> str:
    """One line: ``train: 1,230 pairs read, 1,228 kept, 2 dropped (blank side 2)``."""
    line = f"{split}: {report.read:,} pairs read, {report.kept:,} kept"
    total = sum(report.dropped.values())
    if total:
        by_count = sorted(report.dropped.items(), key=lambda item: (-item[1], item[0]))
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in by_count)
        line += f", {total:,} dropped ({reasons})"
    return line


def keep_visible(
    pairs: Iterable[tuple[str | None, str | None]],
) -> tuple[list[Pair], SplitReport]:
    """The pairs in which both sides hold something to see, unchanged, and the report on them.

    None stands for a value that is missing and counts as blank.
    """
    report = SplitReport()
    kept: list[Pair] = []
    for source, target in pairs:
        report.read += 1
        if source is None or target is None or is_blank(source) or is_blank(target):
            report.drop("blank side")
        else:
            kept.append((source, target))
    report.kept = len(kept)
    return kept, report


def note_shared(made: Mapping[str, tuple[Sequence[Pair], SplitReport]]) -> None:
    """Notes where most of what a model is to be measured on is what it has trained on."""
    known = set(made["train"][0])
    for split in ("validation", "test"):
        pairs, report = made[split]
        shared = sum(pair in known for pair in pairs)
        if shared * 2 > len(pairs):
            report.notes.append(
                f"{shared:,} of its {len(pairs):,} pairs stand in train as well: scores on it show "
                f"what was learnt by heart; give other pairs, data.{split}"
            )
