"""What the study of roles found, as tables, figures and numbers for TensorBoard."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headlab.head_names import SITES, TITLES, Head
from headlab.heads.alignment import Agreement
from headlab.heads.role_figures import distances_figure, roles_figure
from headlab.heads.role_names import NO_ROLE, Role, RoleSettings, name_roles
from headlab.heads.role_study import Syntax
from headlab.heads.roles import Numbers
from headlab.heads.study import Study
from headlab.heads.syntax import Accuracy, Relation
from headlab.transformer import Transformer


class Findings(NamedTuple):
    """All that was measured."""

    numbers: Mapping[Head, Numbers]
    agreements: Mapping[Head, Agreement]
    syntax: Mapping[str, Syntax]  # site -> what was found there; without parses, nothing
    distances: Mapping[str, np.ndarray]  # site -> (heads, heads)

    def accuracies(self, head: Head) -> Sequence[Accuracy]:
        """The head's accuracy on each relation."""
        found = self.syntax.get(head.site)
        return found.heads.get(head, []) if found is not None else []

    def roles(self, settings: RoleSettings) -> dict[Head, list[Role]]:
        """The roles of each head, the main one first."""
        return {
            head: name_roles(numbers, self.agreements.get(head), self.accuracies(head), settings)
            for head, numbers in self.numbers.items()
        }

    def best_heads(self, site: str) -> list[tuple[Relation, Head, Accuracy]]:
        """For each relation of a site the head that follows it best."""
        found = self.syntax[site]
        if not found.heads:
            return []
        best = []
        for index, relation in enumerate(found.relations):
            head = max(found.heads, key=lambda one: found.heads[one][index].accuracy)
            best.append((relation, head, found.heads[head][index]))
        return best


def write_results(
    study: Study,
    model: Transformer,
    found: Findings,
    settings: RoleSettings,
    title: str,
) -> dict[Head, list[Role]]:
    """Write the tables ``roles``, ``relations``, ``syntax`` and ``distances``, and the figures.

    Returns:
        The roles of each head.
    """
    roles = found.roles(settings)
    rows = [_row(head, roles[head], found) for head in model.head_names]
    study.table("roles", rows)
    _write_syntax(study, found, settings)
    shape = {site: (len(model.kept[site]), model.heads) for site in SITES}
    study.figure("roles", roles_figure(roles, shape, f"roles of heads, {title}"))
    _write_distances(study, model, found, title)
    numbers = (*Numbers._fields, "aligned_predicting", "aligned_reading")
    study.scalars(
        {
            f"{key}/{row['head']}": row[key]
            for key in numbers
            for row in rows
            if row[key] is not None
        }
    )
    return roles


def _row(head: Head, roles: Sequence[Role], found: Findings) -> dict[str, Any]:
    agreement = found.agreements.get(head)
    predicting, reading = agreement if agreement is not None else (None, None)
    return {
        "head": str(head),
        "site": head.site,
        "layer": head.layer,
        "number": head.head,
        "main_role": (roles[0] if roles else NO_ROLE).kind,
        "roles": [f"{role.kind}:{role.label}".replace(" ", "_") for role in roles],
        **found.numbers[head]._asdict(),
        "aligned_predicting": predicting,
        "aligned_reading": reading,
    }


def _write_syntax(study: Study, found: Findings, settings: RoleSettings) -> None:
    best, every = [], []
    for site in found.syntax:
        for relation, head, accuracy in found.best_heads(site):
            best.append(
                {
                    "site": site,
                    "relation": relation.name,
                    "direction": relation.direction,
                    "instances": relation.instances,
                    "baseline_offset": relation.offset,
                    "baseline": relation.baseline,
                    "best_head": str(head),
                    "accuracy": accuracy.accuracy,
                    "points": accuracy.points,
                    "ratio": accuracy.ratio,
                    "syntactic": accuracy.syntactic(settings.syntactic),
                }
            )
        every += [
            {
                "head": str(head),
                "relation": one.relation.name,
                "direction": one.relation.direction,
                "instances": one.relation.instances,
                "baseline": one.relation.baseline,
                "accuracy": one.accuracy,
                "points": one.points,
                "ratio": one.ratio,
            }
            for head, some in found.syntax[site].heads.items()
            for one in some
        ]
    if found.syntax:
        study.table("relations", best)
        study.table("syntax", every)


def _write_distances(study: Study, model: Transformer, found: Findings, title: str) -> None:
    rows = []
    for site in SITES:
        heads = [head for head in model.head_names if head.site == site]
        if len(heads) < 2:
            continue
        matrix = found.distances[site]
        rows += [
            {"head": str(heads[i]), "other": str(heads[j]), "distance": float(matrix[i, j])}
            for i in range(len(heads))
            for j in range(i + 1, len(heads))
        ]
        name = f"{TITLES[site]}: distances, {title}"
        study.figure(f"distances_{site}", distances_figure(matrix, heads, name))
    if rows:
        study.table("distances", rows)
