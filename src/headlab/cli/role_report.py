"""What ``headlab roles`` prints."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from headlab.cli.streams import print_table
from headlab.head_names import SITES, TITLES, Head, compress
from headlab.heads.role_names import KINDS, NO_ROLE, Role, RoleSettings
from headlab.heads.role_results import Findings

MOST_RELATIONS = 20  # printed for each attention; the table in the folder has all


def print_roles(
    found: Findings, roles: Mapping[Head, Sequence[Role]], settings: RoleSettings
) -> None:
    """A table for each attention, the relations, the heads most alike, and a count of roles."""
    for site in SITES:
        heads = [head for head in roles if head.site == site]
        if heads:
            _print_site(site, heads, found, roles)
    for site in found.syntax:
        _print_relations(site, found, settings)
    _print_alike(found, list(roles))
    for line in summary(roles):
        print(line)


def summary(roles: Mapping[Head, Sequence[Role]]) -> list[str]:
    """Kind of role -> heads that have it as their main one, a line each."""
    main: dict[str, list[Head]] = {kind: [] for kind in (*KINDS, NO_ROLE.kind)}
    for head, some in roles.items():
        main[(some[0] if some else NO_ROLE).kind].append(head)
    width = max(map(len, main))
    return [
        f"{'no role' if kind == NO_ROLE.kind else kind:{width}} {len(heads):4}  "
        f"{' '.join(compress(heads))}"
        for kind, heads in main.items()
        if heads
    ]


def _print_site(
    site: str, heads: Sequence[Head], found: Findings, roles: Mapping[Head, Sequence[Role]]
) -> None:
    table = Table(title=TITLES[site])
    table.add_column("head", no_wrap=True)
    table.add_column("roles", no_wrap=True)
    first = "on <s>" if site == "decoder" else "on first"
    columns = ["confidence", "entropy", first, "on </s>", "on punct."]
    if site == "decoder":
        columns.remove("on </s>")
    columns += ["diagonality", "aligned"] if site == "cross" else ["position"]
    columns += ["rarest"] if site == "encoder" else []
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for head in heads:
        one, aligned = found.numbers[head], found.agreements.get(head)
        position = "–"
        if one.position is not None:
            sign = f"{one.position:+d}" if one.position else "0"
            position = f"{sign} {_number(one.positional)}"
        cells = {
            "confidence": _number(one.confidence),
            "entropy": _number(one.entropy),
            first: _number(one.first),
            "on </s>": _number(one.end),
            "on punct.": _number(one.punctuation),
            "position": position,
            "rarest": _number(one.rare),
            "diagonality": _number(one.diagonality),
            "aligned": "–" if aligned is None else " | ".join(map(_number, aligned)),
        }
        table.add_row(str(head), Text(_names(roles[head])), *(cells[name] for name in columns))
    print_table(table)
    if site == "cross" and found.agreements:
        print("aligned: by the row that predicts a target word | by the row that reads it")


def _names(roles: Sequence[Role]) -> str:
    """The labels of a head's roles; of the relations it follows the three clearest."""
    counts: Counter[str] = Counter()
    shown = []
    for role in roles:
        counts[role.kind] += 1
        if counts[role.kind] <= 3:
            shown.append(role.label)
    return " ".join(shown) + (" …" if len(shown) < len(roles) else "")


def _print_relations(site: str, found: Findings, settings: RoleSettings) -> None:
    best = found.best_heads(site)
    if not best:
        print(f"{TITLES[site]}: no relation was met {settings.instances} times (key instances)")
        return
    table = Table(title=f"{TITLES[site]}: relations and the heads that follow them best")
    table.add_column("relation", no_wrap=True)
    table.add_column("from a word to", no_wrap=True)
    for column in ("instances", "best offset", "baseline", "best head", "accuracy", "points"):
        table.add_column(column, justify="right", no_wrap=True)
    for relation, head, accuracy in best[:MOST_RELATIONS]:
        star = "*" if accuracy.syntactic(settings.syntactic) else " "
        table.add_row(
            Text(relation.name),
            "its head" if relation.direction == "to head" else "its dependent",
            f"{relation.instances:,}",
            f"{relation.offset:+d}",
            _number(relation.baseline),
            str(head),
            _number(accuracy.accuracy),
            f"{accuracy.points:+.1f}{star}",
        )
    print_table(table)
    print(f"* at least {settings.syntactic:g} times the baseline, the best fixed offset")


def _print_alike(found: Findings, heads: Sequence[Head]) -> None:
    for site in SITES:
        own, matrix = [head for head in heads if head.site == site], found.distances[site]
        if len(own) < 2:
            continue
        pairs = [(matrix[i, j], own[i], own[j]) for j in range(len(own)) for i in range(j)]
        distance, one, other = min(pairs)
        mean = sum(pair[0] for pair in pairs) / len(pairs)
        print(
            f"{TITLES[site]}: most alike are {one} and {other}, distance {distance:.2f} "
            f"(mean {mean:.2f})"
        )


def _number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.2f}"
