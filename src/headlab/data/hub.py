"""Data sets of the Hugging Face hub, or folders that the datasets library can read."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlab.data.cache import quiet_datasets
from headlab.data.columns import ColumnNames, TextOrNone
from headlab.data.corpus import Corpus, absolute_path, checked_share, checked_text
from headlab.data.pairs import Pair, SplitReport
from headlab.data.splits import complete
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from datasets import DatasetDict

NETWORK_SECONDS = 5.0

# What data sets call their splits.
ALIASES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


class Hub(Corpus):
    """Any data set with a ``translation`` column or with two named columns of text.

    Args:
        source, target: language codes, in the order wanted; the data set may have the other.
        root: folder for what is loaded and for the cache.
        limit: keep only that many training pairs; null keeps all.
        path: name on the hub (``Helsinki-NLP/opus_books``) or a local folder.
        config: the data set's own configuration (``en-fr``); null takes the one named after the
            two languages in either order, or the only one.
        revision: branch, tag or commit on the hub; null is the newest at the first load.
        source_column, target_column: null looks for columns named like the languages, then for
            ``translation``.
        validation_share, test_share: held out of train when the data set lacks such a split.
    """

    name = "hub"
    version = 1

    def __init__(
        self,
        source: str,
        target: str,
        root: str | Path,
        limit: int | None,
        path: str | None,
        config: str | None,
        revision: str | None,
        source_column: str | None,
        target_column: str | None,
        validation_share: float,
        test_share: float,
    ) -> None:
        super().__init__(source, target, root, limit)
        if path is None:
            raise HeadlabError("data.path is not set; give data.path=Helsinki-NLP/opus_books")
        self.path = checked_text(path, "path")
        self.config = config
        self.revision = revision
        self.columns = ColumnNames(self.source, self.target, source_column, target_column)
        self.shares = {
            "validation": checked_share(validation_share, "validation_share"),
            "test": checked_share(test_share, "test_share"),
        }
        folder = absolute_path(self.path, "path")
        self.folder = folder if folder.is_dir() else None

    def identity(self) -> dict[str, Any]:
        """Options; for a local folder also names, sizes and times of its files."""
        files = sorted(self.folder.rglob("*")) if self.folder else []
        return {
            "path": str(self.folder or self.path),
            "files": [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files],
            "config": self.config,
            "revision": self.revision,
            "columns": (self.columns.given, self.columns.source, self.columns.target),
            "shares": self.shares,
        }

    def read(self) -> dict[str, tuple[list[Pair], SplitReport]]:
        """Loads the data set, takes its pairs, and holds out the splits that it lacks."""
        place = str(self.folder or self.path)
        loaded = load_from_hub(
            place,
            config=self.config,
            languages=(self.source, self.target),
            revision=self.revision,
            cache=self.root / "hub",
        )
        found = hub_splits(loaded, place, self.columns)
        return complete(found, self.shares)


def load_from_hub(
    path: str,
    *,
    config: str | None,
    languages: tuple[str, str],
    revision: str | None,
    cache: Path,
) -> "DatasetDict":
    """All splits of a data set on the hub or in a local folder.

    Raises HeadlabError, within seconds when there is no network, for whatever stands in the way.
    """
    from datasets import DatasetDict, load_dataset

    local = Path(path).is_dir()
    if not local:
        _look_up(path, revision)
    with _one_line(path), quiet_datasets() if local else contextlib.nullcontext():
        chosen = config if local else _config(path, config, languages, revision)
        loaded = load_dataset(path, chosen, revision=revision, cache_dir=str(cache))
    if not isinstance(loaded, DatasetDict):
        raise HeadlabError(f"data.path={path}: a data set with splits was expected")
    return loaded


def hub_splits(
    loaded: "DatasetDict", path: str, columns: ColumnNames
) -> dict[str, Iterator[tuple[TextOrNone, TextOrNone]]]:
    """The pairs of those of the three splits that the data set has, whatever it calls them."""
    names = {
        split: next((alias for alias in aliases if alias in loaded), None)
        for split, aliases in ALIASES.items()
    }
    if names["train"] is None:
        raise HeadlabError(f"data.path={path}: no train split, there are {', '.join(loaded)}")
    return {
        split: columns.table(loaded[name].with_format("arrow")[:], f"{path}, {name}")
        for split, name in names.items()
        if name is not None
    }


def _look_up(path: str, revision: str | None) -> None:
    """Asks the hub for the data set once, with a short limit: the loader itself would try again
    and again for half a minute when there is no network."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError

    if constants.HF_HUB_OFFLINE:
        return  # the loader does not try the network then, and may have the data set at hand
    try:
        HfApi().dataset_info(path, revision=revision, timeout=NETWORK_SECONDS)
    except GatedRepoError:
        raise HeadlabError(
            f"data.path={path}: its owners give access on request; ask for it on the hub and "
            "log in with `hf auth login`"
        ) from None
    except (HfHubHTTPError, HFValidationError) as error:
        reason = " ".join(str(error).split())[:160]
        raise HeadlabError(
            f"data.path={path}: neither a folder here nor a data set on the hub ({reason})"
        ) from None
    # Each version of the hub's library raises connection errors of another family.
    except Exception as error:
        raise HeadlabError(_no_network(path, error)) from None


def _no_network(path: str, error: Exception) -> str:
    return (
        f"data.path={path}: the Hugging Face hub cannot be reached ({type(error).__name__}); with "
        "no network, choose data=files, data=multi30k data.path=FOLDER, or data=home_assistant "
        "(needs only pip's package index)"
    )


def _config(
    path: str, config: str | None, languages: tuple[str, str], revision: str | None
) -> str | None:
    from datasets import get_dataset_config_names

    if config is not None:
        return config
    known: list[str] = get_dataset_config_names(path, revision=revision)
    return choose_config(path, known, languages)


def choose_config(path: str, known: list[str], languages: tuple[str, str]) -> str | None:
    """The configuration for two languages, named ``en-fr`` or ``fr-en`` (or with an underscore);
    else the only one. Raises HeadlabError naming all when the choice is the user's."""
    for mark in ("-", "_"):
        for name in (mark.join(languages), mark.join(reversed(languages))):
            if name in known:
                return name
    if len(known) <= 1:
        return known[0] if known else None
    raise HeadlabError(
        f"data.path={path}: no configuration for {'-'.join(languages)}; choose one with "
        f"data.config: {' '.join(known[:60])}{' ...' if len(known) > 60 else ''}"
    )


@contextlib.contextmanager
def _one_line(path: str) -> Iterator[None]:
    """Turns what the loader raises, of a dozen unrelated classes, into one line."""
    try:
        yield
    except HeadlabError:
        raise
    except ConnectionError as error:
        raise HeadlabError(_no_network(path, error)) from error
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())[:240]
        raise HeadlabError(f"data.path={path}: cannot be loaded ({reason})") from error
