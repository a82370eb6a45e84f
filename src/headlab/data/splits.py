"""Which split a sentence belongs to, decided by its own letters and nothing else.

Catalogs and captions are full of sentences that differ in a number or a name in braces. If such
siblings fell on both sides of a split, the test would ask for what training has shown. Hashing the
letters alone keeps siblings together, and makes the choice the same on every machine, for every
order of the input and for every language the source is translated into.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from headlab.data.pairs import Pair, SplitReport, keep_visible
from headlab.data.text import letters_key
from headlab.errors import HeadlabError


def place(text: str) -> float:
    """A number from 0 up to 1, even over many texts, that depends on the letters of `text` only.

    A text without any letter (a line of digits) is placed by all its characters instead, so that
    corpora of numbers can be split too.
    """
    key = letters_key(text) or "".join(text.split())
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_of(text: str, validation_share: float, test_share: float) -> str:
    """``train``, ``validation`` or ``test`` for a source sentence, by `place`."""
    where = place(text)
    if where < test_share:
        return "test"
    return "validation" if where < test_share + validation_share else "train"


def hold_out(pairs: Sequence[Pair], shares: Mapping[str, float]) -> dict[str, list[Pair]]:
    """Cuts about the given share of `pairs` off for each split in `shares`; the rest is train.

    Pairs keep their order. Each split gets at least one sentence even from a tiny corpus. Raises
    HeadlabError when there are too few different sentences for that.
    """
    validation, test = shares.get("validation", 0.0), shares.get("test", 0.0)
    by_place: dict[float, str] = {}
    places = [place(source) for source, _ in pairs]
    for (source, _), where in zip(pairs, places, strict=True):
        by_place.setdefault(where, split_of(source, validation, test))
    if len(by_place) <= len(shares):
        raise HeadlabError(
            f"{len(pairs):,} pairs with {len(by_place):,} different sources are too few to hold "
            f"out {' and '.join(shares)}; name files of their own (data.validation, data.test)"
        )
    # On a tiny corpus a split may have caught nothing. It takes a sentence from the largest split,
    # lowest place first, so that the choice is as blind to the order of the pairs as the rest.
    for split in ("train", *shares):
        if split not in by_place.values():
            names = list(by_place.values())
            largest = max(("train", *shares), key=names.count)
            by_place[min(w for w, name in by_place.items() if name == largest)] = split
    made: dict[str, list[Pair]] = {split: [] for split in ("train", *shares)}
    for pair, where in zip(pairs, places, strict=True):
        made[by_place[where]].append(pair)
    return made


def complete(
    found: Mapping[str, Iterable[tuple[str | None, str | None]]], shares: Mapping[str, float]
) -> dict[str, tuple[list[Pair], SplitReport]]:
    """All three splits from those that a corpus has: pairs with a blank side are dropped, and a
    missing validation or test is cut out of train by its share."""
    made = {split: keep_visible(pairs) for split, pairs in found.items()}
    missing = {split: share for split, share in shares.items() if split not in made}
    pairs, report = made["train"]
    if missing and pairs:
        for split, part in hold_out(pairs, missing).items():
            if split == "train":
                made[split] = part, report
            else:
                made[split] = part, SplitReport(read=len(part), kept=len(part))
                report.read -= len(part)
                report.kept -= len(part)
    for split in missing:
        made.setdefault(split, ([], SplitReport()))
    return made
