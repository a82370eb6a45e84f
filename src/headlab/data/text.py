"""Reading text exactly as it was written: lines, blanks, and what two sentences have in common.

Python's own ``str.splitlines`` and most table readers end a line at characters that are ordinary
text in a sentence (U+2028, U+0085, a form feed, a lone carriage return). One such character on one
side of a parallel file shifts every later pair, so nothing in this project uses them: a line ends
at ``\\n`` or ``\\r\\n`` and nowhere else.
"""

import gzip
import hashlib
import re
import stat
import unicodedata
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

from headlab.errors import HeadlabError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"

PLACEHOLDER = re.compile(r"\{[^{}]*\}")

# Letters by their Unicode category that are drawn as nothing at all.
INVISIBLE_LETTERS = frozenset("\u115f\u1160\u3164\uffa0\u2800")


def split_lines(data: bytes, name: str) -> list[str]:
    """The lines of UTF-8 bytes, without their endings; a byte-order mark at the start is dropped.

    Only ``\\n`` and ``\\r\\n`` end a line. The last line may lack its ending; no bytes, no lines.
    Raises HeadlabError with `name` and the line number when a line is not UTF-8.
    """
    data = data.removeprefix(BYTE_ORDER_MARK)
    if not data:
        return []
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise HeadlabError(
            f"{name}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); "
            "save the file as UTF-8 and run again"
        ) from None
    lines = text.split("\n")
    last = lines.pop()
    lines = [line.removesuffix("\r") for line in lines]
    if last:
        lines.append(last)
    return lines


def read_bytes(path: str | Path, key: str | None = None) -> bytes:
    """The content of a file, unpacked if it is gzipped (by its first bytes or by its name).

    `key` is the configuration key the path came from; errors name it. Raises HeadlabError when
    the file is missing, unreadable, or a broken gzip file.
    """
    path = Path(path)
    with _named_errors(path, key) as where:
        data = path.read_bytes()
    if data.startswith(GZIP_MAGIC) or path.suffix.lower() == ".gz":
        try:
            if not data:
                raise EOFError
            return gzip.decompress(data)
        except EOFError:
            raise HeadlabError(f"{where}: gzip file is cut short; fetch it again") from None
        except (OSError, zlib.error) as error:
            raise HeadlabError(f"{where}: not a sound gzip file ({error})") from None
    return data


def sha256_of(path: str | Path, key: str | None = None) -> str:
    """The sha256 of a file's bytes as they lie on the disk, in hexadecimal; errors as above.

    Who asks for it reads the file again afterwards, so a pipe is refused: it would be empty then.
    """
    path = Path(path)
    with _named_errors(path, key) as where:
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise HeadlabError(
                f"{where}: a pipe or a device can be read only once; save it as a file first"
            )
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _named_errors(path: Path, key: str | None) -> Iterator[str]:
    """Turns errors of reading `path` into a HeadlabError that names it and its key."""
    where = f"{key}={path}" if key else str(path)
    try:
        yield where
    except FileNotFoundError:
        raise HeadlabError(f"{where}: no such file; give the path of an existing one") from None
    except IsADirectoryError:
        raise HeadlabError(f"{where}: is a folder, a file was expected") from None
    except OSError as error:
        raise HeadlabError(f"{where}: cannot be read ({error.strerror or error})") from None


def read_lines(path: str | Path, key: str | None = None) -> list[str]:
    """The lines of a UTF-8 text file, gzipped or not; see `split_lines` and `read_bytes`."""
    return split_lines(read_bytes(path, key), str(path))


def read_stdin_lines(stream: BinaryIO, name: str = "standard input") -> list[str]:
    """The lines of a binary stream read to its end, by the same rules as a file's."""
    return split_lines(stream.read(), name)


def is_blank(text: str) -> bool:
    """Whether nothing in `text` can be seen.

    Counts as unseen: white space of every kind (no-break, ideographic), control characters,
    zero-width and other format characters, and the few letters that are drawn as nothing.
    """
    return not any(_is_visible(character) for character in text)


@cache
def _is_visible(character: str) -> bool:
    if character.isspace() or character in INVISIBLE_LETTERS:
        return False
    return unicodedata.category(character) not in ("Cc", "Cf", "Zs", "Zl", "Zp")


def letters_key(text: str) -> str:
    """The letters of `text` alone: what is left when case, accents, digits, punctuation, white
    space and ``{placeholders}`` are disregarded.

    Two texts that differ only in those have the same key. Works for every script; it may be
    empty (a text of digits).
    """
    text = PLACEHOLDER.sub(" ", text).replace("ı", "i")  # dotless i becomes I in capitals
    folded = unicodedata.normalize("NFKD", text.casefold()).casefold()
    return "".join(filter(_is_letter, unicodedata.normalize("NFKD", folded)))


@cache
def _is_letter(character: str) -> bool:
    return unicodedata.category(character).startswith("L")
