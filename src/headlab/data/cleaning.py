"""From the strings of a translation catalog to sentence pairs worth learning from.

Catalog strings carry Markdown, list items, several sentences, addresses and names in braces. The
rules here cut a string into lines and sentences where both languages do so alike, take the markup
off, and say why a pair is not used.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headlab.data.pairs import Pair
from headlab.data.text import PLACEHOLDER, letters_key

# Written without spaces between words: length is counted in characters.
UNSPACED_LANGUAGES = frozenset({"ja", "km", "lo", "my", "th", "zh"})

IMAGE = re.compile(r"!\[[^\]]*\]\([^()]*\)")
LINK = re.compile(r"\[([^\[\]]*)\]\([^()]*\)")
LINE_MARK = re.compile(r"^\s*(?:#{1,6}|>|[-*+•]|\d{1,2}[.)])\s+")
EMPHASIS = (
    re.compile(r"\*\*(?=\S)(.+?)(?<=\S)\*\*"),
    # Some scripts set an ending right behind the mark, so only Latin letters forbid emphasis.
    re.compile(r"(?<![A-Za-z0-9*])\*(?=[^\s*])([^*]+?)(?<=\S)\*(?![A-Za-z0-9*])"),
    re.compile(r"(?<![\w{])__(?=[^\s_])([^{}]+?)(?<=[^\s_])__(?![\w}])"),
    re.compile(r"(?<![\w{])_(?=[^\s_])([^_{}]+?)(?<=\S)_(?![\w}])"),
)
CODE = re.compile(r"`+([^`]*)`+")

ADDRESS = re.compile(r"://|\bwww\.|\bmailto:|\S@\S+\.\S", re.IGNORECASE)
MARKUP = re.compile(
    r"</?[a-z!][^<>]*>"  # tags
    r"|&#?\w{2,8};"  # character references
    r"|`|\*\*|\]\(|\[%|%\]|\{\{|\}\}|\{%|%\}"  # what Markdown and templates leave behind
    r"|%\(\w+\)[sdif]|%[sd]\b"  # printf fields
    r"|\|.*\||\s\|\s",  # tables
    re.IGNORECASE,
)
PLAIN_PLACEHOLDER = re.compile(r"\{\w[\w.\-]*\}")

# A sentence ends at these marks (and closing quotes) before white space, or at the full-width
# marks with or without it.
SENTENCE_END = re.compile(r"[.!?…؟।]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”）]*")
ABBREVIATIONS = frozenset(
    re.findall(
        r"\w+",
        "abb abk approx art bijv bzw ca cf dr ej env esp etc evtl ex fig ggf incl inkl max min mr "
        "mrs np nr no num p pág pl resp sog st tel tj tzv usw vs z",
    )
)


# How far the lengths of two sentences may stray from those of the lines they are cut out of.
SENTENCE_RATIO = 1.8


@dataclass(frozen=True)
class LengthRules:
    """Lengths a pair may have; a placeholder in braces counts as one word or character.

    The minimum is asked of the source only: many languages say in one word what others say in
    three, and the ratio keeps translations that are too short for their source away.
    `max_ratio`: how many times longer or shorter a translation may be, in characters, than is
    usual for its pair of languages.
    """

    min_words: int
    max_words: int
    min_characters: int
    max_characters: int
    max_ratio: float


def segments(source: str, target: str) -> Iterator[Pair]:
    """The smallest parts of two strings that still translate one another, free of Markdown.

    Lines are taken apart when both strings have the same number of them, and sentences when they
    stand one to one; otherwise a part stays whole.
    """
    source_lines, target_lines = plain_lines(source), plain_lines(target)
    if len(source_lines) != len(target_lines):
        yield " ".join(source_lines), " ".join(target_lines)
        return
    for source_line, target_line in zip(source_lines, target_lines, strict=True):
        source_parts, target_parts = sentences(source_line), sentences(target_line)
        if _alike(source_parts, target_parts, length_ratio(source_line, target_line)):
            yield from zip(source_parts, target_parts, strict=True)
        else:
            yield source_line, target_line


def _alike(source_parts: list[str], target_parts: list[str], usual: float) -> bool:
    """Whether sentences stand one to one: as many, with the same placeholders, and each about as
    much longer than the other as the lines they come from (`usual`). The last catches a sentence
    cut in two on one side while two others were joined."""
    return len(source_parts) == len(target_parts) and all(
        placeholders(one) == placeholders(other)
        and usual / SENTENCE_RATIO <= length_ratio(one, other) <= usual * SENTENCE_RATIO
        for one, other in zip(source_parts, target_parts, strict=True)
    )


def plain_lines(text: str) -> list[str]:
    """The lines of a catalog string that hold anything, without Markdown, white space evened."""
    lines = (strip_markdown(line) for line in re.split(r"[\r\n]+", text))
    return [line for line in lines if line]


def strip_markdown(line: str) -> str:
    """One line without images, link targets, list and heading marks, emphasis and code ticks."""
    line = LINE_MARK.sub("", line)
    line = IMAGE.sub(" ", line)
    line = LINK.sub(r"\1", line)
    for mark in (*EMPHASIS, CODE):
        line = mark.sub(r"\1", line)
    # Catalogs use no-break spaces now and then before the same marks; one kind is learnable.
    return " ".join(line.split())


def sentences(line: str) -> list[str]:
    """The sentences of a line; an abbreviation or a small letter after the mark ends none."""
    parts, start = [], 0
    for end in SENTENCE_END.finditer(line):
        rest = line[end.end() :].lstrip()
        if not rest or rest[0].islower() or not (rest[0].isalpha() or rest[0] in "\"'“„«¿¡([{「『"):
            continue
        mark = end.group()
        words = line[start : end.start()].split()
        word = words[-1].lstrip("(\"'“„«") if words else ""
        if mark == "." and (
            "." in word
            or (len(word) < 2 and not word.isdigit())
            or (word.isdigit() and len(words) == 1)  # the number of a list item
            or word.casefold() in ABBREVIATIONS
        ):
            continue
        parts.append(line[start : end.end()].strip())
        start = end.end()
    parts.append(line[start:].strip())
    return [part for part in parts if part]


def placeholders(text: str) -> list[str]:
    """The names in braces, sorted, each as often as it stands there."""
    return sorted(PLACEHOLDER.findall(text))


def fault(source: str, target: str) -> str | None:
    """Why a pair is unfit whatever its length, in a few words; None when it is fit."""
    for text in (source, target):
        if ADDRESS.search(text):
            return "address"
        bare = PLAIN_PLACEHOLDER.sub(" ", text)
        if MARKUP.search(text) or "{" in bare or "}" in bare:
            return "markup"
    if placeholders(source) != placeholders(target):
        return "placeholders differ"
    if source.casefold() == target.casefold():
        return "identical"
    if not letters_key(source) or not letters_key(target):
        return "no letters"
    return None


def length_fault(pair: Pair, source: str, target: str, rules: LengthRules) -> str | None:
    """Whether a pair in the languages `source` and `target` is ``too short`` or ``too long``."""
    for text, language, minimum in zip(pair, (source, target), (True, False), strict=True):
        text = PLACEHOLDER.sub("0", text)
        if language.split("-")[0] in UNSPACED_LANGUAGES:
            length = len("".join(text.split()))
            low, high = rules.min_characters, rules.max_characters
        else:
            length, low, high = len(text.split()), rules.min_words, rules.max_words
        if minimum and length < low:
            return "too short"
        if length > high:
            return "too long"
    return None


def length_ratio(source: str, target: str) -> float:
    """Characters of the target for one of the source, placeholders counted as one character."""
    return len(PLACEHOLDER.sub("0", target)) / len(PLACEHOLDER.sub("0", source))
