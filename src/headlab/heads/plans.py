"""What an ablation study switches off: each plan lists its configurations, one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headlab.errors import HeadlabError
from headlab.head_names import SITES, Head


@dataclass(frozen=True)
class Configuration:
    """One setting of a study.

    Attributes:
        name: short, of letters, digits, dots and dashes.
        off: the heads that are switched off; none is the full model.
        labels: what the configuration stands for, such as site, layer and head, for tables.
    """

    name: str
    off: tuple[Head, ...]
    labels: Mapping[str, Any] = field(default_factory=dict)


def each_head(heads: Sequence[Head]) -> list[Configuration]:
    """Each of the heads off by itself."""
    return [Configuration(str(one), (one,), one._asdict()) for one in heads]


def each_layer(heads: Sequence[Head]) -> list[Configuration]:
    """The heads of each layer of each site off together."""
    return [
        Configuration(f"{site}.{layer}", off, {"site": site, "layer": layer})
        for (site, layer), off in _by_layer(heads).items()
    ]


def each_site(heads: Sequence[Head]) -> list[Configuration]:
    """The heads of each site off together."""
    found = {site: tuple(one for one in heads if one.site == site) for site in SITES}
    return [Configuration(site, off, {"site": site}) for site, off in found.items() if off]


def all_but_one(heads: Sequence[Head], existing: Sequence[Head]) -> list[Configuration]:
    """For each of the heads, the other heads of its layer and site off (Michel et al. 2019, 3.3).

    All other layers and sites stay whole. In a layer of one head nothing is left to switch off.

    Args:
        heads: those that stay, one at a time.
        existing: all heads of the model.
    """
    whole = _by_layer(existing)
    return [
        Configuration(
            f"only-{kept}",
            tuple(one for one in whole[kept.site, kept.layer] if one != kept),
            kept._asdict(),
        )
        for kept in heads
    ]


def random_draws(
    heads: Sequence[Head], k: Sequence[int], draws: int, seed: int
) -> list[Configuration]:
    """For each k, as many draws of k different heads that are off together.

    Draw i puts the heads into an order of its own, with ``seed + i``, and takes the first k: what
    is off with a smaller k is also off with a larger one.

    Raises:
        HeadlabError: there are not so many heads.
    """
    too_many = [n for n in k if not 1 <= n <= len(heads)]
    if too_many:
        raise HeadlabError(
            f"ablation.k={too_many[0]}: there are {len(heads)} heads to draw from; "
            f"choose from 1 to {len(heads)}"
        )
    orders = {
        one: np.random.default_rng(one).permutation(len(heads)).tolist()
        for one in range(seed, seed + draws)
    }
    return [
        Configuration(
            f"k{n}-seed{one}",
            tuple(heads[i] for i in sorted(order[:n])),
            {"k": n, "seed": one},
        )
        for n in dict.fromkeys(k)
        for one, order in orders.items()
    ]


def together(heads: Sequence[Head]) -> list[Configuration]:
    """All of the heads off at once."""
    return [Configuration("list", tuple(heads))]


def _by_layer(heads: Sequence[Head]) -> dict[tuple[str, int], tuple[Head, ...]]:
    found: dict[tuple[str, int], list[Head]] = {}
    for one in heads:
        found.setdefault((one.site, one.layer), []).append(one)
    return {place: tuple(of) for place, of in found.items()}
