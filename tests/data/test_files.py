import gzip
import json
import logging
import os

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from headlab.errors import HeadlabError

WORDS = [a + b for a in "abcdefgh" for b in "klmnopqr"]


def write(path, content):
    path.parent.mkdir(exist_ok=True, parents=True)
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.fixture
def load(build, tmp_path):
    """Loads a corpus whose three splits are one and the same input; gives its train pairs."""

    def make(given, **options):
        corpus = build("files", train=given, validation=given, test=given, **options)
        train = corpus.load()["train"]
        make.report = corpus.reports["train"]
        return list(zip(train["source"], train["target"], strict=True))

    return make


@pytest.mark.parametrize(
    "character", ["\r", "\u2028", "\u0085", "\x0c", "\x0b", "\x1e", "\x00", '"', "\u00a0"]
)
@pytest.mark.parametrize("kind", ["tsv", "jsonl", "text", "parquet", "tsv.gz"])
def test_no_character_shifts_a_pair(load, tmp_path, character, kind):
    pairs = [("one", "un"), (f"{character}tw{character}o", "deux"), ("three", f"tro{character}is")]
    if kind == "text":
        given = [
            write(tmp_path / f"t.{side}", "".join(f"{pair[side]}\n" for pair in pairs))
            for side in (0, 1)
        ]
    elif kind == "jsonl":
        rows = (json.dumps({"src": s, "tgt": t}, ensure_ascii=False) for s, t in pairs)
        given = write(tmp_path / "t.jsonl", "\n".join(rows))
    elif kind == "parquet":
        given = str(tmp_path / "t.parquet")
        sides = zip(("src", "tgt"), zip(*pairs, strict=True), strict=True)
        parquet.write_table(pa.table({name: list(texts) for name, texts in sides}), given)
    else:
        given = write(tmp_path / f"t.{kind}", "".join(f"{s}\t{t}\n" for s, t in pairs))
    assert load(given) == pairs


def test_quotes_are_text_in_tsv(load, tmp_path):
    given = write(tmp_path / "p.tsv", 'one\t1\n"two\t2\nthree "x"\t3\nfour\t4\n')
    assert load(given) == [("one", "1"), ('"two', "2"), ('three "x"', "3"), ("four", "4")]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_byte_order_mark(load, tmp_path, mark):
    tsv = write(tmp_path / "p.tsv", mark + b"src\ttgt\na\tb\n")
    assert load(tsv) == [("a", "b")]
    assert load(tsv, source_column="src", target_column="tgt") == [("a", "b")]
    assert load(write(tmp_path / "p.jsonl", mark + b'{"src": "a", "tgt": "b"}\n')) == [("a", "b")]
    text = [write(tmp_path / side, mark + side.encode() + b"\n") for side in "ab"]
    assert load(text) == [("a", "b")]


@pytest.mark.parametrize("word", ["null", "NA", "NaN", "007", "1e5", "true", "", "2024-01-01"])
def test_words_stay_strings(load, tmp_path, word):
    pairs = [("a", "b")] + ([(word, word)] if word else [])
    assert load(write(tmp_path / "p.tsv", f"a\tb\n{word}\t{word}\n")) == pairs
    lines = [write(tmp_path / side, f"{side}\n{word}\n") for side in "ab"]
    assert load(lines) == pairs
    rows = json.dumps({"src": "a", "tgt": "b"}) + "\n" + json.dumps({"src": word, "tgt": word})
    assert load(write(tmp_path / "p.jsonl", rows)) == pairs


def test_windows_line_endings_and_missing_last_one(load, tmp_path):
    assert load(write(tmp_path / "p.tsv", "a\tb\r\nc\td")) == [("a", "b"), ("c", "d")]


def test_blank_sides_drop_the_pair_and_are_counted(load, tmp_path, caplog):
    sources = ["a", "", "c", "d", "\u3000", "f", "g", "h", "i", "j"]
    targets = ["A", "B", "C", "\u00a0", "E", "\u200b", "G", "H", "I", "J"]
    given = [
        write(tmp_path / name, "\n".join(lines) + "\n")
        for name, lines in (("s", sources), ("t", targets))
    ]
    with caplog.at_level(logging.INFO, "headlab"):
        pairs = load(given)
    assert pairs == [("a", "A"), ("c", "C"), ("g", "G"), ("h", "H"), ("i", "I"), ("j", "J")]
    assert load.report.read == 10
    assert load.report.dropped == {"blank side": 4}
    assert "train: 10 pairs read, 6 kept, 4 dropped (blank side 4)" in caplog.messages
    assert not any("HALF" in message for message in caplog.messages)


def test_most_dropped_is_said_aloud(load, tmp_path, caplog):
    load(write(tmp_path / "p.tsv", "a\tb\n\tc\n\td\n\n"))
    assert any("MORE THAN HALF" in message for message in caplog.messages)


