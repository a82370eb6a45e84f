"""Fetching through pip itself, from a folder of wheels in place of the network."""

import hashlib
import zipfile

import pytest

from headlab.data.download import fetch_wheel
from headlab.errors import HeadlabError

NAME = "tinycatalog-1.0-py3-none-any.whl"
METADATA = """\
Metadata-Version: 2.1
Name: tinycatalog
Version: 1.0
Requires-Python: >=99
Requires-Dist: not-there
"""


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip takes wheels from; gives the sha256 of the one in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / NAME, "w") as archive:
        info = "tinycatalog-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return hashlib.sha256((folder / NAME).read_bytes()).hexdigest()


def test_fetched_checked_and_put_in_place(tmp_path, index, monkeypatch):
    wheel = tmp_path / "data" / NAME
    fetch_wheel(wheel, "tinycatalog==1.0", 1000, index)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == index
    assert [path.name for path in wheel.parent.iterdir()] == [NAME]
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: pytest.fail("fetched again"))
    fetch_wheel(wheel, "tinycatalog==1.0", 1000, index)


def test_wrong_checksum_leaves_nothing(tmp_path, index):
    wheel = tmp_path / "data" / NAME
    with pytest.raises(HeadlabError, match=rf"sha256 is {index}, data\.sha256 asks for 00"):
        fetch_wheel(wheel, "tinycatalog==1.0", 1000, "0" * 64)
    assert list(wheel.parent.iterdir()) == []


def test_a_damaged_file_is_fetched_again(tmp_path, index, caplog):
    wheel = tmp_path / "data" / NAME
    fetch_wheel(wheel, "tinycatalog==1.0", 1000, index)
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:50] + bytes(50) + whole[100:])
    caplog.clear()
    fetch_wheel(wheel, "tinycatalog==1.0", 1000, index)
    assert wheel.read_bytes() == whole
    assert [r.levelname for r in caplog.records if NAME in r.getMessage()].count("WARNING") == 1


def test_pip_failing_names_the_other_choices(tmp_path, index):
    wheel = tmp_path / "data" / "tinycatalog-2.0-py3-none-any.whl"
    with pytest.raises(HeadlabError, match=r"pip could not download .*data=files") as caught:
        fetch_wheel(wheel, "tinycatalog==2.0", 1000, index)
    assert "\n" not in str(caught.value)
    assert "data=multi30k" in str(caught.value)
    assert list(wheel.parent.iterdir()) == []
