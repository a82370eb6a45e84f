"""``resume=FILE``: a run goes on in its own folder, with its own configuration."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from headlab.cli import configuration
from headlab.cli.options import choices, is_from, options_of
from headlab.errors import HeadlabError

# What may change when training goes on from a checkpoint; anything else would make the saved
# state wrong. Where the corpus lies may change, what it holds may not: that is checked later.
CHANGEABLE = (
    "trainer.", "callbacks.", "evaluation.", "decoding.", "threads", "keep_memory",
    "data.path", "data.root", "data.train", "data.validation", "data.test",
)  # fmt: skip

# Hydra would apply the overrides to the default configuration; they belong to the run's own. The
# environment hands them to the other processes of a distributed run as well.
VARIABLE = "HEADLAB_RESUME_OVERRIDES"

RESUME = re.compile(r"\+{0,2}resume=(.*)", re.DOTALL)


def for_hydra(arguments: Sequence[str]) -> list[str]:
    """The command line without what ``of_checkpoint`` applies, and with the run's folder.

    Raises:
        HeadlabError: the file does not exist, or a sweep is asked for as well.
    """
    value = asked_for(arguments)
    if not value:
        return list(arguments)
    path = existing("resume", value, "last.ckpt")
    if {"-m", "--multirun"} & set(arguments):
        raise HeadlabError("resume goes on with one run; take -m away")
    others = [a for a in arguments if not RESUME.fullmatch(a)]
    hydras = [a for a in others if a.startswith("-") or a.lstrip("+~").startswith("hydra.")]
    if "LOCAL_RANK" not in os.environ:
        os.environ[VARIABLE] = json.dumps([a for a in others if a not in hydras])
    place = [quoted("resume", path), quoted("hydra.run.dir", path.resolve().parent)]
    return [*hydras, *place, "hydra.output_subdir=null"]


def asked_for(arguments: Sequence[str]) -> str:
    """The file of ``resume=FILE`` on a command line; empty when there is none."""
    given = [match.group(1) for a in arguments if (match := RESUME.fullmatch(a))]
    value = unquote(given[-1]) if given else ""
    return "" if value == "null" else value


def existing(key: str, value: str, usual: str) -> Path:
    """The absolute path of a checkpoint that a key names.

    Raises:
        HeadlabError: there is none; says which there are, such as the ``usual`` one of a folder.
    """
    path = Path(value).expanduser().absolute()
    if path.is_dir() and (path / usual).is_file():
        raise HeadlabError(f"{key}={value} is a folder; did you mean {value}/{usual}?")
    if not path.is_file():
        there = sorted(path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
        hint = f"; in that folder are {', '.join(p.name for p in there)}" if there else ""
        raise HeadlabError(f"{key}={value}: no such file{hint}")
    return path


def quoted(key: str, path: Path) -> str:
    """An override that gives a path with any characters in it."""
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}='{text}'"


def unquote(text: str) -> str:
    """The value of an override, with or without quotes around it."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def of_checkpoint(path: Path) -> DictConfig:
    """The configuration that a checkpoint was trained with, and the overrides that go with it.

    Raises:
        HeadlabError: an override would change what the saved state depends on, or the file is
            not a checkpoint of ours.
    """
    from headlab.checkpoint import read_raw

    saved = OmegaConf.create(read_raw(path)["headlab"]["config"])
    texts = json.loads(os.environ.get(VARIABLE, "[]"))
    parsed = OverridesParser.create().parse_overrides(texts)
    overrides = {o.key_or_group: o for o in parsed}.values()  # the last word on each key
    check_targets(OmegaConf.to_container(saved), texts, path)
    for override in overrides:
        _apply(saved, override, path)
    return saved


def check_targets(saved: Any, overrides: Sequence[str], path: Path) -> None:
    """Refuse a saved configuration that would call what the configuration tree does not.

    Raises:
        HeadlabError: names the key and what it would call.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    known = _known_targets() | {
        str(o.value()) for o in parsed if o.key_or_group.endswith("_target_")
    }
    for key, target in _find(saved, "_target_"):
        if target not in known:
            raise HeadlabError(
                f"{path}: {key}={target} is not in the configuration tree; if you trust it, add "
                f"{key}={target}"
            )


def _apply(saved: DictConfig, override: Override, path: Path) -> None:
    key = override.key_or_group
    value = None if override.is_delete() else override.value()
    if key == "experiment" and not override.is_delete():
        return  # a recipe: what it set is in the saved configuration
    present = OmegaConf.select(saved, key)
    known = options_of(key) if isinstance(present, DictConfig) else {}
    if isinstance(present, DictConfig) and str(value) in known:
        if is_from(known[str(value)], present):
            return
        present = choices({key: present}).get(key)
    elif key.startswith(CHANGEABLE) and not override.is_delete():
        section = key.rpartition(".")[0]
        exists = key in saved if not section else OmegaConf.select(saved, section) is not None
        if not exists:
            raise HeadlabError(f"{key}: no such key in the configuration of {path}")
        OmegaConf.update(saved, key, value, force_add=True)
        return
    elif _same(present, value) and not override.is_delete():
        return
    raise HeadlabError(
        f"{override.input_line} cannot change while going on from {configuration.shown(path)}, "
        f"which has {key}={present}; start a new run, or take the override away"
    )


def _same(present: Any, value: Any) -> bool:
    if isinstance(present, str) and isinstance(value, str):
        return present in (value, os.path.abspath(value))
    return bool(present == value)


def _known_targets() -> set[str]:
    files = configuration.folder().glob("**/*.yaml")
    text = "\n".join(p.read_text(encoding="utf-8") for p in files)
    return set(re.findall(r"_target_:\s*(\S+)", text))


def _find(tree: Any, wanted: str, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every ``wanted`` in nested mappings."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            if name == wanted:
                yield f"{key}{name}", value
            yield from _find(value, wanted, f"{key}{name}.")
