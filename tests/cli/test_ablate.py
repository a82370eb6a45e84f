"""``headlab ablate`` in this process: every plan, what it writes and prints, and mistakes."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import typer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from headlab.checkpoint import read_checkpoint, save_checkpoint
from headlab.cli.ablate import WithSettings, ablate
from headlab.cli.ablation_settings import PLANS, read_settings
from headlab.cli.configuration import folder as configs
from headlab.cli.evaluate import evaluate
from headlab.decoding import Translator
from headlab.errors import HeadlabError
from headlab.head_names import Head
from headlab.heads.measure import Measurer
from headlab.heads.surgery import cut_heads

Pairs = tuple[tuple[str, str], ...]

FAST = ["significance.level=0.05", "significance.resamples=20", "figures.dpi=40", "threads=1"]

app = typer.Typer()
app.command(cls=WithSettings, context_settings={"ignore_unknown_options": True})(ablate)
app.command()(evaluate)


def run(*arguments: object) -> str:
    """Standard output of the command; what it raises comes through."""
    texts = ["ablate", *map(str, arguments)]
    result = CliRunner().invoke(app, texts, catch_exceptions=False, standalone_mode=False)
    return result.stdout


@pytest.fixture
def checkpoint(
    checkpoint_with_corpus: Callable[..., Path], sentence_pairs: list[tuple[str, str]]
) -> Path:
    """A checkpoint with a small corpus."""
    parts = {"train": sentence_pairs, "validation": sentence_pairs[4:]}
    return checkpoint_with_corpus(parts | {"test": sentence_pairs[:6]})


@pytest.fixture
def study(checkpoint: Path) -> Callable[..., tuple[str, Path]]:
    """``study(kind, ...)``: what was printed, and the folder."""

    def study(kind: str, *settings: str, part: str = "test") -> tuple[str, Path]:
        output = run(checkpoint, f"ablation={kind}", *FAST, *settings)
        return output, checkpoint.with_name(f"best.ablation-{kind}-{part}")

    return study


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_head(checkpoint: Path, study) -> None:
    output, folder = study("each_head")
    rows = read(folder / "ablation.csv")
    assert [row["configuration"] for row in rows[:2]] == ["full", "encoder.0.0"]
    assert len(rows) == 13
    assert json.loads((folder / "ablation.json").read_text("utf-8"))[12]["off"] == ["cross.0.3"]
    run_app = CliRunner().invoke(app, ["evaluate", str(checkpoint)], catch_exceptions=False)
    assert run_app.exit_code == 0
    scores = json.loads(checkpoint.with_name("best.test.json").read_text("utf-8"))
    assert float(rows[0]["bleu"]) == scores["bleu"]
    assert float(rows[0]["chrf"]) == scores["chrf"]
    assert float(rows[0]["nll"]) == pytest.approx(scores["nll_per_token"], rel=1e-12)
    for name in ("bleu", "chrf", "nll"):
        assert (folder / f"{name}_change.png").read_bytes().startswith(b"\x89PNG")
        table = read(folder / f"{name}_change.csv")
        assert len(table) == 3
        assert float(table[2]["head_1"]) == pytest.approx(float(rows[10][f"{name}_change"]))
        change = float(rows[10][name]) - float(rows[0][name])
        assert float(rows[10][f"{name}_change"]) == pytest.approx(change)
    about = json.loads((folder / "about.json").read_text("utf-8"))
    assert about[0]["bleu_signature"] == scores["bleu_signature"]
    assert (about[0]["sentences"], about[0]["level"], about[0]["resamples"]) == (6, 0.05, 20)
    assert scores["chrf_signature"] in output
    assert list(rows[0])[:5] == ["configuration", "site", "layer", "head", "part"]
    assert "cross-attention" in output
    assert f"written: {folder}/" in output
    assert f"next: headlab ablate {checkpoint} ablation=all_but_one" in output
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert "ablation-each_head-test/nll_change" in tags["images"]
    assert "ablation-each_head-test/cross.0.1/bleu_change" in tags["scalars"]
    (point,) = events.Scalars("ablation-each_head-test/cross.0.1/nll_change")
    assert point.value == pytest.approx(float(rows[10]["nll_change"]), rel=1e-5)


def test_the_best_of_a_layer_is_chosen_on_validation(study) -> None:
    output, folder = study("all_but_one", "ablation.choose_by=nll")
    rows = read(folder / "ablation.csv")
    validation = [row for row in rows if row["part"] == "validation"]
    test = [row for row in rows if row["part"] == "test"]
    assert (len(validation), len(test)) == (13, 4)
    (line,) = read(folder / "michel_nll.csv")
    for site in ("encoder", "decoder", "cross"):
        of = {row["head"]: float(row["nll"]) for row in validation if row["site"] == site}
        best = min(of, key=lambda head: of[head])
        assert line[f"{site}_head"] == best
        (reported,) = [row for row in test if row["site"] == site]
        assert reported["head"] == best
        assert reported["heads_off"] == "3"
        change = float(reported["nll_change"])
        assert line[f"{site}_test"].rstrip("*") == f"{change:+.3f}"
        assert line[f"{site}_test"].rstrip("*") in output
        assert line[f"{site}_validation"] != line[f"{site}_test"]
    assert (folder / "michel.csv").is_file()
    assert (folder / "bleu_change_validation.png").is_file()
    assert "headlab importance" in output


def test_all_but_one_each(study) -> None:
    output, folder = study("all_but_one", "ablation.keep=each", "metrics=[nll]")
    rows = read(folder / "ablation.csv")
    assert len(rows) == 13
    assert rows[6]["configuration"] == "only-decoder.0.1"
    assert rows[6]["off"] == "decoder.0.0 decoder.0.2-3"
    assert not (folder / "michel.csv").exists()
    assert "BLEU" not in output


def test_choosing_and_reporting_on_one_split_is_pointed_out(checkpoint: Path) -> None:
    arguments = ["ablate", str(checkpoint), "ablation=all_but_one", "ablation.choose_on=test"]
    found = CliRunner().invoke(app, [*arguments, *FAST], catch_exceptions=False)
    assert "heads are chosen and reported on the same sentences (test)" in found.stderr
    line = read(checkpoint.with_name("best.ablation-all_but_one-test") / "michel.csv")[0]
    assert line["cross_test_chosen"] == line["cross_test_reported"]


def test_layers_and_sites(study) -> None:
    _, folder = study("each_layer")
    assert [row["configuration"] for row in read(folder / "ablation.csv")] == [
        "full", "encoder.0", "decoder.0", "cross.0",
    ]  # fmt: skip
    output, folder = study("each_site", "metrics=[bleu]")
    assert [row["configuration"] for row in read(folder / "ablation.csv")] == [
        "full", "encoder", "decoder", "cross",
    ]  # fmt: skip
    assert (folder / "bleu_change.png").is_file()
    assert "the decoder sees nothing of the source" in output


def test_random(study) -> None:
    output, folder = study("random", "ablation.k=[1,4]", "ablation.draws=3", "ablation.seed=5")
    rows = read(folder / "ablation.csv")[1:]
    assert [row["seed"] for row in rows] == ["5", "6", "7"] * 2
    one, four = read(folder / "spread.csv")
    assert (one["k"], one["draws"], four["heads_left"]) == ("1", "3", "8")
    changes = torch.tensor([float(row["nll_change"]) for row in rows[3:]])
    assert float(four["nll_change_mean"]) == pytest.approx(float(changes.mean()))
    assert float(four["nll_change_sd"]) == pytest.approx(float(changes.std()))
    assert "±" in output
    assert (folder / "nll_change.png").is_file()


def test_a_list_is_off_at_once(study) -> None:
    output, folder = study("list", "ablation.heads=[encoder.0.3,cross.0.0-1]")
    full, row = read(folder / "ablation.csv")
    assert row["off"] == "encoder.0.3 cross.0.0-1"
    assert (row["heads_off"], row["heads_left"]) == ("3", "9")
    assert float(row["nll"]) != float(full["nll"])
    assert "encoder.0.3 cross.0.0-1" in output


def test_everything_off_says_what_is_left(study) -> None:
    output, folder = study("list", "ablation.heads=['*.*.*']")
    row = read(folder / "ablation.csv")[1]
    assert (row["heads_left"], row["left"]) == ("0", "")
    assert float(row["nll"]) > 0
    words = " ".join(output.split())
    assert "no head is left; the residual connections carry the embeddings through the" in words


def test_likelihood_alone_never_translates(study, monkeypatch) -> None:
    monkeypatch.setattr(Translator, "hypotheses", lambda *_, **__: 1 / 0)
    _, folder = study("each_head", "metrics=[nll]", "significance.level=0.2")
    rows = read(folder / "ablation.csv")
    assert "bleu" not in rows[0]
    assert not (folder / "bleu_change.png").exists()


def test_files_and_a_limit(checkpoint: Path, tmp_path: Path) -> None:
    source, reference = tmp_path / "a b.en", tmp_path / "a.fr"
    source.write_text("open the door\n\nthe light is on\na friend\n", encoding="utf-8")
    reference.write_text("ouvrez la porte\n\nla lumière est allumée\nami\n", encoding="utf-8")
    settings = [f"source={source}", f"reference={reference}", "sentences=3"]
    run(checkpoint, "ablation=each_site", *FAST, *settings)
    folder = checkpoint.with_name("best.ablation-each_site-file-a_b.en-first3")
    assert float(read(folder / "ablation.csv")[0]["bleu"]) > 0
    # Other sentences under the same name are another study.
    source.write_text("close the door\n\nthe light is on\na friend\n", encoding="utf-8")
    run(checkpoint, "ablation=each_site", *FAST, *settings)
    assert (folder.parent / f"{folder.name}-2" / "ablation.csv").is_file()


def test_decoding_and_case_are_settings(study) -> None:
    _, folder = study("each_site", "decoding.beam=2", "decoding.length_penalty=0.5")
    described = json.loads((folder / "settings.json").read_text("utf-8"))
    assert described["decoding"]["beam"] == 2
    assert described["decoding"]["length_penalty"] == 0.5
    assert described["scoring"] == [False, "13a"]
    study("each_site", "lowercase=true")
    other = folder.with_name(f"{folder.name}-2")
    described = json.loads((other / "settings.json").read_text("utf-8"))
    assert described["scoring"] == [True, "13a"]
    assert described["decoding"]["beam"] == 1


def test_other_stars_and_other_decimals_leave_the_first_tables(study, monkeypatch) -> None:
    """They have a folder of their own, and nothing is measured again for them."""
    _, folder = study("each_site", "metrics=[nll]")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    monkeypatch.setattr(Measurer, "measure", None)
    for changed in ("significance.level=0.5", "figures.decimals=4"):
        output, _ = study("each_site", "metrics=[nll]", changed)
        assert f"written: {folder}-" in output
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
    assert read(folder.with_name(f"{folder.name}-2") / "about.csv")[0]["level"] == "0.5"


def test_a_stopped_study_goes_on(checkpoint: Path, study, monkeypatch) -> None:
    calls = []
    measure = Measurer.measure

    def counted(self: Measurer, *arguments: object, **options: object) -> object:
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append(1)
        return measure(self, *arguments, **options)

    monkeypatch.setattr(Measurer, "measure", counted)
    arguments = ["ablate", str(checkpoint), "ablation=each_head", *FAST, "metrics=[nll]"]
    stopped = CliRunner().invoke(app, arguments)
    assert stopped.exit_code == 130
    assert "stopped; the same command goes on from here" in stopped.stderr
    calls.extend([1] * 100)
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0
    assert "3 of them were measured before" in again.stderr
    assert len(calls) == 104 + 9
    folder = checkpoint.with_name("best.ablation-each_head-test")
    assert len(read(folder / "ablation.csv")) == 13


def test_pruned_checkpoints_keep_their_numbers(checkpoint: Path) -> None:
    loaded = read_checkpoint(checkpoint)
    heads = [Head("cross", 0, 1), *(Head("decoder", 0, i) for i in range(4))]
    path = checkpoint.with_name("pruned.ckpt")
    save_checkpoint(path, loaded, cut_heads(loaded.model, heads))
    output = run(path, *FAST, "metrics=[nll]")
    folder = path.with_name("pruned.ablation-each_head-test")
    rows = read(folder / "ablation.csv")
    assert [row["configuration"] for row in rows[5:]] == ["cross.0.0", "cross.0.2", "cross.0.3"]
    cross = read(folder / "nll_change.csv")[-1]
    assert (cross["site"], cross["head_1"]) == ("cross", "")
    assert cross["head_3"] != ""
    assert re.search(r"cross-attention[ │]+0[ │]+\S+[ │]+–[ │]", output)
    message = r"there is no head cross\.0\.1; the heads are encoder\.0\.0-3, cross\.0\.0, cross"
    with pytest.raises(HeadlabError, match=message):
        run(path, "ablation=list", "ablation.heads=[cross.0.1]")


MISTAKES = [
    (["ablation=each_heads"], r"ablation=each_heads: did you mean each_head\?"),
    (["spilt=test"], r"spilt: no such key; did you mean split\?"),
    (["+spilt=test"], r"spilt: no such key; did you mean split\?"),
    (["ablation.k=[1]"], r"ablation\.k: no such key; "),
    (["+ablation.kk=1", "ablation=random"], r"ablation\.kk: no such key"),
    (["--split", "test"], r"--split: settings are written key=value here, such as split=\.\.\."),
    (["--limit=3"], r"--limit=3: settings are written key=value"),
    (["split=tset"], r"split='tset': 'train', 'validation' or 'test' was expected"),
    (["metrics=[blue]"], r"metrics=\['blue'\]: 'bleu', 'chrf' or 'nll' was expected"),
    (["metrics=bleu"], r"metrics='bleu': a list, in brackets, was expected"),
    (["metrics=[]"], r"metrics=\[\]: choose some of bleu, chrf, nll"),
    (["sentences=0"], r"sentences=0 must be at least 1"),
    (["sentences=few"], r"sentences='few': a valid integer was expected"),
    (["decoding.beam=0"], r"decoding\.beam=0 must be at least 1"),
    (["decoding.beam=abc"], r"decoding\.beam='abc': a valid integer"),
    (["decoding.length_penalty=100"], r"decoding\.length_penalty=100 must lie between"),
    (["decoding.max_ratio=-1"], r"decoding\.max_ratio=-1 must be"),
    (["decoding=null"], r"decoding=None: a group of keys was expected"),
    (["lowercase=None"], r"lowercase=None is the text 'None' here; write lowercase=null"),
    (["significance.level=2"], r"significance\.level=2 must lie between 0 and 1"),
    (["significance.resamples=50"], r"significance\.resamples=50: .* use at least 100"),
    (["significance.seed=-1"], r"significance\.seed=-1 must lie between 0 and"),
    (["figures.dpi=0"], r"figures\.dpi=0 must lie between 20 and 600"),
    (["threads=0"], r"threads=0 must lie between 1 and 1024"),
    (["device=gpu9"], r"device=gpu9: not available here"),
    (["~split"], r"split is missing; give it a value"),
    (["~ablation"], r"ablation\.kind=None: choose from each_head, "),
    (["split=test,validation"], r"Ambiguous value for argument 'split=test,validation'"),
    (["split=a b=c"], r"mismatched input '='"),
    (["ablation=list"], r"ablation\.heads must name heads, such as 'ablation\.heads=\[encoder"),
    (["ablation=list", "ablation.heads=[]"], r"ablation\.heads must name heads"),
    (["ablation=list", "ablation.heads=cross.0.1"], r"ablation\.heads='cross\.0\.1': a list, in"),
    (["ablation=list", "ablation.heads=[cross]"], r"ablation\.heads: 'cross' is no head; write si"),
    (
        ["ablation=list", "ablation.heads=[cross.9.0]"],
        r"no head cross\.9\.0; the heads are encoder\.0\.0-3, decoder\.0\.0-3, cross\.0\.0-3",
    ),
    (["ablation=random", "ablation.k=[99]"], r"ablation\.k=99: there are 12 heads"),
    (["ablation=random", "ablation.k=[0]"], r"ablation\.k=\[0\] must hold numbers of at least 1"),
    (["ablation=random", "ablation.draws=0"], r"ablation\.draws=0 must lie between 1 and"),
    (["ablation=all_but_one", "ablation.keep=all"], r"ablation\.keep='all': 'best' or 'each' was"),
    (
        ["ablation=all_but_one", "metrics=[nll]"],
        r"ablation\.choose_by=bleu is not among metrics=\[nll\]; add it, or set ablation\.",
    ),
    (["ablation=all_but_one", "ablation.choose_on=dev"], r"ablation\.choose_on='dev': "),
    (["ablation=null"], r"ablation=null: choose from each_head, "),
    (["ablation.kind=some"], r"ablation\.kind=some: choose from each_head, "),
    (["reference=x"], r"reference needs source"),
    (["source=absent.txt"], r"source=absent\.txt has no reference: .*headlab roles .*best\.ckpt "),
    (["source=absent.txt", "reference=absent.txt"], r"absent\.txt"),
]


@pytest.mark.parametrize(("settings", "message"), MISTAKES, ids=lambda value: " ".join(value))
def test_mistakes_are_one_line_before_any_work(
    checkpoint: Path, settings: list[str], message: str, monkeypatch
) -> None:
    monkeypatch.setattr(Measurer, "measure", lambda *_, **__: 1 / 0)
    with pytest.raises(HeadlabError, match=message) as error:
        run(checkpoint, *settings)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == ["best.ckpt"]


def test_a_wrong_checkpoint_comes_first(tmp_path: Path) -> None:
    with pytest.raises(HeadlabError, match=r"no checkpoint at nowhere\.ckpt"):
        run("nowhere.ckpt", "ablation=nothing", "split=x")
    (tmp_path / "text.ckpt").write_text("text")
    with pytest.raises(HeadlabError, match="not a readable checkpoint"):
        run(tmp_path / "text.ckpt")
    with pytest.raises(HeadlabError, match="the checkpoint comes first, as in headlab ablate"):
        run("ablation=each_head")


def test_a_folder_that_cannot_be_written(checkpoint: Path, monkeypatch) -> None:
    make = Path.mkdir

    def closed(self: Path, *arguments: object, **options: object) -> None:
        if "ablation" in self.name:
            raise PermissionError(13, "Permission denied", str(self))
        make(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", closed)
    with pytest.raises(HeadlabError, match="copy it to a folder that can be written"):
        run(checkpoint, *FAST)


@pytest.mark.parametrize("kind", PLANS)
def test_every_plan_of_the_tree_composes(kind: str) -> None:
    assert {path.stem for path in (configs() / "ablation").glob("*.yaml")} == set(PLANS)
    assert read_settings([f"ablation={kind}"])["ablation"]["kind"] == kind


def test_help_shows_every_setting() -> None:
    result = CliRunner().invoke(app, ["ablate", "best.ckpt", "--help"])
    assert result.exit_code == 0
    for text in ("choose_on: validation", "resamples: 1000", "ablation=random", "cross.2.*"):
        assert text in result.stdout


def test_the_checkpoint_is_left_as_it_was(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copy(checkpoint, tmp_path / "before")
    run(checkpoint, "ablation=each_site", *FAST)
    assert checkpoint.read_bytes() == (tmp_path / "before").read_bytes()
