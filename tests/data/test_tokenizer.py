"""Tokenizers: nothing is changed, nothing typed is a control symbol."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headlab.data.tokenizer import CONTROL, Tokenizer, Tokenizers, train_tokenizer
from headlab.errors import HeadlabError

TEXTS = [
    "the cat sat on the mat",
    "the dog ran to the house",
    "le chat est sur le tapis",
    "l'ami, c'est « ça » ? 50 % of {count} items",
] * 5

OPTIONS = {"vocab_size": 330, "character_coverage": 1.0, "lowercase": False}


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(TEXTS, kind=request.param, **OPTIONS)


AWKWARD = [
    "", " ", "  a  b ", "x▁y", "▁", "▁▁ ▁", "</s>", "a </s> b", "<s><pad><unk>", "<0x41>",
    "½ … ﬁ ŀ ︰", "🙂👩‍👩‍👧 unseen",
    "a\tb\nc\rd\x00e\u2028f\x85g", "\u00a0\u3000\u200b", "日本語", "٣ ไทย", " ⁇ ",
]  # fmt: skip


@pytest.mark.parametrize("text", AWKWARD)
def test_round_trip_of_awkward_texts(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(CONTROL)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=("Cs",))))
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(CONTROL)
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_words_after_a_control_symbol_still_count(tokenizer: Tokenizer) -> None:
    assert "cat" in tokenizer.decode(tokenizer.encode("a </s> cat"))


def test_control_ids_are_never_written(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([2, *ids, 3, 0, 0, 1]) == "the cat"
    assert tokenizer.pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]


def test_a_word_has_the_same_pieces_at_the_start_and_later(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("the the") == tokenizer.encode("the") * 2


def test_many_at_once(tokenizer: Tokenizer) -> None:
    rows = tokenizer.encode_all(AWKWARD)
    assert rows == [tokenizer.encode(text) for text in AWKWARD]
    assert tokenizer.decode_all(rows) == AWKWARD
    assert tokenizer.encode_all([]) == []
    assert tokenizer.decode_all([]) == []


def test_sampling_follows_its_seed(tokenizer: Tokenizer) -> None:
    texts = ["the cat sat on the mat", "x▁y the house", ""] * 4
    drawn = tokenizer.sample_all(texts, 0.3, seed=7)
    assert drawn == tokenizer.sample_all(texts, 0.3, seed=7)
    assert drawn != tokenizer.sample_all(texts, 0.3, seed=8)
    assert drawn != tokenizer.encode_all(texts)
    assert tokenizer.decode_all(drawn) == texts


def test_without_dropout_our_merges_are_sentencepieces(tokenizer: Tokenizer) -> None:
    if tokenizer.kind == "bpe":
        for text in [*TEXTS[:4], *AWKWARD, "the cathouse satmat l'amiable {count}"]:
            assert tokenizer.sample_all([text], 0.0, seed=1) == [tokenizer.encode(text)]


def test_the_kind_is_seen_in_the_model() -> None:
    for kind in ("unigram", "bpe"):
        assert train_tokenizer(TEXTS, kind=kind, **OPTIONS).kind == kind


def test_sampling_is_the_same_in_every_process(tokenizer: Tokenizer, tmp_path) -> None:
    (tmp_path / "model").write_bytes(tokenizer.model)
    code = (
        "import sys; from headlab.data.tokenizer import Tokenizer; "
        "t = Tokenizer(open(sys.argv[1], 'rb').read()); "
        "print(t.sample_all(['the cat sat on the mat', 'le chat est sur'], 0.3, 7))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "model")], capture_output=True, check=True
        ).stdout.decode()
        for _ in range(2)
    ]
    here = tokenizer.sample_all(["the cat sat on the mat", "le chat est sur"], 0.3, 7)
    assert runs[0] == runs[1] == f"{here}\n"


def test_lowercase_travels_with_it() -> None:
    tokenizer = train_tokenizer(TEXTS, kind="bpe", **(OPTIONS | {"lowercase": True}))
    again = Tokenizers.from_state(Tokenizers(tokenizer, tokenizer).state())
    assert again.joint
    assert again.source.decode(again.source.encode("The CAT É")) == "the cat é"


def test_state_holds_tensors_and_plain_types(tmp_path) -> None:
    one = train_tokenizer(TEXTS, kind="bpe", **OPTIONS)
    two = train_tokenizer(TEXTS[:2], kind="unigram", **(OPTIONS | {"vocab_size": 300}))
    torch.save(Tokenizers(one, two).state(), tmp_path / "t.pt")
    again = Tokenizers.from_state(torch.load(tmp_path / "t.pt", weights_only=True))
    assert not again.joint
    assert again.source.encode("the cat") == one.encode("the cat")
    assert again.target.encode("the cat") == two.encode("the cat")


def test_vocabulary_is_lowered_to_what_the_corpus_supports() -> None:
    for kind in ("unigram", "bpe"):
        tokenizer = train_tokenizer(TEXTS, kind=kind, **(OPTIONS | {"vocab_size": 8000}))
        assert 260 < tokenizer.vocab_size < 1000


def test_training_is_reproducible() -> None:
    models = {train_tokenizer(TEXTS, kind="unigram", **OPTIONS).model for _ in range(2)}
    assert len(models) == 1


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_long_lines_are_used_whole(kind: str) -> None:
    """30 lines of 5,000 bytes, and lines of 1,500 three-byte characters."""
    words = "alpha beta gamma delta epsilon " * 160
    thai = ("สวัสดีครับ" * 150)[:1500]
    for line in (words, thai, "x" * 20_000):
        tokenizer = train_tokenizer([line] * 30, kind=kind, **(OPTIONS | {"vocab_size": 300}))
        assert tokenizer.decode(tokenizer.encode(line)) == line
        assert len(tokenizer.encode(line)) < len(line)


@pytest.mark.parametrize(
    ("texts", "changes", "message"),
    [
        (TEXTS, {"vocab_size": 260}, "tokenizer.vocab_size=260 is too small: .* need at least"),
        (TEXTS, {"vocab_size": 0}, "tokenizer.vocab_size=0 is too small"),
        (TEXTS, {"kind": "words"}, "tokenizer.kind=words: choose unigram or bpe"),
        (TEXTS, {"character_coverage": 0.0}, "tokenizer.character_coverage=0.0 must be in"),
        ([], {}, "the tokenizer could not be trained on this corpus"),
    ],
)
def test_mistakes_are_named(texts: list[str], changes: dict, message: str) -> None:
    with pytest.raises(HeadlabError, match=message) as caught:
        train_tokenizer(texts, **({"kind": "bpe"} | OPTIONS | changes))
    assert "\n" not in str(caught.value)
