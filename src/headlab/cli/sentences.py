"""The sentences that a command works on: a split of the checkpoint's corpus, or files."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.checkpoint import Loaded

SPLITS = ("train", "validation", "test")


class Sentences(NamedTuple):
    """What to translate, and its translations where there are any."""

    sources: list[str]
    references: list[str] | None
    part: str  # for names of results, such as "test-first100" or "file-input.txt"


def choose_sentences(
    loaded: "Loaded",
    split: str,
    source: Path | None = None,
    reference: Path | None = None,
    limit: int | None = None,
    key: str = "--split",
) -> Sentences:
    """The sentences of a split, or of one or two files with a sentence a line.

    ``key`` names the option that gave the split, for the error.

    Raises:
        HeadlabError: there is no such split or file, the files do not match line by line, a
            reference is given without its source, or there is no sentence.
    """
    if split not in SPLITS:
        raise HeadlabError(f"{key} {split}: choose {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")
    if source is None and reference is not None:
        raise HeadlabError("--reference needs --source, the sentences it translates")
    if source is None:
        found = Sentences(*read_split(loaded, split), split)
    else:
        found = _read_files(source, reference)
    if not found.sources:
        raise HeadlabError(f"{source or split}: no sentence in it")
    if limit is not None and limit < len(found.sources):
        references = None if found.references is None else found.references[:limit]
        found = Sentences(found.sources[:limit], references, f"{found.part}-first{limit}")
    return found


def read_split(loaded: "Loaded", split: str) -> tuple[list[str], list[str]]:
    """Sources and references of a split of the corpus that the checkpoint was trained on."""
    return read_splits(loaded, split)[0]


def read_splits(loaded: "Loaded", *splits: str) -> list[tuple[list[str], list[str]]]:
    """As ``read_split``, of several splits in one reading."""
    from headlab.data.corpus import build_corpus

    config = dict(loaded.config["data"])
    if "root" in config and not Path(config["root"]).parent.exists():
        config["root"] = "data"  # the checkpoint came from another machine: cache here
    found = build_corpus(config).load()
    return [(list(found[one]["source"]), list(found[one]["target"])) for one in splits]


def _read_files(source: Path, reference: Path | None) -> Sentences:
    from headlab.data.text import read_lines

    part = "file-" + re.sub(r"[^A-Za-z0-9._-]", "_", source.name)
    sources = read_lines(source)
    if reference is None:
        return Sentences(sources, None, part)
    references = read_lines(reference)
    if len(sources) != len(references):
        raise HeadlabError(
            f"{source} has {len(sources):,} lines and {reference} {len(references):,}; "
            "they must be line by line translations of each other"
        )
    return Sentences(sources, references, part)
