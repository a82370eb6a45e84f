"""The configuration of a run: where it comes from, and what is wrong with it."""

import difflib
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

from headlab.cli.folders import new_folder, slug
from headlab.errors import HeadlabError

SECTIONS = (
    "data", "tokenizer", "attention", "position", "model", "optimizer", "schedule", "trainer",
    "callbacks", "logger", "batches", "loss", "decoding", "evaluation", "paths",
)  # fmt: skip

# Arguments that the program gives itself.
FROM_ELSEWHERE = (
    "model.source_vocab_size", "model.target_vocab_size", "batches.corpus", "batches.tokenizer",
    "batches.seed", "schedule.total_steps", "tokenizer.texts",
)  # fmt: skip

# Types of the keys that are no constructor's arguments of ours.
HINTS: dict[str, dict[str, Any]] = {
    "": {
        "seed": int,
        "threads": int | None,
        "shards": int,
        "keep_memory": bool,
        "init_from": str | None,
    },
    "tokenizer": {"joint": bool},
    "position": {"kind": str, "max_length": int | None, "base": float | None},
    "loss": {"label_smoothing": float, "balance": float},
    "paths": {"data": str, "outputs": str},
    "data": {"root": str},
    "decoding": {
        "beam": int,
        "length_penalty": float,
        "max_ratio": float,
        "max_extra": float,
        "batch_tokens": int,
    },
    "evaluation": {"validation_sentences": int | None, "lowercase": bool, "samples": int},
    "trainer": {
        "max_epochs": int | None,
        "max_steps": int,
        "accumulate_grad_batches": int,
        "gradient_clip_val": float | None,
        "val_check_interval": int | float | str | None,
        "log_every_n_steps": int,
    },
}


def folder() -> Path:
    """The folder of the configuration tree: in the repository, or inside an installed package."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "configs", package.parents[1] / "configs"):
        if (place / "train.yaml").is_file():
            return place
    raise HeadlabError(f"no configs/train.yaml near {package}; install the package again")


def register_resolvers() -> None:
    """What the configuration's ``${run_folder:...}`` and ``${slug:...}`` mean."""
    OmegaConf.register_new_resolver("run_folder", new_folder, replace=True)
    OmegaConf.register_new_resolver("slug", slug, replace=True)


