"""From pieces to words: where pieces stand, whose they are, and sums of weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headlab.data.tokenizer import BOS, EOS, Tokenizer, train_tokenizer
from headlab.errors import HeadlabError
from headlab.heads.words import (
    find_words,
    membership,
    merge,
    piece_spans,
    plain_words,
    white_words,
    word_of_pieces,
    words_of_pieces,
)


def tokenizer_of(lowercase: bool) -> Tokenizer:
    texts = ["the cat sat on l'homme.", "la porte de l'été, c'est ça", "the dog. the cat."] * 2
    return train_tokenizer(
        texts, vocab_size=340, kind="bpe", character_coverage=1.0, lowercase=lowercase
    )


TOKENIZERS = {lowercase: tokenizer_of(lowercase) for lowercase in (False, True)}

TEXTS = (
    "the cat sat",
    "L'homme sat.",
    "  two  spaces ",
    "日本語 の 猫",
    "İstanbul İ ΟΔΟΣ",  # lower-casing lengthens the first letter
    "mark\u2581inside \u2581",
    "no\u00a0break",
    "😀 cat\u200d",
    "",
)


def shown(text: str, spans: list[tuple[int, int]]) -> list[str]:
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_cover_the_text_in_order(text: str, lowercase: bool) -> None:
    tokenizer = TOKENIZERS[lowercase]
    ids = tokenizer.encode(text)
    spans = piece_spans(tokenizer, text, ids)
    assert len(spans) == len(ids)
    covered = {i for start, end in spans for i in range(start, end)}
    assert covered == set(range(len(text)))
    assert spans == sorted(spans)
    surfaces = b"".join(tokenizer.surfaces([BOS, *ids, EOS])).decode()
    assert surfaces.removeprefix(" ") == (text.lower() if lowercase else text)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab thecaé.',\u2581İ日\u00a0\n\t😀Σ", max_size=12), st.booleans())
def test_pieces_hold_the_characters_of_their_bytes(text: str, lowercase: bool) -> None:
    tokenizer = TOKENIZERS[lowercase]
    ids = tokenizer.encode(text)
    owner: list[int | None] = [None]  # of each byte: the space in front is no character's
    for i, character in enumerate(text):
        owner += [i] * len((character.lower() if lowercase else character).encode())
    at = 0
    surfaces = tokenizer.surfaces(ids)
    for (start, end), surface in zip(piece_spans(tokenizer, text, ids), surfaces, strict=True):
        held = {i for i in owner[at : at + len(surface)] if i is not None}
        assert set(range(start, end)) == held
        at += len(surface)
    assert at == len(owner)


def test_words_of_several_kinds() -> None:
    text = "L'homme, {x} à 3.5!"
    assert shown(text, white_words(text)) == ["L'homme,", "{x}", "à", "3.5!"]
    assert shown(text, plain_words(text)) == [
        *("L", "'", "homme", ",", "{", "x", "}", "à", "3", ".", "5", "!")
    ]
    assert shown("猫 が好き", plain_words("猫 が好き", spaced=False)) == ["猫", "が", "好", "き"]


def test_a_parser_may_cut_words_where_pieces_do_not() -> None:
    """``l'homme`` is two words; a piece across both belongs to the one it has most of."""
    text = "Xl'homme."
    words = [(1, 3), (3, 8), (8, 9)]  # l' homme .
    assert word_of_pieces([(0, 1), (1, 5), (5, 8), (8, 9)], words, text) == [None, 0, 1, 2]
    assert word_of_pieces([(1, 6), (6, 9)], words, text) == [1, 1]
    assert word_of_pieces([(2, 4)], words, text) == [0]  # one letter of each: the first


def test_the_mark_of_a_space_belongs_to_the_word_behind_it() -> None:
    text = "a b "
    words = [(0, 1), (2, 3)]
    pieces = [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4)]
    assert word_of_pieces(pieces, words, text) == [0, 0, 1, 1, None]
    assert word_of_pieces([(0, 1), (1, 3), (3, 4)], words, text) == [0, 1, None]


def test_finding_the_words_of_a_parse() -> None:
    text = "L'homme  du\u00a0port."
    forms = ["l'", "homme", "du", "port", "."]
    assert shown(text, find_words(text, forms, "here")) == ["L'", "homme", "du", "port", "."]
    with pytest.raises(HeadlabError, match=r"sentence 3: the word 'dog' .* reads 'homme"):
        find_words(text, ["l'", "dog"], "sentence 3")
    with pytest.raises(HeadlabError, match=r"sentence 3: its words end before 'port\.'"):
        find_words(text, forms[:3], "sentence 3")
    with pytest.raises(HeadlabError):
        find_words(text, [*forms, "more"], "sentence 3")


def test_merging_against_a_loop() -> None:
    torch.manual_seed(0)
    rows, heads, length = 3, 2, 7
    owners = [[0, 0, 1, None, 2, 2], [0, 1], [None, 1, 1, 1]]
    counts = [3, 2, 3]  # the last sentence has two words without a piece
    weights = torch.rand(rows, heads, length, length).softmax(-1)
    for shift in (0, 1):
        table = membership(owners, counts, length, shift)
        assert table.shape == (rows, 3, length)
        merged = merge(weights, table, table)
        for row in range(rows):
            for head in range(heads):
                for a in range(3):
                    for b in range(3):
                        of_a = [i + shift for i, o in enumerate(owners[row]) if o == a]
                        of_b = [i + shift for i, o in enumerate(owners[row]) if o == b]
                        sums = [sum(float(weights[row, head, q, k]) for k in of_b) for q in of_a]
                        mean = sum(sums) / len(sums) if sums else 0.0
                        assert float(merged[row, head, a, b]) == pytest.approx(mean, abs=1e-6)


def test_many_sentences() -> None:
    tokenizer = TOKENIZERS[True]
    texts = ["The cat.", "日本 L'homme"]
    ids = tokenizer.encode_all(texts)
    words = words_of_pieces(tokenizer, texts, ids, [plain_words(text) for text in texts])
    assert words.counts == [3, 4]
    for owners, row, count in zip(words.owners, ids, words.counts, strict=True):
        assert len(owners) == len(row)
        assert set(owners) == set(range(count))
    table = words.membership([1], max(map(len, ids)) + 1, 0, like=torch.zeros(1))
    assert table.sum(dim=(1, 2)).tolist() == [len(ids[1])]
