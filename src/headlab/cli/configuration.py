"""The configuration of a run: where it comes from, and what is wrong with it."""

import difflib
import functools
import inspect
import itertools
import re
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf

from headlab.errors import HeadlabError

# What may change when training goes on from a checkpoint; anything else would make the saved
# state wrong.
CHANGEABLE = (
    "trainer.", "callbacks.", "evaluation.", "decoding.", "threads", "keep_memory",
    "data.path", "data.root", "resume",
)  # fmt: skip


def folder() -> Path:
    """The folder of the configuration tree: in the repository, or inside an installed package."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "configs", package.parents[1] / "configs"):
        if (place / "train.yaml").is_file():
            return place
    raise HeadlabError(f"no configs/train.yaml near {package}; install the package again")


def register_resolvers() -> None:
    """What the configuration's ``${run_folder:...}`` and ``${slug:...}`` mean."""
    OmegaConf.register_new_resolver("run_folder", _new_folder, replace=True)
    OmegaConf.register_new_resolver("slug", _slug, replace=True)


@functools.cache  # one folder a process, however often Hydra asks
def _new_folder(outputs: str, name: str) -> str:
    """Make a folder that no other run has, even one started in the same second."""
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{_slug(name)}"
    for n in itertools.count(1):
        place = Path(outputs) / (stem if n == 1 else f"{stem}-{n}")
        try:
            place.mkdir(parents=True)
            return str(place)
        except FileExistsError:
            if not place.is_dir():
                raise HeadlabError(f"paths.outputs={outputs} is not a folder") from None
        except OSError as error:
            raise HeadlabError(
                f"paths.outputs={outputs}: {error.strerror}; choose a folder that can be written"
            ) from None
    raise AssertionError("unreachable")


