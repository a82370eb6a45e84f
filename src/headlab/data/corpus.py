"""What every corpus shares: three splits of sentence pairs, a report of what was kept, a cache.

A corpus reads its pairs once, stores them as Arrow files in a folder named after everything that
shaped them, and loads that folder on every later run.
"""

import difflib
import hashlib
import importlib
import inspect
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headlab.data.cache import read_cache, write_cache
from headlab.data.pairs import SPLITS, Pair, SplitReport, format_report, note_shared
from headlab.data.text import is_blank
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from datasets import DatasetDict

logger = logging.getLogger("headlab")

__all__ = ["Corpus", "SplitReport", "build_corpus", "format_report"]

CACHE_LAYOUT = 1  # raise when the layout of a cache folder changes


class Corpus(ABC):
    """Sentence pairs in two languages, split into train, validation and test.

    Attributes:
        source, target: language codes (or labels) of the two sides.
        reports: after `load`, one SplitReport a split.
    """

    name: ClassVar[str]
    # Of the reading code: to be raised when the same input makes other pairs than before.
    version: ClassVar[int] = 1
    # Whether it is normal that most of what is read is dropped; no warning then.
    drops_most: ClassVar[bool] = False

    def __init__(self, source: str, target: str, root: str | Path, limit: int | None) -> None:
        self.source = checked_text(source, "source")
        self.target = checked_text(target, "target")
        if self.source == self.target:
            raise HeadlabError(
                f"data.source={source} and data.target={target} are the same; choose two languages"
            )
        self.root = absolute_path(root, "root")
        self.limit = checked_limit(limit)
        self.reports: dict[str, SplitReport] = {}

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Everything that shapes the pairs (options, content of the input), as plain JSON types."""

    @abstractmethod
    def read(self) -> dict[str, tuple[list[Pair], SplitReport]]:
        """Reads the pairs and the report of each of the three splits from their source."""

    def cache_folder(self) -> Path:
        """Where this corpus, with these options and this input, is or will be cached."""
        shaped_by = {
            "layout": CACHE_LAYOUT,
            "version": self.version,
            "source": self.source,
            "target": self.target,
            **self.identity(),
        }
        text = json.dumps(shaped_by, sort_keys=True, ensure_ascii=False)
        fingerprint = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return self.root / "cache" / f"{self.name}-{fingerprint}"

    def load(self) -> "DatasetDict":
        """The three splits, each with the string columns ``source`` and ``target``.

        Reads and caches them on the first call; writes one report line a split to the log.
        Raises HeadlabError when the input cannot be read or a split comes out empty.
        """
        folder = self.cache_folder()
        loaded = read_cache(folder)
        if loaded is None:
            loaded = self._build(folder)
        splits, self.reports = loaded
        for split in SPLITS:
            report = self.reports[split]
            logger.info(format_report(split, report))
            if report.kept * 2 < report.read and not self.drops_most:
                logger.warning("%s: MORE THAN HALF OF THE PAIRS ARE DROPPED, see above", split)
            for note in report.notes:
                logger.warning("%s: %s", split, note)
        if self.limit is not None and self.limit < len(splits["train"]):
            logger.info("train: the first %s pairs only (data.limit)", f"{self.limit:,}")
            splits["train"] = splits["train"].select(range(self.limit))
        return splits

    def _build(self, folder: Path) -> tuple["DatasetDict", dict[str, SplitReport]]:
        made = self.read()
        for split in SPLITS:
            pairs, report = made[split]
            if not pairs:
                raise HeadlabError(
                    f"data={self.name} {self.source}-{self.target}: nothing to use in the split "
                    f"{format_report(split, report)}; give a corpus with more text"
                )
        note_shared(made)
        write_cache(folder, made)
        loaded = read_cache(folder)
        if loaded is None:
            raise HeadlabError(f"{folder}: the cache just written cannot be read; check the disk")
        return loaded


def absolute_path(path: str | Path, key: str) -> Path:
    """`path` as seen from where the user stands, also when Hydra has changed the folder."""
    from hydra.utils import to_absolute_path

    if not isinstance(path, str | os.PathLike) or not str(path).strip():
        raise HeadlabError(f"data.{key}={path!r}: a path was expected")
    return Path(to_absolute_path(str(Path(path).expanduser())))


def checked_text(value: Any, key: str) -> str:
    """`value` if it is a text with something in it; otherwise HeadlabError naming data.`key`."""
    if not isinstance(value, str) or is_blank(value):
        raise HeadlabError(f"data.{key}={value!r}: a text was expected, such as data.{key}=en")
    return value


def checked_number(value: Any, key: str, low: float, high: float | None = None) -> float:
    """`value` if it is a number between `low` and `high`, both allowed; otherwise HeadlabError."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value >= low or (high is not None and value > high):
        wanted = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise HeadlabError(f"data.{key}={value!r}: a number {wanted} was expected")
    return value


def checked_share(value: Any, key: str) -> float:
    """`value` if it is a share of the pairs that can be held out; otherwise HeadlabError."""
    return checked_number(value, key, 0.001, 0.4)


def checked_limit(limit: Any) -> int | None:
    """`limit` if it is null or a whole number above zero; otherwise HeadlabError."""
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise HeadlabError(
            f"data.limit={limit!r}: a whole number above 0 was expected, or null for all pairs"
        )
    return limit


def build_corpus(config: Mapping[str, Any]) -> Corpus:
    """The corpus that a plain configuration names by its ``_target_``.

    Only corpus classes of this package are built, so that a configuration out of a checkpoint
    cannot run other code. Raises HeadlabError for a foreign or unknown class, and for missing or
    unknown keys (with the nearest known one).
    """
    arguments = {key: value for key, value in config.items() if not key.startswith("_")}
    target = config.get("_target_")
    module_name, _, class_name = str(target).rpartition(".")
    if not module_name.startswith("headlab.data."):
        raise HeadlabError(f"data._target_={target}: not a corpus class below headlab.data")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError):
        raise HeadlabError(f"data._target_={target}: there is no such corpus class") from None
    if not (inspect.isclass(found) and issubclass(found, Corpus)) or inspect.isabstract(found):
        raise HeadlabError(f"data._target_={target}: not a corpus class below headlab.data")
    parameters = inspect.signature(found).parameters
    for key in arguments:
        if key not in parameters:
            raise HeadlabError(f"data.{key}: unknown key; {nearest(key, parameters)}")
    missing = [
        key
        for key, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and key not in arguments
    ]
    if missing:
        keys = ", ".join(f"data.{key}" for key in missing)
        raise HeadlabError(f"{found.name}: {keys} missing; give each a value")
    corpus: Corpus = found(**arguments)
    return corpus


def nearest(word: str, known: Iterable[str]) -> str:
    """``did you mean "x"?`` when something in `known` resembles `word`, else all of `known`."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f'did you mean "{close[0]}"?'
    return f"known are {', '.join(names)}"
