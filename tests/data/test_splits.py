import itertools
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlab.data.splits import complete, hold_out, place, split_of
from headlab.errors import HeadlabError

SHARES = {"validation": 0.03, "test": 0.05}
LETTERS = st.text(st.characters(categories=["L"]), min_size=1, max_size=12)
NOISE = st.one_of(
    st.text(string.digits + string.punctuation.replace("{", "").replace("}", "") + " ", max_size=6),
    st.sampled_from(["{name}", "{Count}", "{a_b}", "…", "«", "，"]),
)


@given(st.lists(LETTERS, min_size=1, max_size=6), st.data())
def test_siblings_never_straddle(words, data):
    """Other digits, placeholders, punctuation, case: the same place."""

    def variant() -> str:
        parts = [data.draw(NOISE)]
        for word in words:
            spelling = data.draw(st.sampled_from([str, str.upper, str.lower, str.swapcase]))
            parts += [spelling(word), data.draw(NOISE)]
        return "".join(parts)

    assert place(variant()) == place(variant())
    assert split_of(variant(), 0.3, 0.3) == split_of(variant(), 0.3, 0.3)


def test_shares_are_met():
    texts = (
        "sentence " + "".join(abc) for abc in itertools.product(string.ascii_lowercase, repeat=3)
    )
    names = [split_of(text, 0.03, 0.05) for text in texts]
    assert 0.025 < names.count("validation") / len(names) < 0.035
    assert 0.043 < names.count("test") / len(names) < 0.057


def test_places_never_change():
    """A new release must not move a sentence from test to training."""
    assert place("The timer is finished.") == pytest.approx(0.7205964386)


def test_digits_alone_are_spread():
    names = {split_of(f"{i} {i + 1}", 0.2, 0.2) for i in range(100)}
    assert names == {"train", "validation", "test"}


@given(
    st.lists(st.tuples(LETTERS, LETTERS), min_size=3, max_size=40, unique_by=lambda p: place(p[0]))
)
def test_hold_out_is_a_partition_with_no_split_empty(pairs):
    made = hold_out(pairs, SHARES)
    assert all(made[split] for split in ("train", "validation", "test"))
    assert sorted(itertools.chain(*made.values())) == sorted(pairs)
    for part in made.values():
        assert part == [pair for pair in pairs if pair in part]
    again = hold_out(pairs[::-1], SHARES)
    assert {s: sorted(p) for s, p in made.items()} == {s: sorted(p) for s, p in again.items()}


def test_too_few_sentences_to_hold_out():
    with pytest.raises(HeadlabError, match=r"3 pairs with 2 different sources are too few"):
        hold_out([("a", "x"), ("b", "y"), ("B 2", "z")], SHARES)


def test_complete_counts_blank_pairs_and_cuts_only_what_is_missing():
    train = [(f"{a}{b}", "x") for a in "abcdefgh" for b in "abcdefgh"] + [
        ("\u3000", "x"),
        ("y", None),
    ]
    made = complete({"train": train, "validation": [("v", "w")]}, SHARES)
    assert made["validation"][0] == [("v", "w")]
    report = made["train"][1]
    assert report.dropped == {"blank side": 2}
    assert report.read == report.kept + 2
    assert report.kept + made["test"][1].kept == 64
    assert made["test"][1].kept >= 1
