"""What each head is called, from its numbers and thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headlab.heads.alignment import Agreement
from headlab.heads.roles import Numbers
from headlab.heads.syntax import Accuracy


@dataclass(frozen=True)
class RoleSettings:
    """The keys of configs/roles.yaml, which explains them."""

    even: float
    sink: float
    positional: float
    syntactic: float
    rare_word: float
    aligned: float
    diagonal: float
    instances: int
    ignored: list[str]
    frequent: int
    lexicon_pairs: int
    iterations: int
    batch_tokens: int


class Role(NamedTuple):
    """A name for what a head does."""

    kind: str  # of KINDS
    label: str  # short, for a cell of a picture
    value: float  # of the number that earned the name


# In the order in which a head with several is called.
KINDS = ("even", "sink", "positional", "syntactic", "rare word", "aligned", "diagonal")
NO_ROLE = Role("none", "", 0.0)


def name_roles(
    numbers: Numbers, aligned: Agreement | None, syntax: Sequence[Accuracy], settings: RoleSettings
) -> list[Role]:
    """The roles of a head, the main one first; none for most heads of most models.

    Where the largest weight of an even head lies is chance, so it has no other role.

    Args:
        numbers: of the head.
        aligned: its agreement with word alignments, of which the better one counts;
            cross-attention.
        syntax: its accuracy on each relation; self-attention.
        settings: the thresholds.
    """
    roles = []

    def consider(kind: str, label: str, value: float | None, least: float) -> None:
        if value is not None and value >= least:
            roles.append(Role(kind, label, value))

    consider("even", "even", numbers.evenness, settings.even)
    if roles:
        return roles
    sinks = {"first": numbers.first, "end": numbers.end, "punct.": numbers.punctuation}
    for label in sorted(sinks, key=lambda name: -(sinks[name] or 0.0)):
        consider("sink", label, sinks[label], settings.sink)
    position = f"{numbers.position:+d}" if numbers.position else "0"
    consider("positional", position, numbers.positional, settings.positional)
    for one in sorted(syntax, key=lambda one: -one.points):
        if one.syntactic(settings.syntactic):
            roles.append(Role("syntactic", one.relation.label, one.accuracy))
    consider("rare word", "rare", numbers.rare, settings.rare_word)
    if aligned is not None:
        label = "aligned" if aligned.predicting >= aligned.reading else "read"
        consider("aligned", label, max(aligned), settings.aligned)
    consider("diagonal", "diag.", numbers.diagonality, settings.diagonal)
    return roles
