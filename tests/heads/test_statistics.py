import pytest
import torch

from headlab.checkpoint import Loaded
from headlab.data.tokenizer import BOS, EOS, PAD
from headlab.heads.statistics import HeadMeans, study_batches


def test_batches_hold_every_pair_once(learnt: Loaded) -> None:
    pairs = [([5] * n, [6] * (n % 5)) for n in range(1, 40)] + [([5] * 64, [6])]
    seen = []
    for batch in study_batches(learnt.model, pairs, 60):
        for i, row in enumerate(batch.rows):
            seen.append(row)
            source, target = pairs[row]
            assert [t for t in batch.source[i].tolist() if t != PAD] == [*source, EOS]
            assert [t for t in batch.target_input[i].tolist() if t != PAD] == [BOS, *target]
            assert [t for t in batch.target_output[i].tolist() if t != PAD] == [*target, EOS]
        real = batch.real()
        assert torch.equal(real["cross"][0], batch.target_output != PAD)
        assert torch.equal(real["cross"][1], batch.source != PAD)
    assert sorted(seen) == list(range(39))  # the last is longer than the model's 64 positions


def test_means_are_over_tokens_and_know_missing_heads() -> None:
    means = HeadMeans()
    counted = torch.tensor([[True, True], [True, False]])
    means.add("cross", 0, "x", torch.tensor([[[1.0, 2.0]], [[6.0, torch.nan]]]), counted)
    means.add("cross", 0, "x", torch.tensor([[[11.0]]]), torch.tensor([[True]]))
    table = means.table("x", {"cross": [[2], []]}, 3)["cross"]
    assert table[0, 2] == pytest.approx((1 + 2 + 6 + 11) / 4)
    assert table.isnan().sum() == 5
