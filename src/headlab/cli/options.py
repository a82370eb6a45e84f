"""Which option of a group in configs/ a saved section came from."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from headlab.cli import configuration
from headlab.head_names import SITES

# Keys in which the options of a group differ whatever else was set: their values name the option.
IDENTITY = ("_target_", "kind", *SITES)


def options_of(group: str) -> dict[str, dict[str, Any]]:
    """Name -> values of each option, without those that only serve others as a base."""
    own: dict[str, dict[str, Any]] = {}
    bases: dict[str, list[str]] = {}
    for path in sorted((configuration.folder() / group).glob("*.yaml")):
        values: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        entries = values.pop("defaults", [])
        own[path.stem] = values
        bases[path.stem] = [e for e in entries if isinstance(e, str) and e != "_self_"]

    def whole(name: str) -> dict[str, Any]:
        return {k: v for base in bases[name] for k, v in whole(base).items()} | own[name]

    serving = {base for some in bases.values() for base in some}
    return {name: whole(name) for name in own if name not in serving}


def is_from(
    option: Mapping[str, Any], section: Mapping[str, Any], keys: Sequence[str] = IDENTITY
) -> bool:
    """Whether a section may have come from an option, by the keys that name it."""
    # Runs from before there was a choice have multi-head attention.
    section = {"kind": "mha", **section} if "kind" in option else section
    return all(option.get(key) == section.get(key) for key in keys)


def choices(saved: Mapping[str, Any]) -> dict[str, str]:
    """Group -> the option of the tree that the section of a saved configuration came from."""
    found = {}
    for folder in sorted(p for p in configuration.folder().iterdir() if p.is_dir()):
        section = saved.get(folder.name)
        if not isinstance(section, Mapping):
            continue
        scores = {}
        for name, option in options_of(folder.name).items():
            if is_from(option, section, ("_target_", "kind")):
                equal = sum(section.get(key) == value for key, value in option.items())
                scores[name] = is_from(option, section), -len(set(option) ^ set(section)), equal
        if scores:
            found[folder.name] = max(scores, key=lambda name: scores[name])
    return found
