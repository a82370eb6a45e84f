"""The attention maps that a training leaves in TensorBoard."""

import io
import logging
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image

import headlab.plots
from headlab.errors import HeadlabError
from headlab.training.attention_maps import AttentionMaps
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
    assert not read_events().Tags()["images"]


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


def test_heads_of_a_pruned_model_keep_their_numbers(
    tiny_training: Callable[..., Any],
    read_events: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []
    draw = headlab.plots.attention_figure

    def keep(*args: Any, **options: Any) -> Any:
        drawn.append((args[3], options["heads"]))
        return draw(*args, **options)

    monkeypatch.setattr(headlab.plots, "attention_figure", keep)
    gone = ["encoder.0.0", "encoder.0.2", "decoder.1.*"]
    tiny_training([AttentionMaps(every_n_steps=1, sentences=1)], steps=1, heads=4, ablate=gone)
    found = {title.partition(", step")[0]: heads for title, heads in drawn}
    assert found["encoder self-attention, layer 0"] == [1, 3]
    assert found["encoder self-attention, layer 1"] == [0, 1, 2, 3]
    assert "masked decoder self-attention, layer 1" not in found
    assert len(found) == 5
    assert set(read_events().Tags()["images"]) == image_tags(1) - {
        "attention/decoder/layer_1/sentence_0"
    }


@pytest.mark.parametrize(
    "options", [{"every_n_steps": -1}, {"sentences": 0}, {"max_tokens": 0}, {"dpi": 5000}]
)
def test_settings_out_of_range_are_refused(options: dict[str, int]) -> None:
    (key,) = options
    with pytest.raises(HeadlabError, match=f"callbacks.attention_maps.{key}="):
        AttentionMaps(**options)
