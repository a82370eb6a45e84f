"""The whole head laboratory on a briefly trained model of real sentences."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headlab.head_names import parse_heads

MULTI30K = Path(__file__).parents[3] / "shared" / "multi30k"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MULTI30K.is_dir(), reason="the Multi30k files are not here"),
]

SMALL = (
    "experiment=multi30k_en_de",
    f"data.path={MULTI30K}",
    "data.source=fr",
    "data.target=en",
    "data.limit=6000",
    "tokenizer.vocab_size=2000",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "batches.max_tokens=1024",
    "schedule.warmup_steps=60",
    "trainer.max_epochs=6",
    "evaluation.validation_sentences=100",
    "callbacks.attention_maps=null",
    "threads=2",
)


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory, command: Callable[..., Any]) -> Path:
    """A folder where a French to English model has been trained for a minute or two."""
    folder = tmp_path_factory.mktemp("laboratory")
    done = command("train", *SMALL, cwd=folder)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_whole_laboratory(laboratory: Path, command: Callable[..., Any]) -> None:
    best, run = "outputs/latest/best.ckpt", laboratory / "outputs" / "latest"
    run = run.resolve()

    def headlab(name: str, *arguments: str, **options: Any) -> str:
        done = command(f"headlab-{name}", best, *arguments, cwd=laboratory, **options)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        return done.stdout.decode()

    # Every head has its number; a decoder without one of its attentions is much worse.
    each = headlab("ablate", "ablation=each_head", "sentences=200")
    table = rows(run / "best.ablation-each_head-test-first200" / "ablation.csv")
    assert len(table) == 1 + 3 * 2 * 4
    assert "next: headlab ablate" in each
    headlab("ablate", "ablation=each_site", "metrics=[nll]", "sentences=200")
    sites = rows(run / "best.ablation-each_site-test-first200" / "ablation.csv")
    changes = {row["configuration"]: float(row["nll_change"]) for row in sites}
    assert min(changes["decoder"], changes["cross"]) > 0.05
    assert changes["full"] == 0

    # The gradient score follows the measured change.
    headlab("importance", "--limit", "200")
    found = rows(run / "best.importance-validation-first200" / "correlations.csv")
    rho = next(float(r["rho"]) for r in found if (r["score"], r["site"]) == ("gradient", "all"))
    assert rho > 0.5

    # Half of the heads go; what is left is an ordinary checkpoint, and training brings some back.
    out = headlab("prune", "--keep", "0.5", "--finetune-epochs", "1", "--out", "half.ckpt")
    assert re.search(r"heads +24 -> 12", out)
    curve = rows(next(run.glob("best.pruning-*")) / "curve.csv")
    assert int(curve[-1]["heads"]) == 12
    assert int(curve[-1]["parameters"]) < int(curve[0]["parameters"])
    done = command("headlab-evaluate", "half.ckpt", cwd=laboratory)
    assert done.returncode == 0, done.stderr.decode()
    scored = json.loads((laboratory / "half.test.json").read_text("utf-8"))
    assert scored["bleu"] == pytest.approx(float(curve[-1]["test_bleu"]))

    # French is parsed without being asked for.
    headlab("roles", "--limit", "300")
    folder = run / "best.roles-test-first300"
    assert len(rows(folder / "roles.csv")) == 24
    relations = rows(folder / "relations.csv")
    assert {row["site"] for row in relations} == {"encoder"}
    assert {"det", "case"} <= {row["relation"] for row in relations}

    pairs = "un chien court\ta dog runs\n\nun homme\ta man\n"
    lines = headlab("align", input=pairs.encode()).split("\n")
    assert re.fullmatch(r"(\d+-\d+ ?)+", lines[0])
    assert lines[1] == ""

    # Gates that pay a lot close, and the closed heads are gone from the checkpoint.
    done = command(
        "train",
        "experiment=l0_gates",
        f"init_from={best}",
        "gates.penalty.encoder=0.3",
        "trainer.max_epochs=3",
        "name=gated",
        cwd=laboratory,
    )
    printed = done.stdout.decode()
    assert done.returncode == 0, printed + done.stderr.decode()
    left = re.search(r"heads left (\d+) of 24", printed)
    assert left, printed
    assert int(left.group(1)) < 24
    gated = next((laboratory / "outputs").glob("*-gated"))
    from headlab.checkpoint import read_checkpoint

    pruned = read_checkpoint(gated / "pruned.ckpt").model
    assert len(pruned.head_names) == int(left.group(1))
    assert parse_heads(["cross.*.*"], pruned.head_names, "heads left")
