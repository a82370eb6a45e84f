import gzip
import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlab.data.text import (
    is_blank,
    letters_key,
    read_bytes,
    read_lines,
    read_stdin_lines,
    sha256_of,
    split_lines,
)
from headlab.errors import HeadlabError

INNER = ["\r", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x00", "\t"]


@pytest.mark.parametrize("character", INNER)
def test_only_newlines_end_a_line(character):
    text = f"one{character}two\nthree\n"
    assert split_lines(text.encode(), "f") == [f"one{character}two", "three"]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb", ["a\r", "b"]),
        (b"a\nb\r", ["a", "b\r"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"\xef\xbb\xbf", []),
    ],
)
def test_line_endings_and_byte_order_mark(data, lines):
    assert split_lines(data, "f") == lines
    assert read_stdin_lines(io.BytesIO(data)) == lines


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))))
def test_lines_come_back_as_written(lines):
    lines = [line.rstrip("\r").removeprefix("\ufeff") for line in lines]
    assert split_lines("".join(f"{line}\n" for line in lines).encode(), "f") == lines


def test_foreign_bytes_name_file_and_line(tmp_path):
    path = tmp_path / "t.src"
    path.write_bytes(b"ok\ncaf\xe9\n")
    with pytest.raises(HeadlabError, match=r"t\.src, line 2: not UTF-8 \(byte 0xe9\)"):
        read_lines(path)


def test_gzip_by_content_or_name(tmp_path):
    for name in ("a.gz", "a.txt"):
        (tmp_path / name).write_bytes(gzip.compress("é\n".encode()))
        assert read_lines(tmp_path / name) == ["é"]


@pytest.mark.parametrize(
    "data",
    [b"", gzip.compress(b"hello" * 99, mtime=0)[:-9], b"plain text"],
    ids=["empty", "cut short", "plain text"],
)
def test_broken_gzip_is_one_line(tmp_path, data):
    path = tmp_path / "broken.gz"
    path.write_bytes(data)
    with pytest.raises(HeadlabError, match=r"data\.train=.*broken\.gz: .*gzip") as caught:
        read_bytes(path, "data.train")
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_name_the_key(tmp_path):
    with pytest.raises(HeadlabError, match=r"data\.train=.*none\.txt: no such file"):
        read_bytes(tmp_path / "none.txt", "data.train")
    with pytest.raises(HeadlabError, match=r"data\.train=.*is a folder"):
        sha256_of(tmp_path, "data.train")


@pytest.mark.parametrize(
    "text", ["", " ", "\t\r", "\u00a0", "\u3000", "\u200b\ufeff", "\u2060", "\u3164"]
)
def test_blank(text):
    assert is_blank(text)


@pytest.mark.parametrize("text", ["a", " . ", "\u200b1", "한", "́"])
def test_not_blank(text):
    assert not is_blank(text)


def test_letters_key_keeps_letters_of_every_script_only():
    assert letters_key("Port {number}: 8,080 OPEN!") == letters_key("port open")
    assert letters_key("Ωμέγα 1") == letters_key("ΩΜΕΓΑ")
    assert letters_key("温度1。") == letters_key("温度{x}") != ""
    assert letters_key("Straße") == letters_key("STRASSE")
    assert letters_key("12:30 {time}") == ""


def test_letters_key_is_blind_to_the_case_of_every_character():
    for code in range(sys.maxunicode + 1):
        if 0xD800 <= code <= 0xDFFF:
            continue
        letter = chr(code)
        if letter.upper() != letter or letter.lower() != letter:
            keys = {letters_key(letter), letters_key(letter.upper()), letters_key(letter.lower())}
            assert len(keys) == 1, hex(code)
