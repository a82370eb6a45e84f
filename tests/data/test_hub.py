import json
import lzma
import os
import time

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from huggingface_hub import HfApi

from headlab.data.hub import choose_config
from headlab.errors import HeadlabError

WORDS = [a + b for a in "abcdefgh" for b in "klmnopqr"]


def write(folder, **splits):
    folder.mkdir()
    for split, rows in splits.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)
    return str(folder)


@pytest.fixture
def translations(tmp_path):
    rows = [{"id": i, "translation": {"fr": f"f {w}", "en": f"e {w}"}} for i, w in enumerate(WORDS)]
    return write(tmp_path / "set", train=rows)


@pytest.mark.parametrize(("source", "target"), [("en", "fr"), ("fr", "en")])
def test_translation_column_in_both_orders_with_held_out_splits(
    build, translations, source, target
):
    splits = build("hub", path=translations, source=source, target=target).load()
    assert sum(len(splits[split]) for split in splits) == len(WORDS)
    assert all(len(splits[split]) > 0 for split in splits)
    row = splits["train"][0]
    assert (row["source"][0], row["target"][0]) == (source[0], target[0])
    assert row["source"][1:] == row["target"][1:]


def test_named_columns_and_own_splits(build, tmp_path):
    rows = [{"left": f"l {w}", "right": f"r {w}"} for w in WORDS]
    rows.append({"left": " ", "right": "x"})
    path = write(tmp_path / "set", train=rows, validation=rows[:3], test=rows[:2])
    corpus = build("hub", path=path, source_column="left", target_column="right")
    splits = corpus.load()
    assert [len(splits[split]) for split in ("train", "validation", "test")] == [len(WORDS), 3, 2]
    assert corpus.reports["train"].dropped == {"blank side": 1}
    assert splits["test"][1] == {"source": "l al", "target": "r al"}


def test_changed_folder_is_read_anew(build, tmp_path):
    rows = [{"en": w, "fr": w} for w in WORDS]
    path = write(tmp_path / "set", train=rows)
    first = build("hub", path=path).load()
    text = "".join(json.dumps({"en": w, "fr": w + w}) + "\n" for w in WORDS)
    (tmp_path / "set" / "train.jsonl").write_text(text)
    second = build("hub", path=path).load()
    assert second["train"]["target"][0] == first["train"]["target"][0] * 2


def test_wrong_columns_name_those_there(build, translations):
    with pytest.raises(HeadlabError, match=r'no columns "en" and "de", there are fr, en'):
        build("hub", path=translations, target="de").load()


def test_numbers_are_refused(build, tmp_path):
    path = write(tmp_path / "set", train=[{"en": "a", "fr": 1}])
    with pytest.raises(HeadlabError, match=r'train.jsonl, line 1: "fr" is 1, a text was expected'):
        build("hub", path=path).load()


# Alone in a column, too: a reader that guesses types takes it for a column of those.
WRITTEN = [
    ["null", "NA", "None", "nan", "N/A", "NULL", "n/a", "NaN", "-nan", "<NA>", "#N/A"],
    ["1", "007", "1e5", "-0", "1_000", "0x1F"],
    ["true", "false", "True", "yes"],
    ["2024-01-01", "2024-01-01T10:00:00", "2024-01-01 10:00:00Z"],
    ["Infinity", "a  b", " c ", "it's \u2028 one", "x\u00a0y"],
]


def write_as(path, kind, rows):
    path.mkdir(exist_ok=True)
    if kind == "csv":
        lines = ["en,fr", *(f'{a},"{b}"' for a, b in rows)]
    elif kind == "tsv":
        lines = ["en\tfr", *map("\t".join, rows)]
    elif kind == "json":
        lines = [json.dumps([{"en": a, "fr": b} for a, b in rows], indent=1)]
    elif kind == "jsonl":
        lines = [json.dumps({"en": a, "fr": b}) for a, b in rows]
    if kind == "parquet":
        made = pa.table({"en": [a for a, _ in rows], "fr": [b for _, b in rows]})
        parquet.write_table(made, path / "train.parquet")
    else:
        text = "\n".join(lines) + "\n"
        (path / f"train.{kind}").write_text(text, "utf-8")
    return str(path)


def everything(corpus):
    return sorted(
        (row["source"], row["target"]) for split in corpus.load().values() for row in split
    )


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl", "parquet"])
@pytest.mark.parametrize("texts", WRITTEN, ids=lambda texts: texts[0])
def test_text_is_text(build, tmp_path, kind, texts):
    rows = [(text, text) for text in texts]
    corpus = build("hub", path=write_as(tmp_path / "set", kind, rows))
    assert everything(corpus) == sorted(rows)
    assert sum(report.read for report in corpus.reports.values()) == len(rows)


