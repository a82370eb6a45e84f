"""Checkpoints: rebuilt from the file alone, plain types only, never half written."""

import errno
import os
import pickle

import pytest
import torch

from headlab.checkpoint import read_checkpoint, read_raw
from headlab.errors import HeadlabError
from headlab.files import replace_file


def test_the_file_alone_rebuilds_the_model(learnt_checkpoint) -> None:
    loaded = read_checkpoint(learnt_checkpoint)
    assert loaded.step == 150
    assert not loaded.model.training
    assert loaded.tokenizers.joint
    model = loaded.model
    assert model.output.weight.data_ptr() == model.source_embedding.weight.data_ptr()
    again = read_checkpoint(learnt_checkpoint).model
    source, target = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 7]])
    assert torch.equal(model(source, target), again(source, target))


def test_files_that_are_no_checkpoints(tmp_path, learnt_checkpoint) -> None:
    whole = learnt_checkpoint.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.ckpt").write_bytes(whole[:size])
        with pytest.raises(HeadlabError, match=r"cut\.ckpt is not a readable checkpoint"):
            read_checkpoint(tmp_path / "cut.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    with pytest.raises(HeadlabError, match=r"foreign\.ckpt was not written by Headlab"):
        read_checkpoint(tmp_path / "foreign.ckpt")
    with pytest.raises(HeadlabError, match="no checkpoint at"):
        read_checkpoint(tmp_path / "missing.ckpt")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.ckpt").write_bytes(whole)
    with pytest.raises(HeadlabError, match=r"did you mean .*best\.ckpt"):
        read_checkpoint(tmp_path / "run")


class Harmful:
    def __reduce__(self):
        return (os.system, ("false",))


def test_pickled_code_is_refused(tmp_path) -> None:
    torch.save({"headlab": Harmful(), "state_dict": {}}, tmp_path / "harmful.ckpt")
    with pytest.raises(HeadlabError, match="is not a readable checkpoint"):
        read_raw(tmp_path / "harmful.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(HeadlabError, match="is not a readable checkpoint"):
        read_raw(tmp_path / "plain.ckpt")


def test_weights_of_another_size_and_another_format(tmp_path, learnt_checkpoint) -> None:
    raw = torch.load(learnt_checkpoint, weights_only=True)
    raw["headlab"]["model"]["d_model"] = 64
    torch.save(raw, tmp_path / "other.ckpt")
    with pytest.raises(HeadlabError, match="the weights do not fit the model it describes"):
        read_checkpoint(tmp_path / "other.ckpt")
    raw["headlab"]["format"] = 99
    torch.save(raw, tmp_path / "newer.ckpt")
    with pytest.raises(HeadlabError, match="has format 99, this version reads"):
        read_checkpoint(tmp_path / "newer.ckpt")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "last.ckpt"
    replace_file(path, lambda file: file.write(b"old"))

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HeadlabError, match=r"could not write .*last\.ckpt: No space left"):
        replace_file(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
