"""``init_from``: the configuration of a new run that starts from a checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from headlab.checkpoint import contents
from headlab.cli import configuration, options, resuming, starting
from headlab.cli.train import main
from headlab.errors import HeadlabError
from headlab.transformer import Transformer

pytestmark = pytest.mark.usefixtures("empty_folder")


def composed(*overrides: str) -> Any:
    configuration.register_resolvers()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(configuration.folder()), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def plain(config: Any) -> dict:
    config = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(config, dict)
    return config


RUN = (
    "data=multi30k", "data.path=/somewhere", "tokenizer=bpe", "tokenizer.lowercase=true",
    "model.heads=4", "model.d_model=32", "model.encoder_layers=1", "model.decoder_layers=1",
    "decoding.beam=3", "seed=7", "callbacks.weight_averaging=null", "optimizer.lr=0.5",
)  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path: Path, learnt) -> Path:
    """A checkpoint whose configuration differs from the defaults, with random weights."""
    path = tmp_path / "elsewhere" / "best=1, 'quoted'.ckpt"
    path.parent.mkdir()
    config = plain(composed(*RUN))
    configuration.anchor(config)
    config["data"]["root"] = config["paths"]["data"] = str(tmp_path / "data")
    pieces = learnt.tokenizers.source.vocab_size
    model = Transformer(source_vocab_size=pieces, target_vocab_size=pieces, **config["model"])
    described = contents(model, learnt.tokenizers, config)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"headlab": described, "state_dict": weights, "global_step": 9}, path)
    return path


def started(checkpoint: Path, *overrides: str) -> dict:
    """The configuration as train.py makes it, Hydra's rounds included."""
    line = starting.for_hydra([*overrides, f"init_from={checkpoint}"])
    return plain(starting.of_checkpoint(composed(*line), line, checkpoint))


def saved(checkpoint: Path) -> dict:
    return torch.load(checkpoint, weights_only=True)["headlab"]["config"]


def differences(one: Any, other: Any, key: str = "") -> set[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = one.keys() | other.keys()
        parts = [differences(one.get(k), other.get(k), f"{key}.{k}".lstrip(".")) for k in keys]
        return set().union(*parts)
    return set() if one == other else {key}


def test_without_more_it_is_the_run_of_the_checkpoint(checkpoint: Path) -> None:
    config = started(checkpoint)
    assert differences(config, saved(checkpoint)) == {"init_from", "paths.outputs"}
    assert config["init_from"] == str(checkpoint)


def test_only_what_is_touched_changes(checkpoint: Path) -> None:
    config = started(
        checkpoint,
        "data.path=/other",  # a key that the default corpus does not have
        "seed=8",
        "+trainer.limit_val_batches=3",
        "~callbacks.samples",
        "schedule=inverse_sqrt",
        "optimizer=adamw",  # the same option as in the run: not back to its defaults
        "model.dropout=0.4",
    )
    assert differences(config, saved(checkpoint)) == {
        "init_from", "paths.outputs", "data.path", "seed", "trainer.limit_val_batches",
        "callbacks.samples", "schedule.kind", "schedule.warmup_steps", "schedule.final",
        "model.dropout",
    }  # fmt: skip
    assert config["optimizer"]["lr"] == 0.5
    assert config["data"]["path"] == "/other"


def test_what_followed_another_key_follows_it_again(checkpoint: Path) -> None:
    config = started(checkpoint, "attention.dropout=0.2", "decoding.beam=5", "data.source=fr")
    assert config["model"]["attention"]["dropout"] == 0.2
    assert config["callbacks"]["validation_scores"]["decoding"]["beam"] == 5
    assert config["name"] == "fr-de-h4"
    assert config["evaluation"]["lowercase"] is True
    own = started(checkpoint, "evaluation.lowercase=false")
    assert own["callbacks"]["validation_scores"]["lowercase"] is False


def test_a_recipe_sets_its_keys_and_groups(checkpoint: Path) -> None:
    config = started(checkpoint, "experiment=l0_gates", "gates.penalty.cross=0.5")
    recipe = plain(composed("experiment=l0_gates"))
    assert config["gates"]["penalty"] == {**recipe["gates"]["penalty"], "cross": 0.5}
    assert config["optimizer"]["lr"] == recipe["optimizer"]["lr"]
    assert config["callbacks"]["checkpoints"]["monitor"] == "val/objective"
    assert config["callbacks"]["weight_averaging"] is None
    assert config["data"]["path"] == "/somewhere"
    assert config["name"] == "en-de-h4-l0"
    configuration.check(config)


def test_a_run_with_gates_is_started_from_as_a_plain_one(checkpoint: Path) -> None:
    raw = torch.load(checkpoint, weights_only=True)
    raw["headlab"]["config"] = started(checkpoint, "experiment=l0_gates")
    torch.save(raw, checkpoint)
    config = started(checkpoint)
    assert config["gates"] is None
    assert config["callbacks"]["checkpoints"]["monitor"] == "val/loss"
    configuration.check(config)
    assert started(checkpoint, "gates=l0")["gates"]["temperature"] == 0.33


def test_another_corpus_takes_its_whole_section(checkpoint: Path) -> None:
    config = started(checkpoint, "data=files", "data.train=pairs.tsv")
    assert config["data"] == plain(composed("data=files", "data.train=pairs.tsv"))["data"] | {
        "root": config["paths"]["data"]
    }


def test_the_folder_is_named_after_the_new_run(checkpoint: Path) -> None:
    line = starting.for_hydra(["experiment=l0_gates", f"init_from={checkpoint}"])
    assert "name=en-de-h4-l0" in line
    again = starting.for_hydra(line)  # by another process of a distributed run
    assert plain(starting.of_checkpoint(composed(*again), again, checkpoint)) == plain(
        starting.of_checkpoint(composed(*line), line, checkpoint)
    )


def test_a_checkpoint_of_another_machine_has_its_data_here(checkpoint: Path) -> None:
    raw = torch.load(checkpoint, weights_only=True)
    config = raw["headlab"]["config"]
    config["data"]["root"] = config["paths"]["data"] = "/no/such/machine"
    torch.save(raw, checkpoint)
    assert started(checkpoint)["data"]["root"] == "data"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.heads=8", "model.heads=8 does not fit the weights of elsewhere/best"),
        ("model.norm=post", "model.norm=post does not fit the weights of "),
        ("attention.kv_heads=2", "attention.kv_heads=2 does not fit the weights of "),
        ("position=learned", "position=learned does not fit the weights of "),
        ("tokenizer.vocab_size=9", "tokenizer.vocab_size=9 does not fit the tokenizer of "),
        ("tokenizer=unigram", "tokenizer=unigram does not fit the tokenizer of "),
        ("experiment=multi30k_en_de", "tokenizer.vocab_size=8000 of experiment=multi30k_en_de"),
        ("model.ablate=[cross.9.0]", "model.ablate: there is no head cross.9.0; the heads are "),
        ("model.ablate=cross.0.0", "model.ablate='cross.0.0': a list, in brackets, was expected"),
        ("resume=last.ckpt", "init_from begins a new run and resume goes on with an old one"),
        ("gates.start=1", "gates.start: no such key"),
        ("model.haeds=4", "model.haeds: no such key; did you mean model.heads?"),
    ],
)
def test_what_cannot_change(checkpoint: Path, override: str, message: str, capfd) -> None:
    with pytest.raises(SystemExit):
        main([override, starting.resuming.quoted("init_from", checkpoint)])
    (line,) = [x for x in capfd.readouterr().err.splitlines() if x.strip()]
    assert line.startswith(f"error: {message}")
    if "does not fit" in message:
        assert "which has " in line
        assert "without init_from" in line
    assert not list(Path("outputs").glob("*"))


