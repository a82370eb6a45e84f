"""``init_from=FILE``: a new run, in a new folder, that starts from a checkpoint's weights."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from omegaconf import DictConfig, OmegaConf

from headlab.checkpoint import plain_config, read_raw
from headlab.cli import configuration, folders, options, resuming
from headlab.errors import HeadlabError

# What the weights and the tokenizer of a checkpoint are made for, but for a few keys.
FIXED = ("model", "attention", "position", "tokenizer")
FREE = ("model.dropout", "model.feed_forward_dropout", "model.ablate", "attention.dropout")

INIT_FROM = re.compile(r"\+{0,2}init_from=(.*)", re.DOTALL)


@dataclass
class Touched:
    """What a command line asks to be other than in the checkpoint's run."""

    # group -> its option; dotted key -> "" or the recipe that sets it
    groups: dict[str, str | None] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)

    @classmethod
    def by(cls, overrides: Sequence[str]) -> "Touched":
        """Read Hydra overrides, and the recipes that they name."""
        touched = cls()
        for one in OverridesParser.create().parse_overrides(list(overrides)):
            value = one.value()
            # Of a sweep, all values; each job asks again with its own.
            for each in value.list if isinstance(value, ChoiceSweep) else [value]:
                touched._add(one.key_or_group, each, one.is_delete())
        return touched

    def _add(self, key: str, value: Any, deleted: bool) -> None:
        if key.startswith("hydra."):
            return
        if key == "experiment":
            for name in value if isinstance(value, list) else [value]:
                self._add_recipe(name)
        elif (configuration.folder() / key).is_dir() and not isinstance(value, Mapping):
            self.groups[key] = value if value is None else str(value)
        elif deleted:
            self.deleted.append(key)
        else:
            self.keys |= dict.fromkeys(_leaves(value, key), "")

    def _add_recipe(self, name: str | None) -> None:
        path = configuration.folder() / "experiment" / f"{name}.yaml"
        if name is None or not path.is_file():
            return  # Hydra says what is wrong
        recipe = _plain(OmegaConf.load(path))
        for entry in recipe.pop("defaults", []):
            if isinstance(entry, str):
                self._add_recipe(entry)
            elif isinstance(entry, Mapping):
                for group, option in entry.items():
                    key = re.sub(r"^override\s+", "", group).lstrip("/")
                    self.groups.setdefault(key, option)
        recipe.pop("hydra", None)
        for key in _leaves(recipe, ""):
            self.keys.setdefault(key, f"experiment={name}")


def for_hydra(arguments: Sequence[str]) -> list[str]:
    """The command line with the checkpoint's choices of groups, so that Hydra knows its keys.

    Raises:
        HeadlabError: the file is missing or foreign, or the run is to be resumed as well.
    """
    values = [match.group(1) for a in arguments if (match := INIT_FROM.fullmatch(a))]
    value = resuming.unquote(values[-1]) if values else ""
    if value in ("", "null"):
        return list(arguments)
    if resuming.asked_for(arguments):
        raise HeadlabError(
            "init_from begins a new run and resume goes on with an old one; take one of them away"
        )
    path = resuming.existing("init_from", value, "best.ckpt")
    saved = _saved(path)
    others = [a for a in arguments if not INIT_FROM.fullmatch(a)]
    overrides = [a for a in others if "=" in a and not a.startswith("-")]
    flags = [a for a in others if a not in overrides]
    touched = Touched.by(overrides)
    chosen = [
        f"{group}={option}"
        for group, option in options.choices(saved).items()
        if group not in touched.groups
    ]
    overrides = [*chosen, *overrides, resuming.quoted("init_from", path)]
    if not {"-m", "--multirun"} & set(flags) and touched.keys.get("name") != "":
        overrides.append(f"name={_name(overrides, path)}")
    return [*flags, *overrides]


