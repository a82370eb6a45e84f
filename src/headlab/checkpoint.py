"""Checkpoints: plain tensors and plain types, written atomically, never unpickled as code."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headlab.data.tokenizer import Tokenizers
from headlab.errors import HeadlabError
from headlab.files import replace_file
from headlab.transformer import Transformer

FORMAT = 1  # raise it when older checkpoints can no longer be read

MODEL_PREFIX = "model."  # the Transformer's name inside the Lightning module


@dataclass(frozen=True)
class Loaded:
    """What a checkpoint holds for everything but going on with its training."""

    model: Transformer  # in evaluation mode
    tokenizers: Tokenizers
    config: dict[str, Any]  # the whole resolved configuration of the run
    step: int  # optimizer steps taken
    path: Path


def contents(model: Transformer, tokenizers: Tokenizers, config: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint carries so that the model can be rebuilt from the file alone."""
    return {
        "format": FORMAT,
        "model": model.hparams,
        "tokenizers": tokenizers.state(),
        "config": config,
    }


def read_raw(path: str | Path) -> dict[str, Any]:
    """Load the checkpoint's dictionary on the CPU, refusing anything that is not plain data.

    Raises:
        HeadlabError: the file is missing, cut short, or not a Headlab checkpoint.
    """
    path = Path(path)
    try:
        missing = not path.is_file()
    except OSError as error:  # a name that cannot be one, such as a sentence
        raise HeadlabError(f"no checkpoint at {str(path)[:60]}... ({error.strerror})") from None
    if missing:
        there = sorted(str(p) for p in path.glob("**/*.ckpt")) if path.is_dir() else []
        hint = f"; did you mean {there[0]}?" if there else ""
        raise HeadlabError(f"no checkpoint at {path}{hint}")
    try:
        raw = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or foreign file makes the reader raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HeadlabError(
            f"{path} is not a readable checkpoint ({reason[:120]}); it may be cut short or come "
            "from another program"
        ) from error
    ours = isinstance(raw, dict) and isinstance(raw.get("headlab"), dict) and "state_dict" in raw
    if not ours:
        raise HeadlabError(f"{path} was not written by Headlab")
    if raw["headlab"].get("format") != FORMAT:
        raise HeadlabError(
            f"{path} has format {raw['headlab'].get('format')}, this version reads {FORMAT}; "
            "use the version of Headlab that wrote it"
        )
    return raw


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run without learnt gates: they are folded into the weights it reads.

    Where the best checkpoint was chosen by ``val/objective``, which has the gates' penalty in it,
    it is then chosen by ``val/loss``.
    """
    config = dict(config)
    if config.get("gates") is None:
        return config
    callbacks = dict(config["callbacks"])
    if callbacks["checkpoints"]["monitor"] == "val/objective":
        callbacks["checkpoints"] = {**callbacks["checkpoints"], "monitor": "val/loss"}
    return config | {"gates": None, "callbacks": callbacks}


def read_checkpoint(path: str | Path, device: str | torch.device = "cpu") -> Loaded:
    """Rebuild the model and the tokenizers from a checkpoint alone.

    Gates that the run was learning are multiplied into the weights, as validation took them, and
    heads that they close are cut: the model computes what was validated.

    Raises:
        HeadlabError: as ``read_raw``, or the weights do not fit the model described beside them.
    """
    raw = read_raw(path)
    described = raw["headlab"]
    model = Transformer(**described["model"])
    weights = {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in raw["state_dict"].items()
        if name.startswith(MODEL_PREFIX)
    }
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise HeadlabError(f"{path}: the weights do not fit the model it describes") from error
    if described.get("gates") is not None:
        model = _fold_learnt_gates(model, described["gates"], raw["state_dict"])
    tokenizers = Tokenizers.from_state(described["tokenizers"])
    model, config = model.to(device).eval(), plain_config(described["config"])
    return Loaded(model, tokenizers, config, int(raw["global_step"]), Path(path))


def _fold_learnt_gates(
    model: Transformer, settings: dict[str, Any], state: dict[str, torch.Tensor]
) -> Transformer:
    # Here: the laboratory imports this module.
    from headlab.heads.hard_concrete import HardConcreteGates
    from headlab.heads.surgery import fold_gates

    gates = HardConcreteGates.of_model(model, **settings)
    values = {k.removeprefix("gates."): v for k, v in state.items() if k.startswith("gates.")}
    gates.load_state_dict(values)
    with torch.no_grad():
        return fold_gates(model, gates.evaluation())


def save_checkpoint(path: str | Path, loaded: Loaded, model: Transformer) -> None:
    """Write ``model`` as a checkpoint of its own: ``loaded`` with other weights, or fewer heads.

    It holds no state of the training; a new run can start from it.

    Args:
        path: replaced whole or not at all.
        loaded: where tokenizers, configuration and step come from.
        model: the network; its missing heads and its attention go into the configuration.
    """
    changed = {key: model.hparams[key] for key in ("ablate", "attention")}
    config = loaded.config | {"model": loaded.config.get("model", {}) | changed}
    if "attention" in config:
        config["attention"] = changed["attention"]
    weights = {MODEL_PREFIX + name: tensor for name, tensor in model.state_dict().items()}
    raw = {
        "headlab": contents(model, loaded.tokenizers, config),
        "state_dict": weights,
        "global_step": loaded.step,
    }
    replace_file(path, lambda file: torch.save(raw, file))