def test_files_that_cannot_be_started_from(checkpoint: Path, capfd) -> None:
    (checkpoint.parent / "best.ckpt").write_bytes(checkpoint.read_bytes()[:1000])
    cases = {
        "nowhere.ckpt": "error: init_from=nowhere.ckpt: no such file",
        str(checkpoint.parent): f"error: init_from={checkpoint.parent} is a folder; did you mean",
        f"{checkpoint.parent}/best.ckpt": f"error: {checkpoint.parent}/best.ckpt is not a readable",
    }
    for value, message in cases.items():
        with pytest.raises(SystemExit):
            main([f"init_from={value}"])
        assert capfd.readouterr().err.startswith(message)


def test_targets_outside_the_tree_are_refused(checkpoint: Path) -> None:
    raw = torch.load(checkpoint, weights_only=True)
    raw["headlab"]["config"]["logger"]["_target_"] = "os.system"
    torch.save(raw, checkpoint)
    with pytest.raises(HeadlabError, match=r"logger\._target_=os\.system is not in the config"):
        started(checkpoint)


KINDS = ("mha", "gqa", "mqa", "mla", "moh", "hybrid")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_attention_may_be_named_again(kind: str, tmp_path: Path, monkeypatch) -> None:
    """Both ways to go on know which option a run had, also where its values were changed."""
    more = {"hybrid": ["attention.softmax_every=2"], "mla": ["attention.latent_dim=5"]}
    config = plain(composed("model.decoder_layers=4", f"attention={kind}", *more.get(kind, [])))
    path = tmp_path / "best.ckpt"
    torch.save({"headlab": {"config": config}, "state_dict": {}}, path)
    monkeypatch.setattr("headlab.checkpoint.read_raw", lambda p: torch.load(p))
    monkeypatch.setattr(starting, "read_raw", lambda p: torch.load(p))
    for other in KINDS:
        asked = [f"attention={other}"]
        monkeypatch.setenv(resuming.VARIABLE, json.dumps(asked))
        if other == kind:
            assert started(path, *asked)["attention"] == config["attention"]
            assert plain(resuming.of_checkpoint(path))["attention"] == config["attention"]
            continue
        with pytest.raises(HeadlabError, match=f"attention={other} does not fit.*={kind};"):
            started(path, *asked)
        with pytest.raises(HeadlabError, match=f"attention={other} cannot change.*={kind};"):
            resuming.of_checkpoint(path)


def test_a_run_from_before_there_was_a_choice_has_multi_head_attention() -> None:
    old = {"attention": {"kv_heads": None, "head_dim": None, "dropout": 0.0, "bias": False}}
    assert options.choices(old) == {"attention": "mha"}


def test_what_may_change_may_also_have_been_null(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "last.ckpt"
    torch.save({"headlab": {"config": plain(composed("threads=null"))}}, path)
    monkeypatch.setattr("headlab.checkpoint.read_raw", lambda p: torch.load(p))
    monkeypatch.setenv(resuming.VARIABLE, json.dumps(["threads=1", "callbacks.early_stopping=3"]))
    assert resuming.of_checkpoint(path).threads == 1
    monkeypatch.setenv(resuming.VARIABLE, json.dumps(["threadss=1"]))
    with pytest.raises(HeadlabError, match="threadss: no such key in the configuration of"):
        resuming.of_checkpoint(path)
