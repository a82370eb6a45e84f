"""Where a run's weights come from: a training that goes on, or a checkpoint to start from."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headlab.checkpoint import Loaded, read_checkpoint, read_raw
from headlab.errors import HeadlabError
from headlab.head_names import Head, heads_of, parse_heads
from headlab.heads.surgery import cut_heads
from headlab.transformer import Transformer


def training_state(path: Path) -> dict[str, Any]:
    """The content of a checkpoint that a training can go on from.

    Raises:
        HeadlabError: the file cannot be read, or holds a model only.
    """
    raw = read_raw(path)
    if "loops" not in raw or "optimizer_states" not in raw:
        raise HeadlabError(
            f"resume={path} holds a model but no state of a training; train on from its weights "
            f"with init_from={path}"
        )
    return raw


def starting_point(config: Mapping[str, Any]) -> Loaded:
    """What ``init_from`` names, without the heads that ``model.ablate`` adds to its missing ones.

    Raises:
        HeadlabError: the file cannot be read, or ``model.ablate`` names heads that no layer had.
    """
    loaded = read_checkpoint(config["init_from"])
    model = loaded.model
    ablate = config["model"].get("ablate") or []
    heads = parse_heads(ablate, all_heads(model), "model.ablate") if ablate else []
    gone = [head for head in heads if head in set(model.head_names)]
    return replace(loaded, model=cut_heads(model, gone)) if gone else loaded


def all_heads(model: Transformer) -> list[Head]:
    """The heads that the model would have if none were missing."""
    return heads_of({site: [range(model.heads)] * len(of) for site, of in model.kept.items()})


def take_weights(model: Transformer, start: Loaded) -> None:
    """Copy the weights of ``start`` into a model of the same shape.

    Raises:
        HeadlabError: the shapes differ.
    """
    try:
        model.load_state_dict(start.model.state_dict())
    except RuntimeError as error:
        raise HeadlabError(
            f"init_from={start.path}: its weights do not fit model.*, attention.* and position.* "
            "of this run; take them from its configuration"
        ) from error
