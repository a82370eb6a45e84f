import gzip
import os
from pathlib import Path

import pytest

from headlab.errors import HeadlabError

SHARED = Path(
    os.environ.get("HEADLAB_MULTI30K", Path(__file__).parents[2] / ".." / "shared" / "multi30k")
)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, count in (
        ("train", 5),
        ("val", 2),
        ("test_2016_flickr", 3),
        ("test_2017_flickr", 1),
    ):
        for code in ("en", "de", "cs"):
            text = "".join(f"{split} {code} {i}\n" for i in range(count))
            if code == "de":
                (folder / f"{split}.de.gz").write_bytes(gzip.compress(text.encode()))
            else:
                (folder / f"{split}.{code}").write_text(text)
    return folder


def test_folder_plain_and_gzipped(build, folder):
    corpus = build("multi30k", path=str(folder))
    splits = corpus.load()
    assert {split: len(splits[split]) for split in splits} == {
        "train": 5,
        "validation": 2,
        "test": 3,
    }
    assert splits["train"][4] == {"source": "train en 4", "target": "train de 4"}
    other = build("multi30k", path=str(folder), source="cs", test_split="test_2017_flickr").load()
    assert list(other["test"]) == [
        {"source": "test_2017_flickr cs 0", "target": "test_2017_flickr de 0"}
    ]


def test_repository_root_will_do(build, folder, tmp_path):
    (tmp_path / "repo" / "data" / "task1").mkdir(parents=True)
    folder.rename(tmp_path / "repo" / "data" / "task1" / "raw")
    assert len(build("multi30k", path=str(tmp_path / "repo")).load()["train"]) == 5


def test_what_is_missing_is_named(build, folder, tmp_path):
    with pytest.raises(HeadlabError, match=r"data\.path=.*neither train\.fr nor train\.fr\.gz"):
        build("multi30k", path=str(folder), target="fr").load()
    with pytest.raises(HeadlabError, match=r"data\.path=.*nowhere: no such folder"):
        build("multi30k", path=str(tmp_path / "nowhere"))
    with pytest.raises(HeadlabError, match="the hub has only de and en"):
        build("multi30k", source="fr")
    with pytest.raises(HeadlabError, match="the hub has only test_2016_flickr"):
        build("multi30k", test_split="test_2017_flickr")


def test_unequal_files(build, folder):
    (folder / "val.en").write_text("only one\n")
    with pytest.raises(HeadlabError, match=r"val\.en has 1 lines and .*val\.de\.gz has 2"):
        build("multi30k", path=str(folder)).load()


@pytest.mark.skipif(not SHARED.is_dir(), reason="no copy of Multi30k here")
def test_the_real_files(build):
    splits = build("multi30k", path=str(SHARED), limit=100).load()
    assert {split: len(splits[split]) for split in splits} == {
        "train": 100,
        "validation": 1014,
        "test": 1000,
    }
