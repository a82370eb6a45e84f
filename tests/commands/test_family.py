"""Other kinds of attention with the real commands: train, convert, train on, compare, draft."""

import json
import re

import pytest
import torch


def scalars(folder) -> set[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return set(events.Tags()["scalars"]) | set(events.Tags()["images"])


def test_convert_and_train_on(command, workplace, run, tmp_path) -> None:
    grouped = tmp_path / "a folder, ünusual" / "gqa.ckpt"
    grouped.parent.mkdir()
    best = run / "best.ckpt"
    done = command("convert", best, "--to", "gqa", "--kv-heads", 2, "--out", grouped, cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    said = r"train\.py (experiment=\S+) '(init_from=.*)' (trainer\.max_epochs=1)"
    typed = re.findall(said, done.stdout.decode())
    further = tmp_path / "further"
    done = command("train", *typed[0], f"hydra.run.dir={further}", cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    raw = torch.load(further / "best.ckpt", weights_only=True)
    assert raw["headlab"]["model"]["attention"]["kv_heads"] == 2

    latent, table = tmp_path / "mla.ckpt", tmp_path / "table.json"
    assert command("convert", best, "--to", "mla", "--out", latent, cwd=workplace).returncode == 0
    done = command("compare", best, grouped, latent, further / "best.ckpt", "--out", table,
                   "--turns", 1, cwd=workplace)  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    rows = json.loads(table.read_text())
    assert rows[0]["cache_bytes_per_target_token"] == 2 * rows[1]["cache_bytes_per_target_token"]
    assert rows[0]["bleu"] == rows[2]["bleu"]
    assert rows[3]["nll_per_token"] != rows[1]["nll_per_token"]


def test_a_draft_changes_nothing(command, workplace, run, tiny, tmp_path) -> None:
    small = tmp_path / "small"
    overrides = ["model.decoder_layers=1", "trainer.max_epochs=1", f"hydra.run.dir={small}"]
    done = command("train", *tiny, "data.train=pairs.tsv", *overrides, cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    lines = b"the red cat\n\nthe big house sees the tree\n"
    best = run / "best.ckpt"
    plain = command("translate", best, cwd=workplace, input=lines)
    drafted = command("translate", best, "--draft", small / "best.ckpt", "--draft-tokens", 3,
                      cwd=workplace, input=lines)  # fmt: skip
    assert drafted.returncode == 0, drafted.stderr.decode()
    assert drafted.stdout == plain.stdout
    assert re.search(r"drafts: \d+% of \d+ tokens accepted, [\d.]+ passes a token, [\d.]+ times",
                     drafted.stderr.decode())  # fmt: skip


def test_a_mixture_of_heads_logs_its_routing(command, workplace, tiny, tmp_path) -> None:
    folder = tmp_path / "moh"
    mixture = ["attention=moh", "attention.shared_heads=1", "attention.active_heads=2"]
    mixture += ["attention.decoder=hybrid", "attention.softmax_every=2", "position=rope"]
    done = command(
        "train", *tiny, "data.train=pairs.tsv", *mixture, f"hydra.run.dir={folder}", cwd=workplace
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    tags = scalars(folder)
    assert {"train/balance_loss", "train/active_heads"} <= tags
    assert "attention/decoder/layer_0/sentence_0" in tags
    assert "entropy/decoder/layer_0/head_0" in tags
    for name in ("attend", "translate"):
        more = ["--out", tmp_path / "x.png"] if name == "attend" else []
        done = command(name, folder / "best.ckpt", "the red cat", *more, cwd=workplace)
        assert done.returncode == 0, done.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize("position", ["rope", "alibi", "none"])
def test_a_sentence_longer_than_any_it_saw(command, workplace, tiny, position, tmp_path) -> None:
    folder = tmp_path / "run"
    overrides = [f"position={position}", f"hydra.run.dir={folder}"]
    done = command("train", *tiny, "data.train=pairs.tsv", *overrides, cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    long = " ".join(["the red cat"] * 200)
    done = command("translate", folder / "best.ckpt", long, cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    assert "cut" not in done.stderr.decode()
