"""Parses out of CoNLL-U files and out of spaCy, and what is wrong with them."""

import sys
from pathlib import Path

import pytest

from headlab.errors import HeadlabError
from headlab.heads.parsing import Parse, load_pipeline, parse_texts, read_conllu


def conllu(*rows: str) -> str:
    """Rows of number, form, head and relation, to whole lines."""
    lines = []
    for row in rows:
        number, form, head, relation = row.split()
        lines.append("\t".join([number, form, *"____", head, relation, "_", "_"]))
    return "# a comment\n" + "\n".join(lines) + "\n\n"


FRENCH = conllu("1 L' 2 det", "2 homme 3 nsubj", "3 sort 0 root", "4-5 du _ _", "4 de 6 case",
                "5 le 6 det", "6 port 3 obl", "6.1 ghost _ _", "7 . 3 punct")  # fmt: skip


def read(folder: Path, text: str, texts: list[str], cut: bool = False) -> list[Parse]:
    path = folder / "a.conllu"
    path.write_text(text, encoding="utf-8")
    return read_conllu(path, texts, cut, "--conllu-source")


def test_words_and_relations(tmp_path: Path) -> None:
    text = "l'homme sort du port ."
    parse, blank, second = read(tmp_path, FRENCH + conllu("1 Sort 0 root"), [text, " ", "Sort"])
    shown = [text[start:end] for start, end in parse.words]
    assert shown == ["l'", "homme", "sort", "du", "port", "."]
    # "du" stands for two words of the grammar; both hang on "port".
    assert parse.relations == [
        (0, 1, "det"), (1, 2, "nsubj"), (3, 4, "case"), (3, 4, "det"), (4, 2, "obl"),
        (5, 2, "punct"),
    ]  # fmt: skip
    assert blank == Parse([], [])
    assert second == Parse([(0, 4)], [])


def test_a_cut_text_may_leave_sentences_over(tmp_path: Path) -> None:
    twice = conllu("1 a 0 root") * 2
    assert len(read(tmp_path, twice, ["a"], cut=True)) == 1
    with pytest.raises(HeadlabError, match=r"a\.conllu: 2 sentences for 1 of text"):
        read(tmp_path, twice, ["a"])
    with pytest.raises(HeadlabError, match="1 sentences for 2 of text"):
        read(tmp_path, conllu("1 a 0 root"), ["a", "a"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (conllu("1 b 0 root"), "sentence 1: the word 'b' stands where the text reads 'a'"),
        ("1\ta\t0\n\n", "line 1: 3 columns"),
        (conllu("x a 0 root"), "line 2: 'x' is no number"),
        (conllu("1 a 7 root"), "line 2: there is no word '7' for its head"),
    ],
)
def test_mistakes_name_the_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(HeadlabError) as caught:
        read(tmp_path, text, ["a"])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_spacy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(HeadlabError) as caught:
        load_pipeline("fr_core_news_sm")
    assert "pip install 'headlab[syntax]'" in str(caught.value)
    assert "--parser fr_core_news_sm" in str(caught.value)


def test_a_missing_pipeline_names_the_command() -> None:
    pytest.importorskip("spacy")
    with pytest.raises(HeadlabError, match="python -m spacy download xx_no_such_sm"):
        load_pipeline("xx_no_such_sm")


def test_french() -> None:
    pytest.importorskip("spacy")
    pytest.importorskip("fr_core_news_sm")
    text = "L'homme mange la pomme.  Il dort."
    done: list[int] = []
    pipeline = load_pipeline("fr_core_news_sm")
    first, empty = parse_texts(pipeline, [text, ""], done.append)
    shown = [text[start:end] for start, end in first.words]
    assert shown == ["L'", "homme", "mange", "la", "pomme", ".", "Il", "dort", "."]
    named = {(shown[d], shown[h], name) for d, h, name in first.relations}
    assert {
        ("L'", "homme", "det"),
        ("homme", "mange", "nsubj"),
        ("pomme", "mange", "obj"),
        ("la", "pomme", "det"),
    } <= named
    assert empty == Parse([], [])
    assert done == [1, 2]