def test_unequal_lengths_name_both_files_and_counts(build, tmp_path):
    given = [write(tmp_path / "a.en", "1\n2\n3\n4\n5\n"), write(tmp_path / "a.fr", "1\n2\n3\n4\n")]
    with pytest.raises(HeadlabError, match=r"data\.train: .*a\.en has 5 lines and .*a\.fr has 4"):
        build("files", train=given).load()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.tsv", b"a\tb\ncaf\xe9\tx\n", r"p\.tsv, line 2: not UTF-8"),
        ("p.jsonl", b'{"src": "a", "tgt": "\xe9"}', r"p\.jsonl, line 1: not UTF-8"),
        ("p.tsv", b"a\tb\nc\td\te\n", r"p\.tsv, line 2: 3 columns where the first row has 2"),
        ("p.tsv", b"a\tb\nc\n", r"p\.tsv, line 2: 1 columns"),
        ("p.tsv", b"a,b\n", r"p\.tsv, line 1: no tab"),
        ("p.jsonl", b'{"src": "a", "tgt": 7}', r'p\.jsonl, line 1: "tgt" is 7, a text was'),
        ("p.jsonl", b'{"src": "a"}', r'p\.jsonl, line 1: no columns "src" and "tgt"'),
        ("p.jsonl", b'\n{"src": ', r"p\.jsonl, line 2: not JSON"),
        ("p.jsonl", b'["a", "b"]', r"p\.jsonl, line 1: an object"),
        ("p.jsonl", b'{"src": "a", "tgt": "\\ud800"}', r"line 1: holds half a surrogate"),
        ("p.jsonl", b"{}\n" + b"[" * 200_000, r"p\.jsonl, line 1: no columns"),
        ("p.jsonl", b"\n" + b"[" * 200_000, r"p\.jsonl, line 2: .* nested too deeply"),
        ("p.jsonl", b'{"src":' * 100_000, r"p\.jsonl, line 1: .* nested too deeply"),
        ("p.jsonl", b'{"src": "a", "tgt": NaN}', r'line 1: "tgt" is nan, a text was expected'),
        ("p.jsonl", b'{"src": "a", "src": "b", "tgt": "c"}', r'line 1: .*key "src" stands twice'),
        ("p.jsonl", b'{"src": "a", "tgt": ' + b"9" * 9999 + b"}", r'line 1: "tgt" is inf, a text'),
        ("p.tsv", b"src\ttgt\ttgt\na\tb\tc\n", r'p\.tsv, line 1: 2 columns are named "tgt"'),
        ("p.parquet", b"PAR1 not really", r"data\.train=.*p\.parquet: not a Parquet file"),
        ("p.csv", b"a,b\n", r"data\.train=.*p\.csv: what \.csv ending holds"),
        ("p.tsv", b"", r"nothing to use in the split train: 0 pairs read"),
        ("p.tsv", b"\t\n \tb\n", r"nothing to use in the split train: 2 pairs read, 0 kept"),
    ],
)
def test_errors_are_one_line_with_the_place(build, tmp_path, name, content, message):
    with pytest.raises(HeadlabError, match=message) as caught:
        build("files", train=write(tmp_path / name, content)).load()
    assert "\n" not in str(caught.value)


def test_missing_file_names_its_key(build, tmp_path):
    good = write(tmp_path / "p.tsv", "a\tb\n")
    with pytest.raises(HeadlabError, match=r"data\.validation=.*none\.tsv: no such file"):
        build("files", train=good, validation=str(tmp_path / "none.tsv")).load()
    with pytest.raises(HeadlabError, match=r"data\.train is not set"):
        build("files")


def test_truncated_gzip_names_the_file(build, tmp_path):
    path = tmp_path / "p.tsv.gz"
    path.write_bytes(gzip.compress(b"a\tb\n" * 1000)[:-12])
    with pytest.raises(HeadlabError, match=r"p\.tsv\.gz: gzip file is cut short"):
        build("files", train=str(path)).load()


def test_columns(load, tmp_path):
    wide = write(tmp_path / "wide.tsv", "id\tfr\ten\n1\tun\tone\n")
    assert load(wide, source="en", target="fr") == [("one", "un")]
    assert load(wide, source_column="en", target_column="id") == [("one", "1")]
    nested = write(tmp_path / "n.jsonl", '{"translation": {"fr": "un", "en": "one"}, "id": 3}')
    assert load(nested, source="en", target="fr") == [("one", "un")]
    with pytest.raises(HeadlabError, match=r'no columns "x" and "y", there are id, fr'):
        load(wide, source_column="x", target_column="y")
    with pytest.raises(HeadlabError, match="give both or neither"):
        load(wide, source_column="x")


@pytest.mark.parametrize("first", ["id\tenglish\tfrench", "a\tb\t0.9"])
def test_tsv_with_more_columns_says_which_it_takes(load, tmp_path, caplog, first):
    given = write(tmp_path / "p.tsv", f"{first}\nc\td\t0.8\n")
    for _ in range(2):  # also when the cache is read
        caplog.clear()
        assert load(given) == [tuple(first.split("\t")[:2]), ("c", "d")]
        (said,) = (r.getMessage() for r in caplog.records if "train: p.tsv" in r.getMessage())
        for name in ("3 columns", *map(repr, first.split("\t")[:2]), "data.source_column"):
            assert name in said
    caplog.clear()
    load(write(tmp_path / "q.tsv", "a\tb\nc\td\n"))
    assert not any("columns" in message for message in caplog.messages)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(),
        pa.binary_view(), pa.dictionary(pa.int32(), pa.string()), pa.null(),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", ["files", "hub"])
