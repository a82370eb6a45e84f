"""The folder of a run: what was in it before stays, whatever becomes of the run."""

import os
from pathlib import Path

import pytest

from headlab.cli.train import main
from headlab.training.fit import link_latest

pytestmark = pytest.mark.usefixtures("empty_folder")

MISTAKE = "model.heads=7"


def content(folder: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def refusal(capfd: pytest.CaptureFixture, *overrides: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(overrides)
    assert stopped.value.code == 1
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
    return line


def mine(folder: Path) -> None:
    """Files of the user's, some of which look like a run's."""
    for name in ("notes.txt", ".env", "papers/a.pdf", ".hydra/mine.yaml", ".last.ckpt.old"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


@pytest.mark.parametrize("place", [".", "papers", "new/place", "${paths.outputs}/x"])
@pytest.mark.parametrize("mistake", [MISTAKE, "data=files", "init_from=nowhere.ckpt"])
def test_a_refused_run_takes_away_nothing_but_its_own(place, mistake, tmp_path, capfd) -> None:
    mine(tmp_path)
    before = content(tmp_path)
    refusal(capfd, f"hydra.run.dir={place}", mistake)
    assert content(tmp_path) == before


def test_the_usual_folder_of_a_refused_run_is_gone(tmp_path: Path, capfd) -> None:
    refusal(capfd, MISTAKE)
    assert content(tmp_path) == {"outputs": None}


@pytest.mark.parametrize(
    "trace", ["last.ckpt", "best.ckpt", "tensorboard/events", ".hydra/config.yaml", "train.log"]
)
def test_a_new_run_overwrites_no_earlier_one(trace: str, tmp_path: Path, capfd) -> None:
    path = tmp_path / "old" / trace
    path.parent.mkdir(parents=True)
    path.write_text("of value")
    before = content(tmp_path)
    line = refusal(capfd, "hydra.run.dir=old", MISTAKE)
    assert "hydra.run.dir=old" in line
    assert trace in line
    assert content(tmp_path) == before


def test_a_new_sweep_overwrites_no_earlier_one(tmp_path: Path, capfd) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "multirun.yaml").write_text("of value")
    before = content(tmp_path)
    assert "hydra.sweep.dir=old" in refusal(capfd, "-m", "hydra.sweep.dir=old", "model.heads=7,9")
    assert content(tmp_path) == before


def test_the_jobs_of_a_sweep_have_folders_of_their_own(tmp_path: Path, capfd) -> None:
    line = refusal(capfd, "-m", "hydra.sweep.subdir=one", "model.heads=7,9")
    assert "hydra.sweep.subdir=one" in line
    assert content(tmp_path) == {}


# -- outputs/latest ---------------------------------------------------------------------------


def finished_run(outputs: Path, name: str = "a-run") -> Path:
    folder = outputs / name
    folder.mkdir(parents=True)
    (folder / "last.ckpt").write_text(name)
    return folder


@pytest.mark.parametrize("target", ["a/b/c", "elsewhere", "../beside/deep/er"])
def test_latest_where_outputs_is_a_link(target: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / target).mkdir(parents=True)
    outputs = home / "outputs"
    outputs.symlink_to(target, target_is_directory=True)
    for name in ("first", "second"):
        link_latest(finished_run(outputs, name), outputs)
        assert (outputs / "latest" / "last.ckpt").read_text() == name
    assert not os.path.isabs(os.readlink(outputs / "latest"))


def test_latest_of_a_run_that_lies_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    link_latest(finished_run(tmp_path / "scratch" / "deep"), tmp_path / "outputs")
    assert (tmp_path / "outputs" / "latest" / "last.ckpt").exists()


def test_latest_follows_a_folder_that_was_moved_or_removed(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "latest").symlink_to("gone")
    link_latest(finished_run(tmp_path / "outputs"), tmp_path / "outputs")
    (tmp_path / "outputs").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "latest" / "last.ckpt").exists()


def test_a_latest_of_the_users_own_stays(tmp_path: Path, caplog) -> None:
    (tmp_path / "release").mkdir()
    (tmp_path / "latest").symlink_to("release")
    link_latest(finished_run(tmp_path), tmp_path)
    assert os.readlink(tmp_path / "latest") == "release"
    assert "latest" in caplog.text
