"""The names of heads: ``site.layer.head``, counted from 0, and patterns of them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from headlab.errors import HeadlabError

SITES = ("encoder", "decoder", "cross")

TITLES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}

# One part of a pattern: any, a number, or a range that includes both of its ends.
_PART = re.compile(r"\*|\d{1,6}(-\d{1,6})?")


class Head(NamedTuple):
    """One attention head; ``str`` gives its name, such as ``cross.2.0``."""

    site: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.site}.{self.layer}.{self.head}"


def heads_of(kept: Mapping[str, Sequence[Sequence[int]]]) -> list[Head]:
    """All heads of a model, by site, layer and number.

    Args:
        kept: site -> for each layer the numbers of the heads that it has.
    """
    return [
        Head(site, layer, head)
        for site in SITES
        for layer, heads in enumerate(kept.get(site, ()))
        for head in heads
    ]


def parse_heads(patterns: Iterable[str], existing: Sequence[Head], key: str) -> list[Head]:
    """The heads that patterns such as ``cross.2.*``, ``encoder.0.1-3`` or ``*.1.0`` name.

    Args:
        patterns: each ``site.layer.head``, any part of which may be ``*``; layer and head may be
            a range with both ends included.
        existing: the heads to choose from.
        key: where the patterns come from, for the error.

    Returns:
        Each head once, in the order of ``existing``.

    Raises:
        HeadlabError: a pattern cannot be read or names no head that exists.
    """
    if isinstance(patterns, str):
        raise HeadlabError(f"{key}={patterns} must be a list, such as [{patterns or 'cross.2.0'}]")
    found: set[Head] = set()
    for pattern in patterns:
        parts = pattern.split(".") if isinstance(pattern, str) else []
        readable = len(parts) == 3 and parts[0] in ("*", *SITES)
        if not readable or not all(_PART.fullmatch(part) for part in parts[1:]):
            raise HeadlabError(
                f"{key}: {pattern!r} is no head; write site.layer.head with the sites "
                f"{', '.join(SITES)}, such as cross.2.0, cross.2.* or encoder.0.1-3"
            )
        chosen = {
            one
            for one in existing
            if parts[0] in ("*", one.site)
            and _covers(parts[1], one.layer)
            and _covers(parts[2], one.head)
        }
        if not chosen:
            there = ", ".join(compress(existing)) or "none"
            raise HeadlabError(f"{key}: there is no head {pattern}; the heads are {there}")
        found |= chosen
    return [one for one in existing if one in found]


def compress(heads: Iterable[Head]) -> list[str]:
    """A short list of patterns that name exactly these heads: ranges within each layer.

    Neighbouring layers of a site with the same heads share a pattern.
    """
    by_layer: dict[tuple[str, int], list[int]] = {}
    for one in sorted(set(heads), key=lambda one: (SITES.index(one.site), one.layer, one.head)):
        by_layer.setdefault((one.site, one.layer), []).append(one.head)
    patterns = []
    for site in SITES:
        layers = {layer: numbers for (place, layer), numbers in by_layer.items() if place == site}
        patterns += [
            f"{site}.{_span(first, last)}.{_span(start, end)}"
            for first, last in _alike_layers(layers)
            for start, end in _runs(layers[first])
        ]
    return patterns


def _alike_layers(layers: Mapping[int, list[int]]) -> list[tuple[int, int]]:
    return _runs(sorted(layers), lambda a, b: layers[a] == layers[b])


def _covers(part: str, number: int) -> bool:
    if part == "*":
        return True
    first, _, last = part.partition("-")
    return int(first) <= number <= int(last or first)


def _runs(
    numbers: Sequence[int], alike: Callable[[int, int], bool] = lambda a, b: True
) -> list[tuple[int, int]]:
    """First and last of each stretch of consecutive numbers that are alike."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1 and alike(runs[-1][1], number):
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
