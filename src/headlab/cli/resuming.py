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
    given = [match.group(1) for a in arguments if (match := RESUME.fullmatch(a))]
    value = given[-1].strip("'\"") if given else ""
    if value in ("", "null"):
        return list(arguments)
    path = Path(value).absolute()
    if path.is_dir() and (path / "last.ckpt").is_file():
        raise HeadlabError(f"resume={value} is a folder; did you mean {value}/last.ckpt?")
    if not path.is_file():
        there = sorted(path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
        hint = f"; in that folder are {', '.join(p.name for p in there)}" if there else ""
        raise HeadlabError(f"resume={value}: no such file{hint}")
    if {"-m", "--multirun"} & set(arguments):
        raise HeadlabError("resume goes on with one run; take -m away")
    others = [a for a in arguments if not RESUME.fullmatch(a)]
    hydras = [a for a in others if a.startswith("-") or a.lstrip("+~").startswith("hydra.")]
    if "LOCAL_RANK" not in os.environ:
        os.environ[VARIABLE] = json.dumps([a for a in others if a not in hydras])
    place = {"resume": path, "hydra.run.dir": path.resolve().parent}
    quoted = [f"{key}='{_escape(str(where))}'" for key, where in place.items()]
    return [*hydras, *quoted, "hydra.output_subdir=null"]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


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
    known = _known_targets() | {
        str(o.value()) for o in overrides if o.key_or_group.endswith("_target_")
    }
    for key, target in _find(OmegaConf.to_container(saved), "_target_"):
        if target not in known:
            raise HeadlabError(
                f"{path}: {key}={target} is not in the configuration tree; if you trust it, add "
                f"{key}={target}"
            )
    for override in overrides:
        _apply(saved, override, path)
    return saved


def _apply(saved: DictConfig, override: Override, path: Path) -> None:
    key = override.key_or_group
    value = None if override.is_delete() else override.value()
    if key == "experiment" and not override.is_delete():
        return  # a recipe: what it set is in the saved configuration
    present = OmegaConf.select(saved, key)
    option = configuration.folder() / key / f"{value}.yaml"
    if isinstance(present, DictConfig) and option.is_file():
        text = OmegaConf.load(option)
        assert isinstance(text, DictConfig)
        if all(text.get(k) == present.get(k) for k in ("_target_", "kind")):
            return
        present = present.get("_target_") or present.get("kind")
    elif key.startswith(CHANGEABLE) and not override.is_delete():
        if OmegaConf.select(saved, key.rpartition(".")[0] or key) is None:
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
