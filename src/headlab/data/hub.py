"""Data sets of the Hugging Face hub, or folders that the datasets library can read."""

import contextlib
import glob
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlab.data.cache import quiet_datasets, temporary_folder
from headlab.data.columns import ColumnNames, TextOrNone
from headlab.data.corpus import Corpus, absolute_path, checked_share, checked_text
from headlab.data.pairs import Pair, SplitReport
from headlab.data.splits import complete
from headlab.data.tables import Rows, read_csv, read_json, read_parquet, read_tsv
from headlab.data.text import sha256_of
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from datasets import DatasetBuilder

NETWORK_SECONDS = 5.0
KEY = "data.path"

# Endings of files that only the library unpacks.
PACKED = {".zip", ".bz2", ".xz", ".zst", ".lz4", ".7z", ".tar"}

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
    version = 2

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
        """Options; a local folder by the content of its files, one on the hub by its name."""
        content: Any = self.path
        if self.folder is not None:
            content = [
                (name, sha256_of(self.folder / name, "data.path"))
                for name in sorted(glob.glob("**", root_dir=self.folder, recursive=True))
                if (self.folder / name).is_file()
            ]
        return {
            "content": content,
            "config": self.config,
            "revision": self.revision,
            "columns": (self.columns.given, self.columns.source, self.columns.target),
            "shares": self.shares,
        }

    def read(self) -> dict[str, tuple[list[Pair], SplitReport]]:
        """Loads the data set, takes its pairs, and holds out the splits that it lacks."""
        options: Any = {"config": self.config, "languages": (self.source, self.target)}
        cache = self.root / "hub"
        if self.folder is None:
            found = load_from_hub(
                self.path, self.columns, **options, revision=self.revision, cache=cache
            )
            return complete(found, self.shares)
        # The library's own cache goes by names, sizes and times: what it makes here is not kept.
        with temporary_folder(cache, "local") as cache, quiet_datasets():
            found = load_from_hub(
                str(self.folder), self.columns, **options, revision=None, cache=cache
            )
            return complete(found, self.shares)


def load_from_hub(
    path: str,
    columns: ColumnNames,
    *,
    config: str | None,
    languages: tuple[str, str],
    revision: str | None,
    cache: Path,
) -> dict[str, Iterable[tuple[TextOrNone, TextOrNone]]]:
    """The pairs of those of the three splits that a data set has, whatever it calls them.

    Args:
        path: its name on the hub, or a local folder.
        columns: where the texts stand.
        config, languages, revision: see ``Hub``.
        cache: for what the library makes of it.

    Raises HeadlabError, within seconds when there is no network, for whatever stands in the way.
    """
    from datasets import load_dataset_builder

    local = Path(path).is_dir()
    if not local:
        _look_up(path, revision)
    with _one_line(path, cache, local):
        chosen = config if local else _config(path, config, languages, revision)
        options: Any = {"revision": revision, "cache_dir": str(cache)}
        builder = load_dataset_builder(path, chosen, **options)
        files = _files(builder)
        if local and (read := _reader(builder, files, columns)):
            return {
                split: chain.from_iterable(map(read, files[name]))
                for split, name in _named(path, files).items()
            }
        if builder.name == "csv":  # texts as they are: no word means "missing", none is a number
            options["converters"] = dict.fromkeys((columns.source, columns.target), str)
            builder = load_dataset_builder(path, chosen, **options, keep_default_na=False)
        builder.download_and_prepare()
        loaded: Any = builder.as_dataset()
    return {
        split: columns.table(loaded[name].with_format("arrow")[:], f"{path}, {name}")
        for split, name in _named(path, loaded).items()
    }


def _files(builder: "DatasetBuilder") -> dict[str, list[Path]]:
    """The files of each split of a data set that is made of files."""
    found: Any = builder.config.data_files or {}
    return {str(split): list(map(Path, files)) for split, files in found.items()}


def _reader(
    builder: "DatasetBuilder", files: Mapping[str, Sequence[Path]], columns: ColumnNames
) -> Callable[[Path], Rows] | None:
    """What reads the files of a local data set; None where it takes the library."""
    settings: Any = builder.config
    endings = {file.suffix.lower() for some in files.values() for file in some}
    if endings & PACKED:
        return None
    if builder.name == "csv":
        usual = type(settings)(sep=settings.sep)
        if settings.pd_read_csv_kwargs != usual.pd_read_csv_kwargs or len(settings.sep) != 1:
            return None
        if settings.sep == "\t":
            return partial(read_tsv, columns=columns, key=KEY, header=True)
        return partial(read_csv, columns=columns, key=KEY, separator=settings.sep)
    if builder.name == "json" and getattr(settings, "field", None) is None:
        return partial(read_json, columns=columns, key=KEY)
    return partial(read_parquet, columns=columns, key=KEY) if builder.name == "parquet" else None


def _named(path: str, there: Iterable[str]) -> dict[str, str]:
    """Split -> what the data set calls it, of those that it has."""
    there = list(map(str, there))
    names = {
        split: next((alias for alias in aliases if alias in there), None)
        for split, aliases in ALIASES.items()
    }
    if names["train"] is None:
        raise HeadlabError(f"data.path={path}: no train split, there are {', '.join(there)}")
    return {split: name for split, name in names.items() if name is not None}


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
def _one_line(path: str, cache: Path, local: bool) -> Iterator[None]:
    """Turns what the loader raises, of a dozen unrelated classes, into one line."""
    try:
        yield
    except HeadlabError:
        raise
    except ConnectionError as error:
        raise HeadlabError(_no_network(path, error)) from error
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())[:240]
        hint = "" if local or not cache.is_dir() else f"; if {cache} may be damaged, delete it"
        raise HeadlabError(f"data.path={path}: cannot be loaded ({reason}){hint}") from error
