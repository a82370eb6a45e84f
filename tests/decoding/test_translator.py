import logging
from pathlib import Path

import pytest

from headlab.checkpoint import Loaded
from headlab.decoding import Translator, one_line
from headlab.errors import HeadlabError
from headlab.transformer import Transformer

Pairs = tuple[tuple[str, str], ...]

BLANKS = ("", " ", "\t \r", "\u00a0", "\u3000", "\u200b", "\ufeff", "\n", "\u2028\u0085")


def test_from_checkpoint_translates_in_order(learnt_checkpoint: Path, learnt_pairs: Pairs) -> None:
    sources = [source for source, _ in learnt_pairs]
    targets = [target for _, target in learnt_pairs]
    for options in ({}, {"beam": 4}, {"batch_tokens": 1}, {"beam": 3, "length_penalty": 0.0}):
        translator = Translator.from_checkpoint(learnt_checkpoint, **options)
        assert translator.translate(sources) == targets
        assert translator.translate(sources[::-1]) == targets[::-1]


def test_options_come_from_the_checkpoint_unless_given(learnt: Loaded) -> None:
    learnt.config["decoding"] = {"beam": 3, "length_penalty": 0.5, "max_ratio": None}
    assert Translator.from_loaded(learnt).options["beam"] == 3
    chosen = Translator.from_loaded(learnt, beam=2, length_penalty=None).options
    assert (chosen["beam"], chosen["length_penalty"], chosen["max_ratio"]) == (2, 0.5, 2.0)
    del learnt.config["decoding"]
    assert Translator.from_loaded(learnt).options["beam"] == 1


def test_blank_sentences_stay_blank_and_never_reach_the_model(
    learnt: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator.from_loaded(learnt)
    mixed = [*BLANKS, "good morning", *BLANKS]
    assert translator.translate(mixed) == [*[""] * 9, "bonjour", *[""] * 9]
    assert translator.translate([]) == []

    def refuse(*_: object) -> None:
        raise AssertionError("the model was asked")

    monkeypatch.setattr(Transformer, "encode", refuse)
    assert translator.translate(BLANKS) == [""] * len(BLANKS)


def test_a_blank_sentence_counts_as_done(learnt: Loaded) -> None:
    done: list[int] = []
    Translator.from_loaded(learnt).translate(["", "a friend", ""], progress=done.append)
    assert done == [3]


def test_an_overlong_sentence_is_cut_and_named(
    learnt: Loaded, caplog: pytest.LogCaptureFixture
) -> None:
    translator = Translator.from_loaded(learnt)
    assert translator.max_source_pieces == 63
    long = "the door " * 2000
    pieces = len(learnt.tokenizers.source.encode(long))
    with caplog.at_level(logging.WARNING, logger="headlab"):
        texts = translator.translate(["a friend", long, "good morning"])
    assert (texts[0], texts[2]) == ("un ami", "bonjour")
    (record,) = caplog.records
    message = record.getMessage()
    assert "index 1" in message
    assert str(pieces) in message
    assert "63" in message


def test_the_longest_sentence_allowed_is_not_cut(
    learnt: Loaded, caplog: pytest.LogCaptureFixture
) -> None:
    translator = Translator.from_loaded(learnt)
    text = "é" * 10  # extended until it is as long as the model takes
    while len(learnt.tokenizers.source.encode(text)) < 63:
        text += "\u4e00" if len(learnt.tokenizers.source.encode(text)) <= 60 else "x"
    assert len(learnt.tokenizers.source.encode(text)) == 63
    translator.translate([text])
    assert not caplog.records
    translator.translate([text + "x"])
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "text",
    [
        "a </s> b",
        "<s>",
        "<pad>",
        "<unk>",
        "two\nlines here",
        "one\r\ntwo",
        "nul \x00 byte",
        "x\u2581y",
        "\U0001f600",
        "half \ud83d",
        "{name} % @ # \\",
    ],
)
def test_any_text_is_translated(learnt: Loaded, text: str) -> None:
    translations = Translator.from_loaded(learnt).translate(["a friend", text, "a friend"])
    assert translations[0] == translations[2] == "un ami"
    assert not any(name in translations[1] for name in ("<s>", "</s>", "<pad>", "<unk>"))


def test_halves_of_a_surrogate_pair_are_joined(learnt: Loaded) -> None:
    translator = Translator.from_loaded(learnt)
    assert translator.translate(["\ud83d\ude00"]) == translator.translate(["\U0001f600"])


def test_wrong_arguments_are_named(learnt: Loaded) -> None:
    translator = Translator.from_loaded(learnt)
    with pytest.raises(HeadlabError, match="list of sentences"):
        translator.translate("a friend")
    with pytest.raises(HeadlabError, match="index 1 is None"):
        translator.translate(["a friend", None])


def test_no_checkpoint_no_translator(tmp_path: Path) -> None:
    with pytest.raises(HeadlabError, match="no checkpoint"):
        Translator.from_checkpoint(tmp_path / "absent.ckpt")


def test_one_line() -> None:
    assert one_line("a\nb\r\nc\rd") == "a b c d"
    assert one_line("a\u2028b\u0085c\x0bd") == "a\u2028b\u0085c\x0bd"
