"""The attention maps and entropies that a training leaves in TensorBoard."""

import io
import logging
import math
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image

import headlab.plots
from headlab.data.batches import collate
from headlab.errors import HeadlabError
from headlab.training.attention_maps import AttentionMaps, head_entropies
from headlab.training.observing import undisturbed

SITES = ("encoder", "decoder", "cross")


def image_tags(sentences: int) -> set[str]:
    return {
        f"attention/{site}/layer_{layer}/sentence_{k}"
        for site in SITES
        for layer in range(2)
        for k in range(sentences)
    }


def test_every_head_of_every_layer_is_logged(
    tiny_training: Callable[..., Any], read_events: Callable[[], Any]
) -> None:
    tiny_training([AttentionMaps(every_n_steps=2, sentences=2)], steps=5, heads=4)
    events = read_events()
    tags = events.Tags()
    assert {tag for tag in tags["images"] if tag.startswith("attention/")} == image_tags(2)
    for tag in image_tags(2):
        assert [event.step for event in events.Images(tag)] == [2, 4, 5]
    encoded = events.Images("attention/cross/layer_1/sentence_0")[0].encoded_image_string
    picture = np.asarray(Image.open(io.BytesIO(encoded)))
    assert picture.shape[2] == 3
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10
    entropies = {
        f"entropy/{site}/layer_{layer}/head_{head}"
        for site in SITES
        for layer in range(2)
        for head in range(4)
    }
    assert {tag for tag in tags["scalars"] if tag.startswith("entropy/")} == entropies
    for tag in entropies:
        values = events.Scalars(tag)
        assert [value.step for value in values] == [2, 4, 5]
        assert all(0 <= value.value < math.log(64) for value in values)
    assert plt.get_fignums() == []


def test_training_is_the_same_to_the_last_bit(tiny_training: Callable[..., Any]) -> None:
    plain = tiny_training([], steps=4).state_dict()
    after_plain = torch.rand(3)
    watched = tiny_training([AttentionMaps(every_n_steps=1, sentences=1)], steps=4).state_dict()
    assert torch.equal(after_plain, torch.rand(3))
    assert plain.keys() == watched.keys()
    for name, value in plain.items():
        assert torch.equal(value, watched[name]), name


def test_undisturbed_restores_modes_and_random_states() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5))
    model[1].eval()
    state = torch.get_rng_state()

    def look_and_stop() -> None:
        with undisturbed(model):
            assert not model[0].training
            assert not torch.is_grad_enabled()
            torch.rand(5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        look_and_stop()
    assert [model.training, model[0].training, model[1].training] == [True, True, False]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.is_grad_enabled()


def test_a_plotting_fault_never_ends_training(
    tiny_training: Callable[..., Any],
    read_events: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("the font is broken\nsecond line")

    monkeypatch.setattr(headlab.plots, "attention_figure", broken)
    with caplog.at_level(logging.WARNING, logger="headlab"):
        tiny_training([AttentionMaps(every_n_steps=1, sentences=1)], steps=4)
    said = [r.getMessage() for r in caplog.records if "attention maps" in r.getMessage()]
    assert len(said) == 1
    assert "ZeroDivisionError: the font is broken" in said[0]
    assert len(read_events().Scalars("entropy/cross/layer_0/head_0")) == 4


def test_a_model_without_weights_never_ends_training(
    tiny_training: Callable[..., Any],
    tiny_data: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tiny_data, "batch_from_texts", lambda pairs: 1 / 0)
    with caplog.at_level(logging.WARNING, logger="headlab"):
        tiny_training([AttentionMaps(every_n_steps=1)], steps=3)
    assert sum("attention weights" in r.getMessage() for r in caplog.records) == 1


def test_never_and_without_logger(
    tiny_training: Callable[..., Any], read_events: Callable[[], Any]
) -> None:
    tiny_training([AttentionMaps(every_n_steps=0)], steps=2)
    assert not read_events().Tags()["images"]
    tiny_training([AttentionMaps(every_n_steps=1)], steps=2, logger=False)


def test_one_drawing_an_optimizer_step(
    tiny_training: Callable[..., Any], read_events: Callable[[], Any]
) -> None:
    callback = AttentionMaps(every_n_steps=1, sentences=1)
    tiny_training([callback], steps=3, accumulate_grad_batches=2)
    steps = [e.step for e in read_events().Images("attention/encoder/layer_0/sentence_0")]
    assert steps == [1, 2, 3]


def test_max_tokens_and_dpi_bound_the_pictures(
    tiny_training: Callable[..., Any], read_events: Callable[[], Any]
) -> None:
    tiny_training([AttentionMaps(every_n_steps=1, sentences=1, max_tokens=3, dpi=40)], steps=1)
    events = read_events()
    for tag in image_tags(1):
        (event,) = events.Images(tag)
        assert event.width * event.height < 200_000
        assert len(event.encoded_image_string) < 20_000


def test_entropy_of_known_maps() -> None:
    batch = collate([[5, 6, 7], [5]], [[8, 9], [8, 9, 10]])  # sources of 4 and 2 tokens
    keys = batch.source.ne(0)[:, None, None, :].expand(2, 3, 4, 4)
    uniform = keys / keys.sum(-1, keepdim=True)
    weights = uniform.clone()
    weights[:, 1] = 0.0
    weights[:, 1, :, 0] = 1.0  # head 1 looks at the first token only
    weights[:, 2] = 0.5 * weights[:, 1] + 0.5 * weights[:, 1].roll(1, -1)  # head 2 at two
    weights[1, :, 2:] = 0.123  # queries that are padding must not count
    found = head_entropies(batch, {"encoder": [weights]})
    assert [entry[:3] for entry in found] == [("encoder", 0, head) for head in range(3)]
    expected = [(4 * math.log(4) + 2 * math.log(2)) / 6, 0.0, math.log(2)]
    assert [entry[3] for entry in found] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "options", [{"every_n_steps": -1}, {"sentences": 0}, {"max_tokens": 0}, {"dpi": 5000}]
)
def test_settings_out_of_range_are_refused(options: dict[str, int]) -> None:
    (key,) = options
    with pytest.raises(HeadlabError, match=f"callbacks.attention_maps.{key}="):
        AttentionMaps(**options)
