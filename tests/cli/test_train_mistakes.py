"""Mistakes on the command line of a training: one line, before any data is read."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from headlab.cli import configuration, folders, resuming
from headlab.cli.train import main
from headlab.data.corpus import build_corpus
from headlab.errors import HeadlabError
from headlab.training.fit import _check_model, build_trainer

pytestmark = pytest.mark.usefixtures("empty_folder")

GROUPS = ["tokenizer", "attention", "position", "model", "optimizer", "schedule", "trainer",
          "callbacks", "logger", "gates"]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.heads=16", "model.d_model=100"],
            "model.d_model=100 is not divisible by model.heads=16; choose heads from 1, 2, 4, 5, ",
        ),
        (["model.heads=0"], "model.heads=0 must be at least 1"),
        (["model.heads=256"], "model.d_model=128 is not divisible by model.heads=256"),
        (["attention.kv_heads=3"], "attention.kv_heads=3 does not divide model.heads=8"),
        (["attention=gqa", "attention.kv_heads=null"], "attention.kv_heads must be given for gqa"),
        (["attention=mla", "attention.kv_heads=2"], "attention.kv_heads=2 is read by mha, gqa, mo"),
        (["attention=mqa", "attention.kv_heads=2"], "attention.kv_heads=2 is read by mha, gqa, mo"),
        (["attention.latent_dim=8"], "attention.latent_dim=8 is read by mla only, and none of"),
        (["attention=mla", "attention.rope_dim=4"], "attention.rope_dim=4 is read in position=r"),
        (["attention.cross=gka"], "attention.cross=gka is not known; choose from mha, gqa, mqa, "),
        (["attention=bas"], "attention=bas: choose from gqa, hybrid, mha, mla, moh, mqa"),
        (
            ["attention=hybrid", "model.decoder_layers=2"],
            "attention.softmax_every=4 leaves no layer with softmax attention among model.decoder",
        ),
        (["attention=hybrid", "attention.softmax_every=0"], "attention.softmax_every=0 must be"),
        (["position=rope", "position.base=0"], "position.base=0 must be above 1, and finite"),
        (["position=rope", "position.base=inf"], "position.base=inf must be above 1, and finite"),
        (["position=rope", "position.base=nan"], "position.base=nan must be above 1, and finite"),
        (["loss.balance=-1"], "loss.balance=-1 must be at least 0, and finite"),
        (["loss.balance=nan"], "loss.balance=nan must be at least 0, and finite"),
        (["attention.kv_heads=None"], "attention.kv_heads=None is the text 'None' here; write"),
        (["model.haeds=4"], "model.haeds: no such key; did you mean model.heads?"),
        (["modle.heads=4"], "modle.heads: no such key; did you mean model.heads?"),
        (["+model.haeds=4"], "model.haeds: no such key; did you mean heads?"),
        (["data=multi3k"], "data=multi3k: did you mean multi30k?"),
        (["model.heads=abc"], "model.heads='abc': a valid integer was expected"),
        (["model.heads=2.5"], "model.heads=2.5: a valid integer was expected"),
        (["model.d_model=null"], "model.d_model=None: a valid integer was expected"),
        (["batches.max_tokens=0"], "batches.max_tokens=0 must be at least 1"),
        (["batches.max_tokens=many"], "batches.max_tokens='many': a valid integer was expected"),
        (["batches.max_length=500"], "batches.max_length=500 is longer than position.max_length"),
        (["batches.subword_sampling=2"], "batches.subword_sampling=2 must lie in"),
        (["schedule.kind=line"], "schedule.kind=line: choose inverse_sqrt, cosine or constant"),
        (["schedule.warmup_steps=-5"], "schedule.warmup_steps=-5 must not be negative"),
        (["optimizer.lr=-1"], "optimizer: "),
        (["optimizer.lr=fast"], "optimizer: "),
        (["model.dropout=1.5"], "model.dropout=1.5 must lie in [0, 1)"),
        (["loss.label_smoothing=1.0"], "loss.label_smoothing=1.0 must lie in [0, 1)"),
        (["trainer.precision=17"], "trainer: "),
        (
            ["trainer.max_epoch=3"],
            "trainer.max_epoch: no such key; did you mean trainer.max_epochs?",
        ),
        (["trainer.max_epochs=0"], "trainer.max_epochs=0 must be at least 1"),
        (["trainer.accelerator=tpuu"], "trainer: "),
        (["threads=0"], "threads=0 must be at least 1, or null"),
        (["seed=x"], "seed='x': a valid integer was expected"),
        (["callbacks.checkpoints.mode=most"], "callbacks.checkpoints.mode=most: choose max or min"),
        (["callbacks.checkpoints=null"], "callbacks.checkpoints cannot be null"),
        (["resume=nowhere/last.ckpt"], "resume=nowhere/last.ckpt: no such file"),
        (["decoding.beam=0"], "decoding.beam=0 must be at least 1"),
        (["decoding.beam=abc"], "decoding.beam='abc': a valid integer was expected"),
        (["decoding.max_ratio=-1"], "decoding.max_ratio=-1 must be a number of at least 0"),
        (["decoding.length_penalty=100"], "decoding.length_penalty=100 must lie between"),
        (["evaluation.validation_sentences=0"], "evaluation.validation_sentences=0 must be at"),
        (["evaluation.samples=abc"], "evaluation.samples='abc': a valid integer was expected"),
        (
            ["callbacks.checkpoints.monitor=val/blue"],
            "callbacks.checkpoints.monitor=val/blue is not measured; choose from val/loss, ",
        ),
        (["callbacks.validation_scores=null"], "callbacks.checkpoints.monitor=val/bleu is not"),
        (["callbacks.checkpoints.every_n_steps=abc"], "callbacks.checkpoints.every_n_steps='abc'"),
        (["loss.label_smoothing=abc"], "loss.label_smoothing='abc': a valid number was expected"),
        (["position.max_length=abc"], "position.max_length='abc': a valid integer was expected"),
        (["trainer.max_epochs=abc"], "trainer.max_epochs='abc': a valid integer was expected"),
        (["trainer.accumulate_grad_batches=0"], "trainer.accumulate_grad_batches=0 must be above"),
        (["trainer.val_check_interval=0"], "trainer.val_check_interval=0 must be above 0"),
        (["attention.dropout=abc"], "attention.dropout='abc': a valid number was expected"),
        (["attention.kv_heads=abc"], "attention.kv_heads='abc': a valid integer was expected"),
        (["seed=-1"], "seed=-1 must lie between 0 and 4294967295"),
        (["model=null"], ""),
        (["~loss"], "loss=None: a group of keys was expected"),
        (["~tokenizer.kind"], "tokenizer.kind is missing; give it a value"),
        (["tokenizer.joint=no"], "tokenizer.joint='no': a valid boolean was expected"),
        (["paths.data=null"], ""),
        (["--experimental-rerun", "x.pickle"], "--experimental-rerun would load a pickle"),
        (["model.heads=4@#%["], ""),
        (["position.kind=spiral"], "position.kind=spiral is not known; choose from sinusoidal"),
        (["position=spiral"], "position=spiral: "),
        (["gates=l0", "gates.penalty.encoder=-1"], "gates.penalty.encoder=-1 must be at least 0"),
        (
            ["gates=l0", "gates.penalty.cross=much"],
            "gates.penalty.cross='much': a valid number was",
        ),
        (["gates=l0", "gates.temperature=0"], "gates.temperature=0 must be above 0"),
        (["gates=l0", "gates.start=open"], "gates.start='open': a valid number was expected"),
        (["gates=l0", "gates.learning_rate=0"], "gates.learning_rate=0 must be above 0"),
        (["gates=l0", "+gates.slope=1"], "gates.slope: no such key"),
        (["gates=l0", "~gates.low"], "gates.low is missing; give it a value"),
        (["gates=l1"], "gates=l1: choose from l0, none"),
        (["callbacks.checkpoints.monitor=val/objective"], "callbacks.checkpoints.monitor=val/obj"),
        (["model.ablate=[cross.9.0]"], "model.ablate: there is no head cross.9.0; the heads are "),
        (["model.ablate=[cross]"], "model.ablate: 'cross' is no head; write site.layer.head"),
        (["model.ablate=cross.1.0"], "model.ablate='cross.1.0': a list, in brackets, was expected"),
        (["model.ablate=[1]"], "model.ablate=[1]: a valid string was expected"),
        (["data=files"], "data.train"),
        (["data.sourec=en"], "data.sourec: no such key; did you mean data.source?"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_one_line_and_status_1(overrides: list[str], message: str, capfd) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(overrides)
    assert stopped.value.code == 1
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert lines[0].startswith(f"error: {message}")
    assert "pairs read" not in out  # before any data was read
    assert not list(Path("outputs").glob("*/*.ckpt"))
    assert not Path("outputs/latest").exists()


def composed(*overrides: str) -> dict:
    configuration.register_resolvers()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(configuration.folder()), version_base="1.3"):
        config = compose("train", overrides=list(overrides))
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    return plain


OPTIONS = [
    f"{group}={path.stem}"
    for group in GROUPS
    for path in sorted((configuration.folder() / group).glob("*.yaml"))
] + [f"experiment={p.stem}" for p in sorted((configuration.folder() / "experiment").glob("*.yaml"))]


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_composes_and_instantiates(option: str, tmp_path: Path) -> None:
    config = composed(option)
    configuration.check(config)
    configuration.anchor(config)
    _check_model(config)
    trainer = build_trainer(config, tmp_path, False)  # type: ignore[arg-type]
    assert trainer.max_epochs == config["trainer"]["max_epochs"]


@pytest.mark.parametrize("name", ["home_assistant", "multi30k", "hub"])
def test_every_corpus_is_built_from_the_tree(name: str) -> None:
    config = composed(f"data={name}", "data.source=en", "data.target=de")
    assert build_corpus(config["data"]).target == "de"


def test_there_is_a_group_for_every_folder() -> None:
    """A new folder of the tree must be tested as well."""
    folders = {p.name for p in configuration.folder().iterdir() if p.is_dir()}
    assert folders == {*GROUPS, "data", "experiment", "ablation"}


def test_a_recipe_may_be_a_sweep() -> None:
    """Its jobs are named after what differs, with and without -m."""
    for flag in ([], ["-m"]):
        line = configuration.for_hydra([*flag, "experiment=heads_sweep", "data.limit=5"])
        name = "hydra.job.config.override_dirname.exclude_keys=[data.limit,experiment]"
        assert line == [*flag, "experiment=heads_sweep", "data.limit=5", name]
    assert configuration.for_hydra(["experiment=l0_gates"]) == ["experiment=l0_gates"]


def test_slug_needs_no_escaping() -> None:
    assert folders.slug("a b=c,d/é", 3) == "a-b-c-d-3"
    assert folders.slug("=,") == "run"
    assert len(folders.slug("x" * 500)) == 80


def test_paths_are_made_absolute_where_they_exist(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").touch()
    config = {
        "paths": {"data": "data", "outputs": "out"},
        "data": {"root": "data", "train": ["pairs.tsv", "other.tsv"], "path": "user/name"},
    }
    configuration.anchor(config)
    assert config["data"]["train"] == [str(tmp_path / "pairs.tsv"), "other.tsv"]
    assert config["data"]["path"] == "user/name"
    assert config["paths"] == {"data": str(tmp_path / "data"), "outputs": str(tmp_path / "out")}


def test_targets_outside_the_tree_are_refused_from_a_checkpoint(
    tmp_path: Path, monkeypatch
) -> None:
    config = composed()
    config["logger"]["_target_"] = "os.system"
    monkeypatch.setattr("headlab.checkpoint.read_raw", lambda _: {"headlab": {"config": config}})
    monkeypatch.delenv(resuming.VARIABLE, raising=False)
    with pytest.raises(HeadlabError, match=r"logger\._target_=os\.system is not in the config"):
        resuming.of_checkpoint(tmp_path / "last.ckpt")