def of_checkpoint(composed: DictConfig, overrides: Sequence[str], path: Path) -> DictConfig:
    """The configuration of a run that starts from a checkpoint.

    It is that of the checkpoint's run, but for what the overrides name: keys, other options of
    groups, and what a recipe (``experiment=NAME``) sets. Where keys followed others, as
    ``evaluation.lowercase`` follows ``tokenizer.lowercase``, they follow them again. Outputs go
    where the user stands.

    Args:
        composed: the configuration that Hydra made of the overrides, unresolved.
        overrides: of this job, as typed.
        path: the checkpoint.

    Raises:
        HeadlabError: an override would change what the weights or the tokenizer are made for, or
            the checkpoint is not one of ours.
    """
    saved, wanted = _saved(path), _plain(composed)
    touched = Touched.by(overrides)
    resuming.check_targets(saved, overrides, path)
    base = OmegaConf.create({key: saved.get(key, value) for key, value in wanted.items()})
    base.resume, base.init_from = None, str(path)
    assert isinstance(base, DictConfig)
    for key, text in _interpolations(wanted, ""):
        _let_follow(base, key, text)
    base.paths.outputs = wanted["paths"]["outputs"]
    if not Path(base.paths.data).parent.exists():  # the checkpoint came from another machine
        base.paths.data = wanted["paths"]["data"]
    present = options.choices(saved)
    for group, option in touched.groups.items():
        if option == present.get(group):
            continue  # as it is: the values stay those of the checkpoint's run
        if group in FIXED:
            raise _refusal(group, option, present.get(group), path, "")
        base[group] = wanted.get(group)
    for key, recipe in touched.keys.items():
        new, old = OmegaConf.select(composed, key), OmegaConf.select(base, key)
        if key.split(".")[0] in FIXED and key not in FREE:
            if new != old:
                raise _refusal(key, new, old, path, recipe)
        elif key not in ("resume", "init_from"):
            OmegaConf.update(base, key, _get(wanted, key), force_add=True)
    for key in touched.deleted:
        parent = OmegaConf.select(base, key.rpartition(".")[0]) if "." in key else base
        if isinstance(parent, DictConfig):
            parent.pop(key.rpartition(".")[2], None)
    return base


def _saved(path: Path) -> dict[str, Any]:
    return plain_config(read_raw(path)["headlab"]["config"])


def _plain(config: Any) -> dict[str, Any]:
    plain: Any = OmegaConf.to_container(config, resolve=False)
    return plain


def _get(tree: Any, key: str) -> Any:
    """The value of a dotted key, interpolations unresolved."""
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def _refusal(key: str, new: Any, old: Any, path: Path, recipe: str) -> HeadlabError:
    made = "tokenizer" if key.split(".")[0] == "tokenizer" else "weights"
    source = f" of {recipe}" if recipe else ""
    mend = f"set {key}={old}" if recipe else "take it away"
    return HeadlabError(
        f"{key}={new}{source} does not fit the {made} of {configuration.shown(path)}, which has "
        f"{key}={old}; {mend}, or train a new model without init_from"
    )


def _name(overrides: Sequence[str], path: Path) -> str:
    """How the run's folder is to end: the name of the new configuration, not of the defaults'."""
    GlobalHydra.instance().clear()
    kept = [o for o in overrides if not o.lstrip("+~").startswith("hydra.")]
    with initialize_config_dir(str(configuration.folder()), version_base="1.3"):
        composed = compose("train", overrides=kept)
    return folders.slug(str(of_checkpoint(composed, kept, path).name))


def _interpolations(tree: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _interpolations(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, str) and "${" in tree:
        yield key, tree


def _let_follow(base: DictConfig, key: str, text: str) -> None:
    """Put an interpolation back where the saved value is what it would give."""
    place, _, name = key.rpartition(".")
    parent = OmegaConf.select(base, place) if place else base
    if not isinstance(parent, DictConfig) or name not in parent:
        return
    saved = parent[name]
    parent[name] = text
    try:
        same = parent[name] == saved
    except Exception:  # it leads to a key that the saved configuration does not have
        same = False
    if not same:
        parent[name] = saved


def _leaves(tree: Any, key: str) -> Iterator[str]:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    else:
        yield key
