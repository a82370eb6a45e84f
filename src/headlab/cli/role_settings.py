"""The settings of ``headlab roles``: configs/roles.yaml with the command line's changes."""

import math
from collections.abc import Sequence
from typing import Any, get_type_hints

from omegaconf import OmegaConf

from headlab.cli import configuration
from headlab.errors import HeadlabError
from headlab.heads.role_names import RoleSettings

# Key -> its smallest and largest value.
RANGES = {
    **dict.fromkeys(("even", "sink", "positional", "rare_word", "aligned"), (0.0, 1.0)),
    "diagonal": (-math.inf, 1.0),
    "syntactic": (1.0, math.inf),
    **dict.fromkeys(("instances", "iterations", "lexicon_pairs", "batch_tokens"), (1, math.inf)),
    "frequent": (0, math.inf),
}


def read_role_settings(overrides: Sequence[str]) -> RoleSettings:
    """The thresholds, with overrides written ``key=value``.

    Raises:
        HeadlabError: one line that names the key, the value and what was expected.
    """
    config = OmegaConf.load(configuration.folder() / "roles.yaml")
    values: Any = OmegaConf.to_container(config)
    hints = get_type_hints(RoleSettings)
    for text in overrides:
        key, equals, _ = text.partition("=")
        if not equals:
            raise HeadlabError(f"{text}: settings are written key=value, such as positional=0.8")
        if key not in values:
            raise HeadlabError(f"{key}: no such key; {configuration.nearest(key, values)}")
        try:
            given: Any = OmegaConf.to_container(OmegaConf.from_dotlist([text]))
        except Exception as error:  # whatever its reader finds wrong with the text
            raise HeadlabError(f"{text}: {str(error).splitlines()[0]}") from None
        values[key] = given[key]
        if hints[key] is float and type(values[key]) is int:
            values[key] = float(values[key])
    configuration.check_types("", values, hints)
    for key, (least, most) in RANGES.items():
        if not least <= values[key] <= most:
            allowed = (
                f"be at least {least:g}" if most == math.inf else f"lie in [{least:g}, {most:g}]"
            )
            raise HeadlabError(f"{key}={values[key]} must {allowed}")
    return RoleSettings(**values)