def test_parquet_columns_that_hold_text(build, tmp_path, kind, nested, name):
    words = [None if pa.types.is_null(kind) else f"é {word}" for word in WORDS]
    columns = {"src": pa.array(WORDS), "tgt": pa.array(words).cast(kind)}
    if nested:
        whole = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
        columns = {"translation": whole}
    (tmp_path / "set").mkdir()
    path = str(tmp_path / "set" / "train.parquet")
    parquet.write_table(pa.table(columns), path)
    given = {"train": path} if name == "files" else {"path": str(tmp_path / "set")}
    corpus = build(name, **given, source="src", target="tgt")
    if pa.types.is_null(kind):
        with pytest.raises(HeadlabError, match=r"nothing to use .*blank side 64"):
            corpus.load()
        return
    found = {row["source"]: row["target"] for split in corpus.load().values() for row in split}
    assert found == dict(zip(WORDS, words, strict=True))


def test_parquet_columns_must_hold_text(load, tmp_path):
    path = str(tmp_path / "p.parquet")
    parquet.write_table(pa.table({"src": ["a", None, "c"], "tgt": ["x", "y", "z"]}), path)
    assert load(path) == [("a", "x"), ("c", "z")]
    assert load.report.dropped == {"blank side": 1}
    parquet.write_table(pa.table({"src": ["a"], "tgt": [7]}), path)
    with pytest.raises(HeadlabError, match=r'column "tgt" holds int64, text was expected'):
        load(path)
    parquet.write_table(pa.table({"src": ["a"], "tgt": [b"caf\xe9"]}), path)
    with pytest.raises(HeadlabError, match=r'column "tgt", row 1: not UTF-8 \(byte 0xe9\)'):
        load(path)
    parquet.write_table(pa.table([["a"], ["b"], ["c"]], names=["src", "tgt", "src"]), path)
    with pytest.raises(HeadlabError, match=r'2 columns are named "src"'):
        load(path)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_pipe_is_refused(build, tmp_path, split):
    """It would be read for its checksum and be empty afterwards."""
    good = write(tmp_path / "p.tsv", "a\tb\n")
    reading, writing = os.pipe()
    os.write(writing, b"a\tb\n")
    os.mkfifo(tmp_path / "named")
    try:
        for pipe in (f"/dev/fd/{reading}", str(tmp_path / "named")):
            given = {"train": good, "format": "tsv", split: pipe}
            with pytest.raises(HeadlabError, match=rf"data\.{split}={pipe}: a pipe"):
                build("files", **given).load()
    finally:
        os.close(reading)
        os.close(writing)


def test_splits_that_hold_what_was_trained_on_are_named(build, tmp_path, caplog):
    rows = [f"{word}\tx\n" for word in WORDS]
    train = write(tmp_path / "train.tsv", "".join(rows))
    apart = write(tmp_path / "apart.tsv", "other\ty\n" * 10)
    most = write(tmp_path / "most.tsv", "".join(rows[:6]) + "other\ty\n" * 5)
    half = write(tmp_path / "half.tsv", "".join(rows[:5]) + "other\ty\n" * 5)
    for test, said in ((train, "64 of its 64"), (most, "6 of its 11"), (half, ""), (apart, "")):
        for _ in range(2):
            caplog.clear()
            build("files", train=train, validation=apart, test=test).load()
            warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
            assert len(warned) == bool(said)
            assert all(said in message and "data.test" in message for message in warned)


def test_format_may_be_set_when_the_name_does_not_say(load, tmp_path):
    assert load(write(tmp_path / "pairs.txt", "a\tb\n"), format="tsv") == [("a", "b")]


def test_splits_held_out_of_train(build, tmp_path):
    train = write(tmp_path / "p.tsv", "".join(f"{word}\t{i}\n" for i, word in enumerate(WORDS)))
    splits = build("files", train=train, validation_share=0.1, test_share=0.2).load()
    assert sum(len(splits[split]) for split in splits) == len(WORDS)
    assert len(splits["validation"]) > 0
    assert len(splits["test"]) > 0
    own = build("files", train=train, test=train).load()
    assert len(own["test"]) == len(WORDS)
    assert len(own["train"]) + len(own["validation"]) == len(WORDS)


def test_relative_paths_start_where_the_user_stands(build, tmp_path, monkeypatch):
    write(tmp_path / "here" / "p.tsv", "a\tb\nc\td\ne\tf\n")
    monkeypatch.chdir(tmp_path / "here")
    corpus = build("files", train="p.tsv")
    monkeypatch.chdir(tmp_path)
    assert sum(map(len, corpus.load().values())) == 3


def test_a_changed_file_is_read_anew(load, tmp_path):
    path = tmp_path / "p.tsv"
    assert load(write(path, "a\tb\n")) == [("a", "b")]
    assert load(write(path, "c\td\n")) == [("c", "d")]
