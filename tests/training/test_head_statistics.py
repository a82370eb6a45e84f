"""Per-head numbers that a training logs at each validation."""

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging

import headlab.training.head_statistics
from headlab.errors import HeadlabError
from headlab.head_names import heads_of
from headlab.training.head_statistics import HeadStatistics, head_statistics
from headlab.transformer import Transformer

PAIRS = [([5, 6, 7, 8], [9, 10, 11]), ([12, 13], [14, 15, 16, 17])]


def tags_of(kept: dict[str, list[list[int]]]) -> set[str]:
    tags = set()
    for head in heads_of(kept):
        position = "diagonality" if head.site == "cross" else "positional"
        for name in ("entropy", "confidence", position):
            tags.add(f"{name}/{head.site}/layer_{head.layer}/head_{head.head}")
    return tags


def test_every_head_is_logged_at_every_validation(
    tiny_training: Callable[..., Any], read_events: Callable[[], Any]
) -> None:
    module = tiny_training([HeadStatistics(sentences=3)], steps=7, heads=4)
    events = read_events()
    tags = {tag for tag in events.Tags()["scalars"] if "/layer_" in tag}
    assert tags == tags_of(module.model.kept)
    for tag in tags:
        values = events.Scalars(tag)
        assert [value.step for value in values] == [3, 6]
        assert all(-1 <= value.value < math.log(64) for value in values)


def test_heads_of_a_pruned_model_keep_their_numbers(
    tiny_training: Callable[..., Any], read_events: Callable[[], Any]
) -> None:
    gone = ["encoder.0.0", "decoder.1.*", "cross.0.1-3"]
    module = tiny_training([HeadStatistics(sentences=3)], steps=4, heads=4, ablate=gone)
    tags = {tag for tag in read_events().Tags()["scalars"] if "/layer_" in tag}
    assert tags == tags_of(module.model.kept)
    assert "entropy/encoder/layer_0/head_0" not in tags
    assert "entropy/encoder/layer_0/head_3" in tags


def test_the_numbers_are_those_of_the_averaged_weights(
    tiny_training: Callable[..., Any],
    tiny_data: Any,
    read_events: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = {}
    measure = headlab.training.head_statistics.head_statistics

    def keep(model: Transformer, *arguments: Any) -> Any:
        first.setdefault("weights", {k: v.clone() for k, v in model.state_dict().items()})
        return measure(model, *arguments)

    monkeypatch.setattr(headlab.training.head_statistics, "head_statistics", keep)
    average = EMAWeightAveraging(decay=0.5)
    module = tiny_training([HeadStatistics(5), average], steps=3)
    name = "encoder.0.self_attention.in_projection.weight"
    # Once more without the average: the last weights, which the module has in both cases.
    averaged = first.pop("weights")[name]
    tiny_training([HeadStatistics(5)], steps=3)
    newest = first.pop("weights")[name]
    assert not torch.equal(averaged, newest)
    assert torch.equal(averaged, module.model.state_dict()[name])  # at its end they are swapped in


def test_training_is_the_same_to_the_last_bit(tiny_training: Callable[..., Any]) -> None:
    plain = tiny_training([], steps=4, val_check_interval=3).state_dict()
    after_plain = torch.rand(3)
    watched = tiny_training([HeadStatistics(4)], steps=4, val_check_interval=3).state_dict()
    assert torch.equal(after_plain, torch.rand(3))
    for name, value in plain.items():
        assert torch.equal(value, watched[name]), name


def test_a_fault_never_ends_training(
    tiny_training: Callable[..., Any],
    tiny_data: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tiny_data, "validation_examples", lambda count: 1 / 0)
    with caplog.at_level(logging.WARNING, logger="headlab"):
        tiny_training([HeadStatistics(4)], steps=4, val_check_interval=3)
    assert sum("head statistics" in record.getMessage() for record in caplog.records) == 1


def test_none_are_asked_for(
    tiny_training: Callable[..., Any], read_events: Callable[[], Any]
) -> None:
    tiny_training([HeadStatistics(0)], steps=4)
    assert not [tag for tag in read_events().Tags()["scalars"] if "/layer_" in tag]
    tiny_training([HeadStatistics(2)], steps=4, logger=False)
    with pytest.raises(HeadlabError, match=r"callbacks.head_statistics.sentences=-1"):
        HeadStatistics(-1)


def test_batching_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Transformer(source_vocab_size=20, target_vocab_size=20, d_model=16, heads=2).eval()
    together = head_statistics(model, PAIRS)
    monkeypatch.setattr("headlab.training.head_statistics.BATCH_TOKENS", 1)
    alone = head_statistics(model, PAIRS)
    assert together.keys() == alone.keys() == tags_of(model.kept)
    for tag, value in together.items():
        assert value == pytest.approx(alone[tag], abs=1e-6), tag


def test_gates_are_taken_into_account() -> None:
    torch.manual_seed(0)
    model = Transformer(source_vocab_size=20, target_vocab_size=20, d_model=16, heads=2).eval()
    closed = {"encoder": torch.zeros(model.encoder_layers, 2)}
    plain, gated = head_statistics(model, PAIRS), head_statistics(model, PAIRS, closed)
    first, second = "entropy/encoder/layer_0/head_0", "entropy/encoder/layer_1/head_0"
    assert plain[first] == gated[first]  # nothing stands before it
    assert plain[second] != gated[second]
