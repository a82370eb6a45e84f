import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlab.errors import HeadlabError
from headlab.head_names import SITES, Head, compress, heads_of, parse_heads

DEPTHS = {"encoder": 4, "decoder": 3, "cross": 3}
ALL = [Head(s, n, h) for s in SITES for n in range(DEPTHS[s]) for h in range(4)]


def names(patterns: list[str]) -> list[str]:
    return [str(one) for one in parse_heads(patterns, ALL, "ablation.heads")]


def test_patterns() -> None:
    assert names(["cross.2.0"]) == ["cross.2.0"]
    assert names(["cross.2.*"]) == [f"cross.2.{i}" for i in range(4)]
    assert names(["encoder.0.1-3"]) == ["encoder.0.1", "encoder.0.2", "encoder.0.3"]
    assert names(["*.1.0"]) == ["encoder.1.0", "decoder.1.0", "cross.1.0"]
    assert names(["encoder.3-9.2"]) == ["encoder.3.2"]
    assert len(names(["*.*.*"])) == len(ALL)
    assert names(["cross.0.1", "encoder.0.0", "cross.0.0-1"]) == [
        "encoder.0.0", "cross.0.0", "cross.0.1",
    ]  # fmt: skip
    assert names([]) == []


@pytest.mark.parametrize("pattern", ["cross.9.0", "encoder.0.4", "decoder.3.*", "cross.2-1.0"])
def test_a_head_that_is_not_there(pattern: str) -> None:
    message = (
        f"ablation.heads: there is no head {pattern}; the heads are encoder.0-3.0-3, "
        "decoder.0-2.0-3, cross.0-2.0-3"
    )
    with pytest.raises(HeadlabError) as caught:
        names(["encoder.0.0", pattern])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "pattern", ["", "cross", "cross.1", "cross.1.2.3", "crossing.0.0", "cross.a.0", "cross.-1.0", 7]
)
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(HeadlabError, match=r"is no head; write site\.layer\.head"):
        names([pattern])


def test_a_text_in_the_place_of_a_list() -> None:
    with pytest.raises(HeadlabError, match=r"ablation\.heads=cross\.0\.0 must be a list"):
        parse_heads("cross.0.0", ALL, "ablation.heads")


@given(st.sets(st.sampled_from(ALL)))
def test_compressed_names_are_the_same_heads(heads: set[Head]) -> None:
    patterns = compress(heads)
    assert set(parse_heads(patterns, ALL, "k")) == heads
    assert len(patterns) <= len(heads)
    for a, b in itertools.combinations(patterns, 2):
        assert not set(parse_heads([a], ALL, "k")) & set(parse_heads([b], ALL, "k"))


def test_heads_of_layers_with_different_numbers() -> None:
    kept = {"encoder": [[0, 3], []], "decoder": [[1]], "cross": [[2]]}
    found = [str(one) for one in heads_of(kept)]
    assert found == ["encoder.0.0", "encoder.0.3", "decoder.0.1", "cross.0.2"]
