import json
import time

import huggingface_hub.constants
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
    with pytest.raises(HeadlabError, match=r'column "fr" holds int64, text was expected'):
        build("hub", path=path).load()


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
