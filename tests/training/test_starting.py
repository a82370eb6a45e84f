"""Where weights come from: missing heads add up, and what does not fit is refused."""

from pathlib import Path

import pytest
import torch

from headlab.checkpoint import save_checkpoint
from headlab.errors import HeadlabError
from headlab.head_names import Head
from headlab.heads.gates import gates_without
from headlab.heads.surgery import cut_heads
from headlab.training.starting import starting_point, take_weights, training_state
from headlab.transformer import Transformer

GONE = [Head("encoder", 0, 1), Head("cross", 0, 3)]


@pytest.fixture
def pruned(learnt, tmp_path: Path) -> Path:
    """A checkpoint without two of its heads, as ``headlab prune`` writes it."""
    path = tmp_path / "pruned.ckpt"
    save_checkpoint(path, learnt, cut_heads(learnt.model, GONE))
    return path


def test_heads_to_leave_out_join_those_that_are_missing(pruned: Path, learnt) -> None:
    more = {"ablate": ["cross.0.0", "cross.0.3"]}  # the second is gone already
    start = starting_point({"init_from": str(pruned), "model": more})
    gone = {*GONE, Head("cross", 0, 0)}
    assert set(learnt.model.head_names) - set(start.model.head_names) == gone
    ids = torch.tensor([[5, 6, 7]])
    expected = learnt.model(ids, ids, gates_without(learnt.model, gone))
    torch.testing.assert_close(start.model(ids, ids), expected)
    built = Transformer(**start.model.hparams).eval()
    take_weights(built, start)
    assert torch.equal(built(ids, ids), start.model(ids, ids))


def test_without_more_the_missing_ones_stay_missing(pruned: Path) -> None:
    for ablate in ([], ["encoder.0.1"]):
        start = starting_point({"init_from": str(pruned), "model": {"ablate": ablate}})
        assert len(start.model.head_names) == 10


def test_what_does_not_fit(pruned: Path) -> None:
    with pytest.raises(HeadlabError, match=r"model\.ablate: there is no head cross\.1\.0; the he"):
        starting_point({"init_from": str(pruned), "model": {"ablate": ["cross.1.0"]}})
    start = starting_point({"init_from": str(pruned), "model": {}})
    other = Transformer(**{**start.model.hparams, "feed_forward": 8})
    with pytest.raises(HeadlabError, match="its weights do not fit model"):
        take_weights(other, start)


def test_a_model_alone_cannot_be_resumed(pruned: Path) -> None:
    with pytest.raises(HeadlabError, match=r"resume=.*no state of a training.*init_from=.*pruned"):
        training_state(pruned)
