"""What ``headlab prune`` keeps and prints."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.table import Table

from headlab.checkpoint import Loaded
from headlab.cli import configuration
from headlab.cli.streams import print_table
from headlab.head_names import SITES, TITLES, compress
from headlab.heads.curves import pruning_curve
from headlab.heads.measure import Measurement, Measurer
from headlab.heads.pruning import Point
from headlab.heads.significance import bleu_p_value, likelihood_p_value
from headlab.heads.study import Study

NAMES = {"bleu": ("BLEU", 2), "chrf": ("chrF", 2), "nll": ("loss", 3)}  # and decimals
NOT_COMPARED = ("step", "kept")


class Report:
    """The curve, and before and after.

    Args:
        points: one a step, the whole model first.
        kept: which of them was kept.
        choose_on, split: the splits that decided, and that are reported.
    """

    def __init__(self, points: Sequence[Point], kept: int, choose_on: str, split: str) -> None:
        self.points, self.kept = points, kept
        self.choose_on, self.split = choose_on, split
        self.rows = [point.row(choose_on, split) for point in points]
        for row, point in zip(self.rows, points, strict=True):
            row["kept"] = point.step == kept
            row["cut"] = compress(point.cut)
        self.p_values: dict[str, float] = {}

    def compare(self, measurer: Measurer) -> None:
        """Test what changed on the reported split, with the settings of ``headlab ablate``."""
        before, after = self.points[0].reported, self.points[self.kept].reported
        found = _p_values(measurer, before, after)
        self.p_values = {f"{self.split}_{name}": value for name, value in found.items()}

    def keep(self, study: Study, title: str, max_bleu_drop: float | None) -> None:
        """Tables, figure and numbers, into the study's folder."""
        before, after = self.rows[0], self.rows[self.kept]
        study.table("curve", self.rows)
        compared = {
            key: value
            for key, value in before.items()
            if isinstance(value, int | float) and key not in NOT_COMPARED
        }
        changes = [
            {
                "quantity": key,
                "before": value,
                "after": after[key],
                "change": after[key] - value,
                "p_value": self.p_values.get(key),
            }
            for key, value in compared.items()
        ]
        study.table("result", changes)
        lowest = None
        if max_bleu_drop is not None:
            lowest = before[f"{self.choose_on}_bleu"] - max_bleu_drop
        figure = pruning_curve(
            self.rows, title, self.choose_on, self.split, chosen=self.kept, lowest=lowest
        )
        study.figure("curve", figure)
        study.scalars({key: after[key] for key in compared})

    def show(self) -> None:
        """Print a line a step, then what is left and what it cost."""
        splits = dict.fromkeys((self.choose_on, self.split))
        table = Table("step", title="heads left, and what the model is worth")
        columns = ["heads", "enc/dec/cross", "parameters", *(f"BLEU\n{s}" for s in splits), "speed"]
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(
                f"{row['step']}{' kept' if row['kept'] else ''}",
                str(row["heads"]),
                "/".join(str(row[site]) for site in SITES),
                f"{row['parameters']:,}",
                *(f"{row[f'{name}_bleu']:.2f}" for name in splits),
                f"x {row['speed_ratio']:.2f}",
            )
        print_table(table)
        self._show_result()

    def _show_result(self) -> None:
        before, after = self.rows[0], self.rows[self.kept]
        point = self.points[self.kept]
        print(f"heads       {before['heads']} -> {after['heads']}; left are")
        for site in SITES:
            left = compress(one for one in point.left if one.site == site)
            print(f"  {TITLES[site]}: {', '.join(left) or 'none'}")
        print(f"parameters  {before['parameters']:,} -> {after['parameters']:,}")
        for name, (label, digits) in NAMES.items():
            key = f"{self.split}_{name}"
            first, second = before[key], after[key]
            if first is None or second is None:
                continue
            line = f"{first:.{digits}f} -> {second:.{digits}f} ({second - first:+.{digits}f}"
            p_value = self.p_values.get(key)
            line += ")" if p_value is None else f", p = {p_value:.3f})"
            print(f"{f'{self.split} {label}':<12}{line}")
        speeds = point.speeds
        change = f"{speeds.before:,.0f} -> {speeds.after:,.0f} target tokens a second"
        print(f"speed       {change} (x {speeds.ratio:.2f})")


def significance_settings() -> dict[str, int]:
    """Of the tests of what changed: those of ``headlab ablate``."""
    settings: Any = OmegaConf.load(configuration.folder() / "ablate.yaml").significance
    return {"resamples": int(settings.resamples), "seed": int(settings.seed)}


def _p_values(measurer: Measurer, before: Measurement, after: Measurement) -> dict[str, float]:
    drawn = significance_settings()
    lowercase, tokenize = measurer.scoring
    return {
        "bleu": bleu_p_value(
            before.hypotheses or [],
            after.hypotheses or [],
            measurer.references or [],
            lowercase=lowercase,
            tokenize=tokenize,
            **drawn,
        ),
        "nll": likelihood_p_value(before.losses, after.losses, **drawn),
    }


def from_scratch(checkpoint: Path, whole: Loaded, pruned: Loaded) -> str:
    """The command that trains a new model with the same heads (Voita et al. 2019, table 2).

    What the run's folder says was typed, where that gives the configuration of ``whole``; a
    checkpoint may have been copied away from its run, or have begun from another one.
    """
    ablate = f"model.ablate=[{','.join(pruned.model.hparams['ablate'])}]"
    typed = checkpoint.parent / ".hydra" / "overrides.yaml"
    if typed.is_file():
        found: Any = OmegaConf.to_container(OmegaConf.load(typed))
        overrides = [str(text) for text in found if not str(text).startswith("model.ablate=")]
        if _gives(overrides, whole.config):
            return " ".join(map(shlex.quote, ["python", "train.py", *overrides, ablate]))
    return f"the command that trained {checkpoint.name}, with {shlex.quote(ablate)} behind it"


def _gives(overrides: list[str], config: Mapping[str, Any]) -> bool:
    """Whether these overrides compose the model and the training of ``config``."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    configuration.register_resolvers()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(configuration.folder()), version_base="1.3"):
            composed: Any = OmegaConf.to_container(compose("train", overrides), resolve=True)
    except Exception:  # overrides of another version, or none of ours
        return False
    same = all(
        composed.get(key) == config.get(key) for key in ("tokenizer", "optimizer", "schedule")
    )
    models = [{**one.get("model", {}), "ablate": []} for one in (composed, config)]
    corpora = [
        [one.get("data", {}).get(key) for key in ("_target_", "source", "target")]
        for one in (composed, config)
    ]
    fresh = composed.get("init_from") is None and composed.get("resume") is None
    return fresh and same and models[0] == models[1] and corpora[0] == corpora[1]


def title_of(by: str, settings: Mapping[str, Any], name: str) -> str:
    """Of the figure."""
    epochs = settings["finetune_epochs"]
    unit = "epoch" if epochs == 1 else "epochs"
    tuned = "" if epochs is None else f", {epochs} {unit} of fine-tuning after each step"
    return f"{name}: pruned by {by}{tuned}"
