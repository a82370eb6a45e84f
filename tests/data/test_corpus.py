import json
import logging
import multiprocessing
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from headlab.data.cache import read_cache, write_cache
from headlab.data.corpus import Corpus, SplitReport, build_corpus, format_report
from headlab.errors import HeadlabError

CONFIGS = Path(__file__).parents[2] / "configs" / "data"


def made(text, count):
    pairs = [(f"{text} {i}", "x") for i in range(count)]
    report = SplitReport(read=count + 1, kept=count, dropped={"blank side": 1})
    return dict.fromkeys(("train", "validation", "test"), (pairs, report))


@pytest.fixture
def corpus(build, tmp_path):
    path = tmp_path / "p.tsv"
    path.write_text("".join(f"{a}{b}\tx\n" for a in "abcdefgh" for b in "klmnopqr"))
    return build("files", train=str(path), validation=str(path), test=str(path))


def test_report_line():
    report = SplitReport(read=1230, kept=1200)
    report.drop("blank side", 10)
    report.drop("too long", 19)
    report.drop("too long")
    report.drop("never", 0)
    assert format_report("train", report) == (
        "train: 1,230 pairs read, 1,200 kept, 30 dropped (too long 20, blank side 10)"
    )
    assert format_report("test", SplitReport(5, 5)) == "test: 5 pairs read, 5 kept"


def test_second_load_reads_the_cache_only(corpus, monkeypatch, caplog):
    first = corpus.load()
    reports = corpus.reports
    monkeypatch.setattr(type(corpus), "read", lambda self: pytest.fail("read again"))
    corpus.reports = {}
    with caplog.at_level(logging.INFO, "headlab"):
        second = corpus.load()
    assert first["train"].to_dict() == second["train"].to_dict()
    assert corpus.reports == reports
    assert len([m for m in caplog.messages if "pairs read" in m]) == 3


def test_limit_keeps_the_first_training_pairs_and_shares_the_cache(corpus, caplog):
    whole = corpus.load()
    corpus.limit = 3
    with caplog.at_level(logging.INFO, "headlab"):
        few = corpus.load()
    assert few["train"]["source"][:] == whole["train"]["source"][:3]
    assert len(few["test"]) == len(whole["test"])
    assert "train: the first 3 pairs only (data.limit)" in caplog.messages


@pytest.mark.parametrize("harm", ["report", "arrow", "info", "emptied"])
def test_damaged_cache_is_built_anew(corpus, harm):
    whole = corpus.load()["train"].to_dict()
    folder = corpus.cache_folder()
    if harm == "report":
        (folder / "report.json").write_text("{")
    elif harm == "arrow":
        next((folder / "train").glob("*.arrow")).write_bytes(b"short")
    elif harm == "info":
        (folder / "dataset_dict.json").unlink()
    else:
        for child in folder.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        (folder / "x").write_text("")
    assert corpus.load()["train"].to_dict() == whole
    assert not list(folder.parent.glob(".making-*"))


@pytest.mark.parametrize("name", ["report.json", "train/state.json", "train/*.arrow"])
def test_any_byte_of_a_cache_counts(corpus, caplog, name):
    """Right lengths and a sound frame around wrong bytes: nothing would notice but a checksum."""
    whole = corpus.load()["train"].to_dict()
    (path,) = corpus.cache_folder().glob(name)
    for share, flip in ((0.2, False), (0.5, True), (0.8, False)):
        good = path.read_bytes()
        start = int(share * len(good))
        old = good[start : start + 8]
        path.write_bytes(
            good[:start] + bytes(b ^ 1 if flip else 0 for b in old) + good[start + 8 :]
        )
        caplog.clear()
        assert corpus.load()["train"].to_dict() == whole
        assert corpus.reports["train"].read == 64
        assert sum("damaged cache" in message for message in caplog.messages) == 1


def test_a_cache_without_checksums_is_built_anew(corpus):
    whole = corpus.load()["train"].to_dict()
    report = corpus.cache_folder() / "report.json"
    stored = json.loads(report.read_text())
    del stored["checksums"], stored["checksum"]
    report.write_text(json.dumps(stored))
    assert corpus.load()["train"].to_dict() == whole
    assert "checksums" in json.loads(report.read_text())


