"""Keys of the configuration's attention section that would go unnoticed."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from headlab.attention import READ_BY, kind_at
from headlab.attention.build import HYBRID
from headlab.cli import configuration
from headlab.errors import HeadlabError
from headlab.head_names import SITES


def check_attention_keys(config: Mapping[str, Any]) -> None:
    """Refuse a key that no chosen kind of attention reads, and a hybrid without its softmax.

    Such a key would be ignored, and the user think that something else was trained.

    Raises:
        HeadlabError: names the key and the kinds that read it.
    """
    attention = config["attention"]
    shared = attention.get("kind") or "mha"
    kinds = {site: attention.get(site) or shared for site in SITES}
    try:
        for site in SITES:
            kind_at(attention, site, 0)
    except ValueError as error:
        raise HeadlabError(str(error)) from error
    base = OmegaConf.load(configuration.folder() / "attention" / "base.yaml")
    assert isinstance(base, DictConfig)
    for key, readers in READ_BY.items():
        default = base.get(key, True)  # latent_norm, which only a conversion sets
        value = attention.get(key, default)
        if value != default and not set(kinds.values()) & set(readers):
            raise HeadlabError(
                f"attention.{key}={value} is read by {', '.join(readers)} only, and none of them "
                f"is chosen (attention.kind={shared}); take it away, or choose one"
            )
    rope_dim = attention.get("rope_dim", base.rope_dim)
    if rope_dim != base.rope_dim and config["position"].get("kind") != "rope":
        raise HeadlabError(
            f"attention.rope_dim={rope_dim} is read in position=rope only; take it away"
        )
    layers = config["model"]["decoder_layers"]
    every = attention.get("softmax_every", base.softmax_every)
    if kinds["decoder"] == HYBRID and every > layers:
        raise HeadlabError(
            f"attention.softmax_every={every} leaves no layer with softmax attention among "
            f"model.decoder_layers={layers}; set attention.softmax_every={layers}, or "
            "attention.decoder=deltanet if that is wanted"
        )