def _slug(*parts: Any) -> str:
    """A file name that never needs escaping when typed back in."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(map(str, parts))).strip("-.")[:80] or "run"


def for_hydra(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra should see it.

    A sweep's jobs are named after what differs among them; ``resume=FILE`` works in the folder of
    that run.

    Raises:
        HeadlabError: the file does not exist, or a sweep is asked for as well.
    """
    # Hydra's own parser takes no overrides after this flag.
    arguments = sorted(arguments, key=lambda a: a not in ("-m", "--multirun"))
    if any(a.split("=")[0] == "--experimental-rerun" for a in arguments):
        raise HeadlabError("--experimental-rerun would load a pickle; use resume=FILE")
    sweep = bool({"-m", "--multirun"} & set(arguments))
    if sweep:
        overrides = [a for a in arguments if not a.startswith("-")]
        parsed = OverridesParser.create().parse_overrides(overrides)
        varied = {o.key_or_group for o in parsed if o.is_sweep_override()}
        same = {o.key_or_group for o in parsed} - varied
        arguments.append(
            f"hydra.job.config.override_dirname.exclude_keys=[{','.join(sorted(same))}]"
        )
    given = [a.split("=", 1)[1] for a in arguments if a.startswith("resume=")]
    given = [value.strip("'\"") for value in given]
    if not given or given[-1] in ("null", ""):
        return arguments
    path = Path(given[-1]).absolute()
    if not path.is_file():
        there = sorted(path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
        hint = f"; in that folder are {', '.join(p.name for p in there)}" if there else ""
        raise HeadlabError(f"resume={given[-1]}: no such file{hint}")
    if sweep:
        raise HeadlabError("resume goes on with one run; take -m away")
    quoted = str(path.resolve().parent).replace("\\", "\\\\").replace("'", "\\'")
    return [*arguments, f"hydra.run.dir='{quoted}'", "hydra.output_subdir=null"]


def of_checkpoint(path: Path, overrides: Sequence[str]) -> DictConfig:
    """The configuration that a checkpoint was trained with, and the overrides that go with it.

    Raises:
        HeadlabError: an override would change what the saved state depends on, or the file is
            not a checkpoint of ours.
    """
    from headlab.checkpoint import read_raw

    saved = OmegaConf.create(read_raw(path)["headlab"]["config"])
    known = _known_targets()
    for key, target in _find(OmegaConf.to_container(saved), "_target_"):
        if target not in known:
            raise HeadlabError(f"{path}: {key}={target} is not in the configuration tree")
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key, value = override.key_or_group, override.value()
        present = OmegaConf.select(saved, key, throw_on_missing=False)
        if not key.startswith(CHANGEABLE):
            if present == value:
                continue
            raise HeadlabError(
                f"{key}={value} cannot change while going on from {shown(path)}, which has "
                f"{key}={present}; start a new run, or take the override away"
            )
        OmegaConf.update(saved, key, value, force_add=True)
    return saved


def _known_targets() -> set[str]:
    text = "\n".join(p.read_text(encoding="utf-8") for p in folder().glob("**/*.yaml"))
    return set(re.findall(r"_target_:\s*(\S+)", text))


def _find(tree: Any, wanted: str, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every ``wanted`` in nested mappings."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            if name == wanted:
                yield f"{key}{name}", value
            yield from _find(value, wanted, f"{key}{name}.")


def anchor(config: dict[str, Any]) -> None:
    """Make paths absolute, in place, so that a checkpoint can be used from any other folder."""

    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(item) for item in value]
        if isinstance(value, str) and Path(value).expanduser().exists():
            return str(Path(value).expanduser().absolute())
        return value  # a name on the hub, or a mistake that the corpus will report

    for key in ("path", "train", "validation", "test"):
        if key in config["data"]:
            config["data"][key] = absolute(config["data"][key])
    for section, keys in (("paths", ("data", "outputs")), ("data", ("root",))):
        for key in keys:
            config[section][key] = str(Path(config[section][key]).expanduser().absolute())


def check(config: Mapping[str, Any]) -> None:
    """Refuse values of the wrong type, by key, before anything is built.

    Raises:
        HeadlabError: names the key, the value and what was expected.
    """
    from headlab.data.module import TranslationData
    from headlab.data.tokenizer import train_tokenizer
    from headlab.training.schedule import build_schedule
    from headlab.transformer import Transformer

    _refuse_none(config, "")
    sections: dict[str, Callable[..., Any]] = {
        "model": Transformer.__init__,
        "batches": TranslationData.__init__,
        "schedule": build_schedule,
        "tokenizer": train_tokenizer,
    }
    for section, built in sections.items():
        _check_types(section, config[section], typing.get_type_hints(built))
    attention = inspect.signature(Transformer.__init__).parameters  # the keys of model
    unknown = set(config["model"]) - set(attention)
    if unknown:
        raise HeadlabError(f"model.{min(unknown)}: no such key; {nearest(min(unknown), attention)}")
    top: dict[str, Any] = {"seed": int, "threads": int | None, "keep_memory": bool}
    _check_types("", config, top)


def _check_types(section: str, values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    from pydantic import TypeAdapter, ValidationError

    for key, hint in hints.items():
        if key not in values or key in ("corpus", "tokenizer", "tokenizers"):
            continue
        try:
            TypeAdapter(hint).validate_python(values[key], strict=not isinstance(values[key], dict))
        except ValidationError as error:
            name = f"{section}.{key}" if section else key
            expected = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise HeadlabError(f"{name}={values[key]!r}: {expected} was expected") from None


def _refuse_none(tree: Any, key: str) -> None:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            _refuse_none(value, f"{key}.{name}" if key else str(name))
    elif tree == "None":
        raise HeadlabError(f"{key}=None is the text 'None' here; write {key}=null for no value")


def nearest(word: str, known: Any) -> str:
    """The known name most like ``word``, or all of them."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"


def explain(error: Exception) -> str:
    """One line for what Hydra or OmegaConf found wrong."""
    text = str(error)
    missing = re.search(r"Could not override '([^']+)'", text)
    if missing:
        return _explain_key(missing.group(1))
    group = re.search(r"Could not find '([^']+)/([^'/]+)'", text)
    if group:
        options = sorted(p.stem for p in (folder() / group.group(1)).glob("*.yaml"))
        return f"{group.group(1)}={group.group(2)}: {nearest(group.group(2), options)}"
    line = text.splitlines()[0].removeprefix("In 'train': ") if text else type(error).__name__
    if isinstance(error, OverrideParseException):
        line += "; put values with special characters in two pairs of quotes, as in 'key=\"a, b\"'"
    return line


def _explain_key(key: str) -> str:
    """Name the key that resembles ``key``, among all of the configuration's."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder()), version_base="1.3"):
        names = list(_keys(OmegaConf.to_container(compose("train"), resolve=False), ""))
    same_section = [n for n in names if n.rpartition(".")[0] == key.rpartition(".")[0]]
    close = difflib.get_close_matches(key, names, n=1)
    if close:
        return f"{key}: no such key; did you mean {close[0]}?"
    return f"{key}: no such key; choose from {', '.join(same_section or names[:12])}"


def _keys(tree: Any, key: str) -> Iterator[str]:
    if key:
        yield key
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _keys(value, f"{key}.{name}" if key else str(name))


def shown(path: Path) -> str:
    """The path as short as it can be typed from here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