def test_the_first_writer_wins(tmp_path):
    folder = tmp_path / "cache" / "c-1"
    write_cache(folder, made("first", 3))
    write_cache(folder, made("second", 4))
    splits, reports = read_cache(folder)
    assert splits["train"][0]["source"] == "first 0"
    assert reports["train"] == SplitReport(4, 3, {"blank side": 1})
    assert [path.name for path in folder.parent.iterdir()] == ["c-1"]


def test_two_processes_may_build_at_once(tmp_path):
    folder = tmp_path / "cache" / "c-1"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write_cache, args=(folder, made("t", 50))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 3
    splits, _ = read_cache(folder)
    assert len(splits["train"]) == 50
    assert [path.name for path in folder.parent.iterdir()] == ["c-1"]


def test_no_progress_bars(corpus, capsys):
    from datasets.utils.logging import is_progress_bar_enabled

    corpus.load()
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    assert is_progress_bar_enabled()


@pytest.mark.parametrize("name", ["home_assistant", "multi30k", "hub", "files"])
def test_every_configuration_builds(configure, name, tmp_path):
    given = {"train": "pairs.tsv"} if name == "files" else {}
    corpus = build_corpus(configure(name, **given))
    assert isinstance(corpus, Corpus)
    assert corpus.name == name
    assert corpus.root == tmp_path / "data"


@pytest.mark.parametrize("name", ["home_assistant", "multi30k", "hub", "files"])
def test_every_configuration_composes_and_instantiates(name, tmp_path):
    (tmp_path / "data").symlink_to(CONFIGS)
    (tmp_path / "root.yaml").write_text("defaults: [data: files, _self_]\npaths: {data: below}\n")
    overrides = [f"data={name}", *(["data.train=[a.en,a.fr]"] if name == "files" else [])]
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        config = compose("root", overrides)
    corpus = instantiate(config.data)
    assert isinstance(corpus, Corpus)
    assert corpus.root == Path.cwd() / "below"


def test_unknown_keys_name_the_nearest(configure):
    with pytest.raises(HeadlabError, match=r'data\.trian: unknown key; did you mean "train"\?'):
        build_corpus(configure("files", trian="x"))
    config = configure("files", train="x")
    del config["format"]
    with pytest.raises(HeadlabError, match=r"files: data\.format missing"):
        build_corpus(config)


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "headlab.errors.HeadlabError",
        "headlab.data.corpus.Corpus",
        "headlab.data.corpus.build_corpus",
        "headlab.data.files.Path",
        "headlab.data.nothing.Corpus",
        "headlab.database.X",
        "Files",
        None,
    ],
)
def test_only_corpus_classes_are_built(target):
    with pytest.raises(HeadlabError, match=r"data\._target_="):
        build_corpus({"_target_": target})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limit", "None"),
        ("limit", 0),
        ("limit", True),
        ("limit", 1.5),
        ("source", None),
        ("source", " "),
        ("target", 3),
        ("root", ""),
        ("validation_share", 0),
        ("test_share", "big"),
        ("format", "csv"),
        ("train", ["a", "b", "c"]),
    ],
)
def test_values_are_checked_by_name(configure, key, value):
    with pytest.raises(HeadlabError, match=rf"data\.{key}"):
        build_corpus(configure("files", **{"train": "x", key: value}))


def test_two_different_languages(configure):
    with pytest.raises(HeadlabError, match="are the same"):
        build_corpus(configure("files", train="x", source="en", target="en"))


def test_options_and_languages_change_the_cache_folder(build, configure):
    folders = {
        build("home_assistant", **changed).cache_folder()
        for changed in ({}, {"target": "de"}, {"max_words": 30}, {"test_share": 0.1}, {"limit": 5})
    }
    assert len(folders) == 4


def test_unwritable_root_is_one_line(configure, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "p.tsv").write_text("a\tb\nc\td\ne\tf\n")
    config = configure("files", train=str(tmp_path / "p.tsv"), root=str(tmp_path / "file"))
    with pytest.raises(HeadlabError, match=r"file/cache: cannot be written .* set paths\.data"):
        build_corpus(config).load()


def test_text_helpers_import_nothing_heavy():
    code = "import sys, headlab.data.corpus; print(bool({'datasets', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.strip().lower()) is False
