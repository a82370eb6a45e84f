"""Files that are replaced whole: permissions, links, and what is no file."""

import os
import stat
import subprocess
import sys
import threading

import pytest

from headlab.errors import HeadlabError
from headlab.files import replace_file


def put(path, data=b"new"):
    replace_file(path, lambda file: file.write(data))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_umask_is_never_changed(tmp_path, monkeypatch):
    """It belongs to the whole process: a thread that makes a file meanwhile would have it open."""
    monkeypatch.setattr(os, "umask", lambda *_: pytest.fail("the umask was changed"))
    put(tmp_path / "file")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_of_any_other(tmp_path, umask):
    before = os.umask(umask)
    try:
        put(tmp_path / "made" / "file")
        (tmp_path / "plain").write_bytes(b"x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "made" / "file") == mode(tmp_path / "plain") == 0o666 & ~umask


@pytest.mark.parametrize("given", [0o600, 0o644, 0o664, 0o755])
def test_a_file_keeps_its_permissions(tmp_path, given):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(given)
    put(path)
    assert path.read_bytes() == b"new"
    assert mode(path) == given


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_replaced(tmp_path, relative, there):
    target = tmp_path / "scratch" / "best.ckpt"
    target.parent.mkdir()
    if there:
        target.write_bytes(b"old")
    link = tmp_path / "run" / "best.ckpt"
    link.parent.mkdir()
    link.symlink_to(os.path.relpath(target, link.parent) if relative else target)
    put(link)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert target.read_bytes() == link.read_bytes() == b"new"
    assert len(list(tmp_path.glob("*/*"))) == 2


def test_what_is_no_file_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    put(pipe)
    reader.join(10)
    assert got == [b"new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    code = (
        "import sys; from headlab.files import replace_file; "
        "replace_file(sys.argv[1], lambda file: file.write(b'x'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "/dev/stdout"], capture_output=True, check=True
    )
    assert done.stdout == b"x"
    with pytest.raises(HeadlabError, match="could not write"):
        put(tmp_path)


def test_names_as_long_as_they_may_be(tmp_path):
    put(tmp_path / ("n" * 255))
    assert (tmp_path / ("n" * 255)).read_bytes() == b"new"
    with pytest.raises(HeadlabError, match="could not write"):
        put(tmp_path / ("n" * 256))


@pytest.mark.parametrize("error", [KeyboardInterrupt, TypeError, OSError])
def test_nothing_is_left_behind_of_a_write_that_fails(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"half")
        raise error("no")

    with pytest.raises((error, HeadlabError)):
        replace_file(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
