"""The table of sample translations in TensorBoard."""

import html
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.plugin_util import markdown_to_safe_html

import headlab.decoding
from headlab.errors import HeadlabError
from headlab.training.samples import SampleTranslations, samples_table

NASTY = [
    "a | b || c",
    "<b>bold</b> & &amp; <script>x</script>",
    "`code` *star* **two** _under_ __x__ ~~gone~~",
    "\\alpha \\| \\\\",
    "# no heading",
    "- no list",
    "1. no list",
    "[link](http://example.org) ![image](x) https://example.org",
    "$x_{1}$ $$y$$ 100 % ^ ~ \"quoted\" 'single'",
    "--- | ---",
    "a  b   c",
    "日本語 é 😀",
    "&#124; &nbsp;",
    "",
]


def cells(markdown: str) -> list[list[str]]:
    """What a reader of TensorBoard's text tab sees in the table's rows."""
    page = markdown_to_safe_html(markdown)
    assert page.count("<table>") == 1
    assert "<script" not in page
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    assert not any("<" in cell for row in found for cell in row)
    return [[html.unescape(cell).replace("\xa0", " ") for cell in row] for row in found]


def test_texts_are_shown_letter_for_letter() -> None:
    rows = [(text, text[::-1], f"x{text}y") for text in NASTY]
    header, *shown = cells(samples_table(rows))
    assert header == ["source", "reference", "translation"]
    assert [tuple(row) for row in shown] == rows


@given(
    st.lists(
        st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"])), min_size=1
    )
)
def test_any_ascii_text_is_shown_letter_for_letter(texts: list[str]) -> None:
    rows = [(text, "reference", text) for text in texts]
    assert [tuple(row) for row in cells(samples_table(rows))[1:]] == rows


def test_control_characters_stay_in_their_cell() -> None:
    rows = [("a\nb\r\nc\u2028d\x85e\x00", "\t", "\x1b[31m")]
    (shown,) = cells(samples_table(rows))[1:]
    assert shown == ["a\\nb\\r\\nc\\u2028d\\x85e\\x00", "\\t", "\\x1b[31m"]


def test_a_table_after_each_validation(
    tiny_training: Callable[..., Any], tiny_data: Any, read_events: Callable[[], Any]
) -> None:
    tiny_training([SampleTranslations(sentences=3)], steps=2, val_check_interval=1)
    events = read_events()
    written = events.Tensors("samples/text_summary")
    assert [event.step for event in written] == [1, 2]  # none from the check before step 1
    markdown = written[-1].tensor_proto.string_val[0].decode()
    _, *rows = cells(markdown)
    assert len(rows) == 3
    assert [tuple(row[:2]) for row in rows] == tiny_data.validation_examples(3)


def test_translations_of_the_module_are_taken(
    tiny_training: Callable[..., Any],
    tiny_data: Any,
    read_events: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hand(SampleTranslations):
        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            pl_module.validation_translations = [f"made {i}" for i in range(5)]

    monkeypatch.setattr(headlab.decoding, "Translator", None)
    tiny_training([Hand(sentences=2)], steps=2, val_check_interval=1)
    written = read_events().Tensors("samples/text_summary")
    markdown = written[-1].tensor_proto.string_val[0].decode()
    assert [row[2] for row in cells(markdown)[1:]] == ["made 0", "made 1"]


def test_a_fault_never_ends_training(
    tiny_training: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(headlab.decoding, "Translator", None)
    with caplog.at_level(logging.WARNING, logger="headlab"):
        tiny_training([SampleTranslations(sentences=2)], steps=4, val_check_interval=1)
    assert sum("sample translations" in r.getMessage() for r in caplog.records) == 1


def test_none_are_written_for_zero_sentences(
    tiny_training: Callable[..., Any], read_events: Callable[[], Any]
) -> None:
    tiny_training([SampleTranslations(sentences=0)], steps=2)
    assert not read_events().Tags()["tensors"]
    with pytest.raises(HeadlabError, match=r"callbacks\.samples\.sentences=-1"):
        SampleTranslations(sentences=-1)