def for_hydra(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra takes it; a sweep's jobs are named after what differs among them.

    Raises:
        HeadlabError: an option of Hydra's that would load a pickle.
    """
    # Hydra's own parser takes no overrides after this flag.
    flags = [a for a in arguments if a in ("-m", "--multirun")]
    arguments = [a for a in arguments if a not in flags]
    if any(a.split("=")[0] == "--experimental-rerun" for a in arguments):
        raise HeadlabError("--experimental-rerun would load a pickle; use resume=FILE")
    overrides = [a for a in arguments if "=" in a and not a.startswith("-")]
    if not flags and not any(map(_is_sweep, overrides)):
        return arguments
    parsed = OverridesParser.create().parse_overrides(overrides)
    varied = {o.key_or_group for o in parsed if o.is_sweep_override()}
    same = sorted({o.key_or_group for o in parsed} - varied)
    name = f"hydra.job.config.override_dirname.exclude_keys=[{','.join(same)}]"
    options = [a for a in arguments if a not in overrides]
    return [*options, *flags[:1], *overrides, name]


def _is_sweep(override: str) -> bool:
    """Whether it names a recipe that is a sweep, also without ``-m``."""
    key, _, name = override.partition("=")
    path = folder() / "experiment" / f"{name}.yaml"
    if key != "experiment" or not path.is_file():
        return False
    return OmegaConf.select(OmegaConf.load(path), "hydra.mode") == "MULTIRUN"


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
    from headlab.attention import option_types
    from headlab.cli.attention_keys import check_attention_keys
    from headlab.data.module import TranslationData
    from headlab.data.tokenizer import train_tokenizer
    from headlab.heads.hard_concrete import check_gates
    from headlab.training.schedule import build_schedule
    from headlab.transformer import Transformer

    for section in SECTIONS:
        if not isinstance(config.get(section), Mapping):
            raise HeadlabError(f"{section}={config.get(section)}: a group of keys was expected")
    refuse_none(config, "")
    sections: dict[str, Callable[..., Any]] = {
        "model": Transformer.__init__,
        "batches": TranslationData.__init__,
        "schedule": build_schedule,
        "tokenizer": train_tokenizer,
    }
    if config.get("gates") is not None:
        _check_gates(config["gates"])
        sections["gates"] = check_gates
    for section, built in sections.items():
        check_types(section, config[section], typing.get_type_hints(built))
        for key, parameter in inspect.signature(built).parameters.items():
            missing = parameter.default is inspect.Parameter.empty and key not in config[section]
            if missing and f"{section}.{key}" not in FROM_ELSEWHERE and key != "self":
                raise HeadlabError(f"{section}.{key} is missing; give it a value")
    for section, hints in {**HINTS, "attention": option_types()}.items():
        check_types(section, config[section] if section else config, hints)
    for name, node in config["callbacks"].items():
        if node is not None and str(node.get("_target_")).startswith("headlab."):
            module, _, attribute = node["_target_"].rpartition(".")
            built = getattr(importlib.import_module(module), attribute).__init__
            check_types(f"callbacks.{name}", node, typing.get_type_hints(built))
    keys = inspect.signature(Transformer.__init__).parameters
    unknown = set(config["model"]) - set(keys)
    if unknown:
        raise HeadlabError(f"model.{min(unknown)}: no such key; {nearest(min(unknown), keys)}")
    _check_ranges(config)
    check_attention_keys(config)


def _check_gates(gates: Any) -> None:
    from headlab.head_names import SITES
    from headlab.heads.hard_concrete import check_gates

    if not isinstance(gates, Mapping) or not isinstance(gates.get("penalty"), Mapping):
        raise HeadlabError(f"gates={gates}: a group of keys with gates.penalty was expected")
    keys = inspect.signature(check_gates).parameters
    unknown = set(gates) - set(keys)
    if unknown:
        raise HeadlabError(f"gates.{min(unknown)}: no such key; {nearest(min(unknown), keys)}")
    check_types("gates.penalty", gates["penalty"], dict.fromkeys(SITES, float | None))


def check_decoding(decoding: Mapping[str, Any]) -> None:
    """Refuse options of decoding that are out of their ranges.

    Raises:
        HeadlabError: names the key and the value.
    """
    import torch

    from headlab.decoding.hypothesis import length_norms, token_limits
    from headlab.decoding.search import plan_batches

    list(plan_batches([1], decoding["batch_tokens"], decoding["beam"]))
    table: Any = types.SimpleNamespace(max_length=2)
    token_limits(table, [[1]], decoding["max_ratio"], decoding["max_extra"])
    length_norms(1, decoding["length_penalty"], torch.zeros(1))


def _check_ranges(config: Mapping[str, Any]) -> None:
    """What would otherwise only show at the first validation, or deep inside Lightning."""
    check_decoding(config["decoding"])
    sentences = config["evaluation"]["validation_sentences"]
    if sentences is not None and sentences < 1:
        raise HeadlabError(f"evaluation.validation_sentences={sentences} must be at least 1")
    if not 0 <= config["seed"] < 2**32:
        raise HeadlabError(f"seed={config['seed']} must lie between 0 and {2**32 - 1}")
    for key in ("val_check_interval", "accumulate_grad_batches", "log_every_n_steps"):
        value = config["trainer"].get(key, 1)
        if value is not None and value <= 0:
            raise HeadlabError(f"trainer.{key}={value} must be above 0")
    checkpoints = config["callbacks"].get("checkpoints") or {}
    measured = ["val/loss", "val/perplexity"]
    if config["callbacks"].get("validation_scores") is not None:
        measured += ["val/bleu", "val/chrf"]
    if config.get("gates") is not None:
        measured += ["val/objective"]
    if checkpoints and checkpoints.get("monitor") not in measured:
        raise HeadlabError(
            f"callbacks.checkpoints.monitor={checkpoints.get('monitor')} is not measured; "
            f"choose from {', '.join(measured)}"
        )


def check_types(section: str, values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Refuse the values of a section that are not of the types hinted, by key."""
    from pydantic import TypeAdapter, ValidationError

    for key, hint in hints.items():
        if key not in values or key in ("corpus", "tokenizers"):
            continue
        try:
            TypeAdapter(hint).validate_python(values[key], strict=not isinstance(values[key], dict))
        except ValidationError as error:
            name = f"{section}.{key}" if section else key
            expected = error.errors()[0]["msg"].removeprefix("Input should be ")
            if "Sequence" in expected:
                expected = "a list, in brackets,"
            raise HeadlabError(f"{name}={values[key]!r}: {expected} was expected") from None


def refuse_none(tree: Any, key: str) -> None:
    """Refuse the text ``None``, which in YAML is no null."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            refuse_none(value, f"{key}.{name}" if key else str(name))
    elif tree == "None":
        raise HeadlabError(f"{key}=None is the text 'None' here; write {key}=null for no value")


def nearest(word: str, known: Any) -> str:
    """The known name most like ``word``, or all of them."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"


def explain(error: Exception, config: str = "train") -> str:
    """One line for what Hydra, OmegaConf or the operating system found wrong.

    Args:
        error: what was raised.
        config: the configuration that was composed.
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'output'}: {error.strerror}"
    text = str(error)
    if isinstance(error, HeadlabError):
        return text
    inner = re.search(r"^(?:\w+Error) raised while resolving interpolation: (.*)", text)
    if inner:
        return inner.group(1)
    missing = re.search(r"Could not override '([^']+)'", text)
    if missing:
        return _explain_key(missing.group(1), config)
    group = re.search(r"Could not find '([^']+)/([^'/]+)'", text)
    if group:
        from headlab.cli.options import options_of

        options = list(options_of(group.group(1)))
        return f"{group.group(1)}={group.group(2)}: {nearest(group.group(2), options)}"
    line = text.splitlines()[0].removeprefix(f"In '{config}': ") if text else type(error).__name__
    if isinstance(error, OverrideParseException):
        line += "; put values with special characters in two pairs of quotes, as in 'key=\"a, b\"'"
    return line


def _explain_key(key: str, config: str) -> str:
    """Name the key that resembles ``key``, among all of the configuration's."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder()), version_base="1.3"):
        names = list(_keys(OmegaConf.to_container(compose(config), resolve=False), ""))
    same_section = [n for n in names if n.rpartition(".")[0] == key.rpartition(".")[0]]
    close = difflib.get_close_matches(key, names, n=1)
    if close:
        return f"{key}: no such key; did you mean {close[0]}? (a new key is written +{key})"
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
