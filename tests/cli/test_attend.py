"""``headlab attend`` on a small trained checkpoint."""

import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from typer.testing import CliRunner

import headlab.plots
from headlab.checkpoint import Loaded
from headlab.cli.attend import attend
from headlab.errors import HeadlabError

app = typer.Typer()
app.command()(attend)

SENTENCE = "the timer is finished"
TRANSLATION = "le minuteur est terminé"


@pytest.fixture
def checkpoint(learnt_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The checkpoint's path; the working folder is empty."""
    monkeypatch.chdir(tmp_path)
    return str(learnt_checkpoint)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that the command saves."""
    figures: list[Figure] = []
    save = headlab.plots.save_figure

    def keep(figure: Figure, path: Path) -> Path:
        figures.append(figure)
        return save(figure, path)

    monkeypatch.setattr(headlab.plots, "save_figure", keep)
    return figures


def run(*arguments: str) -> list[str]:
    """Lines of standard output; what the command raises comes through."""
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)
    return result.stdout.splitlines()


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_one_picture_of_every_head(checkpoint: str, learnt: Loaded, drawn: list[Figure]) -> None:
    translation, path, following = run(checkpoint, SENTENCE)
    assert translation == TRANSLATION
    assert path == "attention.png"
    assert files() == ["attention.png"]
    assert np.asarray(Image.open(path)).std() > 1
    (figure,) = drawn
    shown = texts(figure)
    assert {"encoder 0", "decoder 0", "cross 0"} <= set(shown)
    assert [shown.count(f"head {head}") for head in range(4)] == [3] * 4
    tokenizer = learnt.tokenizers.source
    pieces = tokenizer.pieces(tokenizer.encode(SENTENCE) + tokenizer.encode(TRANSLATION))
    assert {"<s>", "</s>", *pieces} <= set(shown)
    assert f"{SENTENCE} → {TRANSLATION}" in shown

    assert following.startswith("next: headlab attend ")
    again = shlex.split(following.removeprefix("next: headlab attend "))
    assert run(*again)[0] == TRANSLATION  # the command that it proposes works
    assert files() == ["attention.png", "cross_0.png"]


@pytest.mark.parametrize("suffix", ["pdf", "svg", "PNG"])
def test_the_suffix_decides_the_format(checkpoint: str, suffix: str) -> None:
    Path("folder").mkdir()
    lines = run(checkpoint, SENTENCE, "--out", f"folder/a.{suffix}")
    assert lines[1] == f"folder/a.{suffix}"
    start = {"pdf": b"%PDF", "svg": b"<?xml", "PNG": b"\x89PNG"}[suffix]
    assert Path(lines[1]).read_bytes().startswith(start)


def test_one_site_and_layer(checkpoint: str, drawn: list[Figure]) -> None:
    lines = run(checkpoint, SENTENCE, "--site", "cross", "--layer", "0", "--out", "c.png")
    assert lines[1] == "c.png"
    assert lines[2].startswith("next: headlab evaluate ")
    shown = texts(drawn[0])
    assert [shown.count(f"head {head}") for head in range(4)] == [1] * 4
    assert f"cross-attention, layer 0: {SENTENCE} → {TRANSLATION}" in shown


def test_a_picture_for_each_layer(checkpoint: str) -> None:
    Path("maps").mkdir()
    lines = run(checkpoint, SENTENCE, "--per-layer", "--out", "maps/a.png")
    expected = [f"maps/a_{site}_0.png" for site in ("encoder", "decoder", "cross")]
    assert lines[1:4] == expected
    assert files() == ["maps", *sorted(expected)]
    Path("maps/a_cross_0.png").write_bytes(b"\x89PNG of a holiday")
    with pytest.raises(HeadlabError, match=r"maps/a_cross_0.png is there already and is not"):
        run(checkpoint, SENTENCE, "--per-layer", "--out", "maps/a.png")


def test_a_given_translation_is_looked_at(checkpoint: str, drawn: list[Figure]) -> None:
    lines = run(checkpoint, SENTENCE, "--target", "la porte $x_{")
    assert lines[0] == "la porte $x_{"
    # Signs that the tokenizer has not seen are spelled in bytes.
    assert {"▁la", "▁porte", "<0x24>", "<0x5F>", "<0x7B>"} <= set(texts(drawn[0]))


def test_the_maps_are_those_of_the_model(
    checkpoint: str, learnt: Loaded, drawn: list[Figure]
) -> None:
    run(checkpoint, SENTENCE, "--target", TRANSLATION, "--site", "cross", "--layer", "0")
    source = [*learnt.tokenizers.source.encode(SENTENCE), 3]
    target = [2, *learnt.tokenizers.target.encode(TRANSLATION)]
    weights = learnt.model.attention_weights(torch.tensor([source]), torch.tensor([target]))
    images = [image for axes in drawn[0].axes[1:] for image in axes.get_images()]
    assert len(images) == 4
    for head, image in enumerate(images):
        shown = torch.tensor(np.asarray(image.get_array()))
        torch.testing.assert_close(shown, weights["cross"][0][0, head], rtol=0, atol=1e-6)
        torch.testing.assert_close(shown.sum(-1), torch.ones(len(target)))


def test_scripts_without_a_font_are_said_once(
    checkpoint: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headlab.plots, "missing_glyphs", lambda pieces: "語" * 30)
    result = CliRunner().invoke(app, [checkpoint, "語"], standalone_mode=False)
    assert result.exception is None
    assert result.stderr.count("語") == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["  \u3000\u00a0\u200b"], "sentence is blank"),
        ([""], "sentence is blank"),
        ([SENTENCE, "--target", " "], "--target is blank"),
        ([SENTENCE, "--out", "a.gif"], "a.gif"),
        ([SENTENCE, "--out", "a"], ".png, .pdf, .svg"),
        ([SENTENCE, "--site", "self"], "choose encoder, decoder or cross"),
        ([SENTENCE, "--layer", "1"], "layers 0 to 0"),
        ([SENTENCE, "--layer", "-1"], "layers 0 to 0"),
        ([SENTENCE, "--site", "cross", "--layer", "7"], "--layer 7: the cross attention"),
        (["x" * 300], "pieces; 63 can be drawn"),
        ([SENTENCE, "--target", "é" * 300], "--target has"),
        (["a\udcff"], "not UTF-8"),
        ([SENTENCE, "--device", "nowhere"], "--device nowhere"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    checkpoint: str, arguments: list[str], said: str
) -> None:
    with pytest.raises(HeadlabError) as caught:
        run(checkpoint, *arguments)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files() == []


def test_a_missing_checkpoint_and_a_closed_place_are_refused(checkpoint: str) -> None:
    with pytest.raises(HeadlabError, match=r"nothing\.ckpt"):
        run("nothing.ckpt", SENTENCE)
    Path("file").write_text("")
    with pytest.raises(HeadlabError, match="there is no folder file; make it first"):
        run(checkpoint, SENTENCE, "--out", "file/a.png")


def test_the_longest_sentence_can_be_drawn(
    checkpoint: str, learnt: Loaded, drawn: list[Figure]
) -> None:
    encode = learnt.tokenizers.source.encode
    longest = next("q" * n for n in range(100, 0, -1) if len(encode("q" * n)) <= 63)
    assert len(encode(longest)) == 63  # and the end of sentence makes 64
    run(checkpoint, longest, "--target", longest)
    assert len(drawn) == 1


def test_a_translation_without_end_is_drawn(
    checkpoint: str, learnt: Loaded, tmp_path: Path
) -> None:
    """A model that never ends its sentence fills every position."""
    raw = torch.load(checkpoint, weights_only=True)
    path = tmp_path / "endless.ckpt"
    for name in ("model.output.weight", "model.target_embedding.weight"):
        raw["state_dict"][name] = raw["state_dict"][name].clone()
        raw["state_dict"][name][3] = 0.0
        raw["state_dict"][name][10] += 5.0 * raw["state_dict"][name].mean(0).sign()
    torch.save(raw, path)
    result = CliRunner().invoke(app, [str(path), "b" * 40], standalone_mode=False)
    assert result.exception is None
    assert "cut at the model's length limit" in result.stderr
    assert result.stdout.splitlines()[-2] == "attention.png"
