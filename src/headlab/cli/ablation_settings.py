"""The settings of ``headlab ablate``: composed from configs/ablate.yaml, and what is wrong."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from headlab.cli import configuration
from headlab.errors import HeadlabError
from headlab.heads.ablation import METRICS, TESTED

CONFIG = "ablate"

Split = Literal["train", "validation", "test"]

# The types of all keys, by section; keys of a plan by its kind.
HINTS: dict[str, dict[str, Any]] = {
    "": {
        "split": Split,
        "source": str | None,
        "reference": str | None,
        "sentences": int | None,
        "metrics": Sequence[Literal["bleu", "chrf", "nll"]],
        "lowercase": bool | None,
        "threads": int | None,
        "device": str,
    },
    "decoding": {
        "beam": int | None,
        "length_penalty": float | None,
        "max_ratio": float | None,
        "max_extra": float | None,
        "batch_tokens": int | None,
    },
    "significance": {"level": float, "resamples": int, "seed": int},
    "figures": {"decimals": int, "dpi": int},
}
PLANS: dict[str, dict[str, Any]] = {
    "each_head": {},
    "all_but_one": {
        "keep": Literal["best", "each"],
        "choose_on": Split,
        "choose_by": Literal["bleu", "nll"],
    },
    "each_layer": {},
    "each_site": {},
    "random": {"k": Sequence[int], "draws": int, "seed": int},
    "list": {},
}

# Key -> its smallest and largest value.
RANGES = {
    "sentences": (1, None),
    "threads": (1, 1024),
    "significance.resamples": (1, 10_000_000),
    "significance.seed": (0, 2**32 - 1),
    "figures.decimals": (0, 6),
    "figures.dpi": (20, 600),
    "ablation.draws": (1, 100_000),
    "ablation.seed": (0, 2**32 - 1),
}


def read_settings(overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration with these overrides, in plain types.

    Raises:
        HeadlabError: one line that names the key, the value and what was expected.
    """
    for text in overrides:
        if text.startswith("-"):
            name = text.lstrip("-").partition("=")[0]
            raise HeadlabError(
                f"{text}: settings are written key=value here, such as {name or 'split'}=..."
            )
        if text in ("ablation=", "ablation=null"):
            raise HeadlabError(f"{text}: choose from {', '.join(PLANS)}")
    settings = _composed(overrides)
    _check(settings)
    return settings


def _composed(overrides: Sequence[str]) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(configuration.folder()), version_base="1.3"):
            composed = compose(CONFIG, overrides=list(overrides))
        settings: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except Exception as error:  # whatever Hydra finds wrong with the command line
        raise HeadlabError(configuration.explain(error, CONFIG)) from error
    return settings


def _check(settings: Mapping[str, Any]) -> None:
    configuration.refuse_none(settings, "")
    plan = settings.get("ablation")
    kind = plan.get("kind") if isinstance(plan, Mapping) else None
    if kind not in PLANS:
        raise HeadlabError(f"ablation.kind={kind}: choose from {', '.join(PLANS)}")
    sections = {**HINTS, "ablation": {"kind": str, "heads": Sequence[str] | None, **PLANS[kind]}}
    for section, hints in sections.items():
        values = settings.get(section) if section else settings
        if not isinstance(values, Mapping):
            raise HeadlabError(f"{section}={values}: a group of keys was expected")
        known = {*hints, *(sections if not section else ())} - {""}
        for key in values:
            if key not in known:
                name = f"{section}.{key}" if section else key
                nearest = configuration.nearest(key, sorted(known))
                raise HeadlabError(f"{name}: no such key; {nearest}")
        missing = sorted(set(hints) - set(values))
        if missing:
            name = f"{section}.{missing[0]}" if section else missing[0]
            raise HeadlabError(f"{name} is missing; give it a value")
        configuration.check_types(section, values, hints)
    _check_ranges(settings)
    _check_together(settings)


def _check_ranges(settings: Mapping[str, Any]) -> None:
    for name, (least, most) in RANGES.items():
        section, _, key = name.rpartition(".")
        value = (settings[section] if section else settings).get(key)
        if value is not None and (value < least or (most is not None and value > most)):
            allowed = f"be at least {least}" if most is None else f"lie between {least} and {most}"
            raise HeadlabError(f"{name}={value} must {allowed}")
    k = settings["ablation"].get("k")
    if k is not None and (not k or min(k) < 1):
        raise HeadlabError(f"ablation.k={k} must hold numbers of at least 1, such as [1,2,4]")
    given = {key: value for key, value in settings["decoding"].items() if value is not None}
    usual = {"beam": 1, "length_penalty": 1.0, "max_ratio": 1.0, "max_extra": 1.0}
    configuration.check_decoding({"batch_tokens": 1, **usual, **given})


def _check_together(settings: Mapping[str, Any]) -> None:
    """Values that are right by themselves but do not go together."""
    metrics, plan, tests = settings["metrics"], settings["ablation"], settings["significance"]
    if not metrics:
        raise HeadlabError(f"metrics=[]: choose some of {', '.join(METRICS)}")
    level, resamples = tests["level"], tests["resamples"]
    if not 0 < level < 1:
        raise HeadlabError(f"significance.level={level} must lie between 0 and 1")
    if 1 / (resamples + 1) >= level and set(metrics) & set(TESTED):
        raise HeadlabError(
            f"significance.resamples={resamples}: no p-value can lie below "
            f"significance.level={level}; use at least {int(1 / level)}"
        )
    if plan.get("keep") == "best" and plan["choose_by"] not in metrics:
        raise HeadlabError(
            f"ablation.choose_by={plan['choose_by']} is not among metrics="
            f"[{','.join(metrics)}]; add it, or set ablation.choose_by"
        )
    if settings["source"] is None and settings["reference"] is not None:
        raise HeadlabError("reference needs source, the sentences that it translates")
