import pytest

from headlab.errors import HeadlabError
from headlab.head_names import SITES, Head, heads_of, parse_heads
from headlab.heads import plans

EXISTING = heads_of({"encoder": [[0, 1], [0, 1]], "decoder": [[0, 1]], "cross": [[1]]})


def chosen(*patterns: str) -> list[Head]:
    return parse_heads(patterns, EXISTING, "ablation.heads")


def off(configurations: list[plans.Configuration]) -> dict[str, list[str]]:
    return {one.name: [str(head) for head in one.off] for one in configurations}


def test_each_head() -> None:
    found = plans.each_head(chosen("encoder.1.*", "cross.*.*"))
    assert off(found) == {
        "encoder.1.0": ["encoder.1.0"],
        "encoder.1.1": ["encoder.1.1"],
        "cross.0.1": ["cross.0.1"],
    }
    assert found[2].labels == {"site": "cross", "layer": 0, "head": 1}


def test_each_layer_and_each_site() -> None:
    assert off(plans.each_layer(EXISTING)) == {
        "encoder.0": ["encoder.0.0", "encoder.0.1"],
        "encoder.1": ["encoder.1.0", "encoder.1.1"],
        "decoder.0": ["decoder.0.0", "decoder.0.1"],
        "cross.0": ["cross.0.1"],
    }
    sites = plans.each_site(EXISTING)
    assert [one.name for one in sites] == list(SITES)
    assert len(sites[0].off) == 4
    assert off(plans.each_site(chosen("cross.0.1"))) == {"cross": ["cross.0.1"]}


def test_all_but_one_leaves_the_rest_alone() -> None:
    found = off(plans.all_but_one(chosen("encoder.0.*", "cross.*.*"), EXISTING))
    assert found == {
        "only-encoder.0.0": ["encoder.0.1"],
        "only-encoder.0.1": ["encoder.0.0"],
        "only-cross.0.1": [],  # the layer has no other
    }


def test_random_draws_are_seeded_and_nested() -> None:
    found = plans.random_draws(EXISTING, [1, 3, 7], draws=4, seed=5)
    assert len(found) == 12
    assert found == plans.random_draws(EXISTING, [1, 3, 7], draws=4, seed=5)
    by_name = {one.name: set(one.off) for one in found}
    for seed in range(5, 9):
        assert by_name[f"k1-seed{seed}"] < by_name[f"k3-seed{seed}"] < by_name[f"k7-seed{seed}"]
        assert len(by_name[f"k3-seed{seed}"]) == 3
        assert by_name[f"k7-seed{seed}"] == set(EXISTING)
    assert len({frozenset(by_name[f"k3-seed{seed}"]) for seed in range(5, 9)}) > 1
    # A later start shares the draws of the seeds that both have.
    later = {one.name: set(one.off) for one in plans.random_draws(EXISTING, [3], 2, seed=7)}
    assert later["k3-seed8"] == by_name["k3-seed8"]


def test_every_head_is_drawn_as_often() -> None:
    draws = plans.random_draws(EXISTING, [2], draws=700, seed=1)
    counts = [sum(head in one.off for one in draws) for head in EXISTING]
    assert min(counts) > 150
    assert max(counts) < 250


def test_more_draws_than_heads_are_refused() -> None:
    with pytest.raises(HeadlabError, match=r"ablation\.k=8: there are 7 heads.* from 1 to 7"):
        plans.random_draws(EXISTING, [1, 8], draws=1, seed=1)


def test_a_list_is_off_at_once() -> None:
    (one,) = plans.together(chosen("cross.*.*", "decoder.0.1"))
    assert off([one]) == {"list": ["decoder.0.1", "cross.0.1"]}