def test_only_what_is_not_there_is_dropped(build, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    rows = "".join(f"{word},x\n" for word in WORDS)
    (folder / "train.csv").write_text(f"en,fr\nnull,NA\n,b\n\n c, \n{rows}")
    corpus = build("hub", path=str(folder))
    pairs = everything(corpus)
    assert ("null", "NA") in pairs
    assert len(pairs) == len(WORDS) + 1
    assert sum(report.dropped.get("blank side", 0) for report in corpus.reports.values()) == 3


def test_csv_is_read_by_its_own_rules(build, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    cells = ["a, b", 'say ""so""', "two\nlines", "x" * 200_000, "l\u2028s"]
    rows = "".join(f'"{cell}",{n}\n' for n, cell in enumerate(cells))
    (folder / "train.csv").write_text(f"en,fr\n{rows}", "utf-8")
    wanted = [(cell.replace('""', '"'), str(n)) for n, cell in enumerate(cells)]
    assert everything(build("hub", path=str(folder))) == sorted(wanted)


def test_quotes_are_text_in_tsv(build, tmp_path):
    rows = [("one", "1"), ('"two', "2"), ('three "x"', "3"), ("four", "4")]
    assert everything(build("hub", path=write_as(tmp_path / "set", "tsv", rows))) == sorted(rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.csv", 'en,fr\na,b\nc,"d\n', r"train\.csv, line 3: not CSV"),
        ("train.csv", "en,fr\na,b,c\n", r"train\.csv, line 2: 3 columns where the first row has 2"),
        ("train.csv", "en,fr,en\na,b,c\n", r'train\.csv, line 1: 2 columns are named "en"'),
        (
            "train.csv",
            "a,b\nc,d\n",
            r'train\.csv, line 1: no columns "en" and "fr", there are a, b',
        ),
        ("train.tsv", "a\tb\nc\td\n", r'train\.tsv, line 1: no columns "en" and "fr"'),
        ("train.json", "[" * 100_000, r"train\.json: lists or objects nested too deeply"),
        ("train.json", '[{"en": "a"}]', r'train\.json, entry 1: no columns "en" and "fr"'),
    ],
)
def test_errors_name_the_place(build, tmp_path, name, content, message):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_text(content)
    with pytest.raises(HeadlabError, match=message) as caught:
        build("hub", path=str(tmp_path / "set")).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_change_shows_also_with_the_same_size_and_time(build, tmp_path, kind):
    pairs = [(word, "old") for word in WORDS]
    path = write_as(tmp_path / "set", kind, pairs)
    (file,) = (tmp_path / "set").iterdir()
    assert everything(build("hub", path=path)) == pairs
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    size = file.stat().st_size
    write_as(tmp_path / "set", kind, [(word, "new") for word in WORDS])
    os.utime(file, ns=times)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (size, times[1])
    assert everything(build("hub", path=path)) == [(word, "new") for word in WORDS]


def test_a_moved_folder_is_the_same_corpus(build, tmp_path):
    path = write_as(tmp_path / "set", "csv", [(word, word) for word in WORDS])
    before = build("hub", path=path).cache_folder()
    (tmp_path / "set").rename(tmp_path / "moved")
    assert build("hub", path=str(tmp_path / "moved")).cache_folder() == before


@pytest.mark.parametrize("packed", [False, True])
def test_what_the_library_reads_is_text_too(build, tmp_path, packed):
    """A packed table, and one with settings of its own."""
    folder = tmp_path / "set"
    folder.mkdir()
    rows = "".join(f"{word},NA\n" for word in WORDS)
    text = f"en,fr\nnull,007\n{rows}"
    if packed:
        (folder / "train.csv.xz").write_bytes(lzma.compress(text.encode()))
    else:
        (folder / "train.csv").write_text(f"made by hand\n{text}")
        (folder / "README.md").write_text(
            "---\nconfigs:\n- config_name: default\n  data_files: train.csv\n  skiprows: 1\n---\n"
        )
    wanted = [("null", "007"), *((word, "NA") for word in WORDS)]
    assert everything(build("hub", path=str(folder))) == sorted(wanted)


def test_unreadable_folder_is_one_line(build, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(HeadlabError, match=r"data\.path=.*empty: cannot be loaded") as caught:
        build("hub", path=str(tmp_path / "empty")).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["hub", "multi30k"])
@pytest.mark.parametrize("offline", [True, False])
def test_no_network_is_one_error_without_retries(build, monkeypatch, name, offline):
    class UnreachableError(Exception):
        pass

    def refuse(*args, **kwargs):
        raise UnreachableError("Name or service not known")

    def no_waiting(seconds):
        raise AssertionError("waited to try again")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(HfApi, "dataset_info", refuse)
    monkeypatch.setattr(time, "sleep", no_waiting)
    with pytest.raises(HeadlabError, match="cannot be reached") as caught:
        build(name).load()
    message = str(caught.value)
    assert "\n" not in message
    for choice in ("data=files", "data=multi30k", "data=home_assistant"):
        assert choice in message


def test_path_must_be_given(build):
    with pytest.raises(HeadlabError, match=r"data\.path is not set"):
        build("hub", path=None)


def test_choice_of_configuration():
    assert choose_config("p", ["de-fr", "en-fr"], ("fr", "en")) == "en-fr"
    assert choose_config("p", ["fr_en", "x"], ("fr", "en")) == "fr_en"
    assert choose_config("p", ["default"], ("fr", "en")) == "default"
    with pytest.raises(HeadlabError, match=r"no configuration for fr-en; choose .*: de-fr a-b"):
        choose_config("p", ["de-fr", "a-b"], ("fr", "en"))
