"""Multi30k: captions of 31,000 pictures, in English and translated."""

from pathlib import Path
from typing import Any

from headlab.data.columns import ColumnNames
from headlab.data.corpus import Corpus, absolute_path, checked_text
from headlab.data.files import read_aligned
from headlab.data.hub import load_from_hub
from headlab.data.pairs import Pair, SplitReport, keep_visible
from headlab.data.text import sha256_of
from headlab.errors import HeadlabError

HUB_NAME = "bentrevett/multi30k"
HUB_LANGUAGES = ("de", "en")
HUB_TEST = "test_2016_flickr"
RAW_FOLDER = Path("data/task1/raw")  # where the public repository keeps the files


class Multi30k(Corpus):
    """The raw text of task 1, out of a folder of the public repository's files or from the hub.

    Args:
        source, target: en, de, fr, ... as the folder has them; from the hub only de and en.
        root: folder for the cache.
        limit: keep only that many training pairs; null keeps all.
        path: folder with ``train``, ``val`` and the test set as ``NAME.LANGUAGE`` or
            ``NAME.LANGUAGE.gz``; null loads from the hub.
        test_split: the test set, such as test_2016_flickr, test_2017_flickr, test_2017_mscoco.
    """

    name = "multi30k"
    version = 1

    def __init__(
        self,
        source: str,
        target: str,
        root: str | Path,
        limit: int | None,
        path: str | None,
        test_split: str,
    ) -> None:
        super().__init__(source, target, root, limit)
        self.test_split = checked_text(test_split, "test_split")
        self.folder = None if path is None else self._folder(absolute_path(path, "path"))
        if self.folder is None:
            if sorted((self.source, self.target)) != list(HUB_LANGUAGES):
                raise HeadlabError(
                    f"data=multi30k {self.source}-{self.target}: the hub has only de and en; give "
                    "the folder of the raw files with data.path=FOLDER"
                )
            if self.test_split != HUB_TEST:
                raise HeadlabError(
                    f"data.test_split={test_split}: the hub has only {HUB_TEST}; give the folder "
                    "of the raw files with data.path=FOLDER"
                )

    def identity(self) -> dict[str, Any]:
        """The files by their content; the hub's data set by its name."""
        if self.folder is None:
            return {"hub": HUB_NAME}
        return {
            "test": self.test_split,
            "files": [
                sha256_of(path, "data.path")
                for split in ("train", "val", self.test_split)
                for path in self._files(split)
            ],
        }

    def read(self) -> dict[str, tuple[list[Pair], SplitReport]]:
        """Reads the three splits; pairs with a blank side are dropped."""
        if self.folder is None:
            found = load_from_hub(
                HUB_NAME,
                ColumnNames(self.source, self.target, None, None),
                config=None,
                languages=(self.source, self.target),
                revision=None,
                cache=self.root / "hub",
            )
            return {split: keep_visible(pairs) for split, pairs in found.items()}
        names = {"train": "train", "validation": "val", "test": self.test_split}
        return {
            split: keep_visible(read_aligned(*self._files(name), key="data.path"))
            for split, name in names.items()
        }

    def _folder(self, path: Path) -> Path:
        if not path.is_dir():
            raise HeadlabError(
                f"data.path={path}: no such folder; give that of the Multi30k raw files, or "
                "data.path=null for the hub"
            )
        return path / RAW_FOLDER if (path / RAW_FOLDER).is_dir() else path

    def _files(self, name: str) -> tuple[Path, Path]:
        source, target = (self._file(f"{name}.{code}") for code in (self.source, self.target))
        return source, target

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        for candidate in (self.folder / name, self.folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
        there = sorted(path.name for path in self.folder.iterdir() if path.is_file())
        raise HeadlabError(
            f"data.path={self.folder}: neither {name} nor {name}.gz; there are "
            f"{' '.join(there[:30]) or 'no files'}"
        )
