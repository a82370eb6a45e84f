"""Numbers from attention weights with known answers."""

import math

import pytest
import torch
from torch import Tensor

from headlab.heads.statistics import HeadMeans, StudyBatch
from headlab.heads.weights import (
    PositionCounts,
    attention_batches,
    candidates,
    confidences,
    entropies,
    largest,
    off_diagonal,
    visible_keys,
)
from headlab.transformer import Transformer


def batch_of(*lengths: tuple[int, int]) -> StudyBatch:
    """Sentence pairs of so many source and target pieces."""
    rows = len(lengths)
    widths = [max(pair[i] for pair in lengths) + 1 for i in (0, 1)]
    source = torch.zeros(rows, widths[0], dtype=torch.long)
    read, written = (torch.zeros(rows, widths[1], dtype=torch.long) for _ in range(2))
    for row, (s, t) in enumerate(lengths):
        source[row, : s + 1] = torch.tensor([9] * s + [3])
        read[row, : t + 1] = torch.tensor([2] + [9] * t)
        written[row, : t + 1] = torch.tensor([9] * t + [3])
    return StudyBatch(source, read, written, list(range(rows)))


def even(batch: StudyBatch, site: str, heads: int = 1) -> Tensor:
    seen = visible_keys(batch, site).float()
    return (seen / seen.sum(-1, keepdim=True).clamp(min=1)).unsqueeze(1).expand(-1, heads, -1, -1)


def pointing(batch: StudyBatch, site: str, offset: int) -> Tensor:
    """One head that looks so far to the side; where there is nothing, at the first key."""
    weights = torch.zeros(visible_keys(batch, site).shape)
    for row, query in visible_keys(batch, site).any(-1).nonzero().tolist():
        there = query + offset
        ok = 0 <= there < weights.size(2) and visible_keys(batch, site)[row, query, there]
        weights[row, query, there if ok else 0] = 1.0
    return weights.unsqueeze(1)


def test_what_a_query_sees() -> None:
    batch = batch_of((2, 1), (1, 2))
    assert visible_keys(batch, "encoder")[0].sum(-1).tolist() == [3, 3, 3]
    assert visible_keys(batch, "encoder")[1].sum(-1).tolist() == [2, 2, 0]
    assert visible_keys(batch, "decoder")[1].sum(-1).tolist() == [1, 2, 3]
    assert visible_keys(batch, "decoder")[0].sum(-1).tolist() == [1, 2, 0]
    assert visible_keys(batch, "cross")[0].sum(-1).tolist() == [3, 3, 0]
    # The end of sentence is no candidate; the decoder's start is one.
    assert candidates(batch, "encoder")[0].sum(-1).tolist() == [2, 2, 2]
    assert candidates(batch, "cross")[1].sum(-1).tolist() == [1, 1, 1]
    assert torch.equal(candidates(batch, "decoder"), visible_keys(batch, "decoder"))


def test_entropy_of_known_weights() -> None:
    batch = batch_of((3, 3), (1, 3))
    weights = even(batch, "encoder", 3).clone()
    weights[:, 1] = 0.0
    weights[:, 1, :, 0] = 1.0
    weights[:, 2] = 0.5 * weights[:, 1] + 0.5 * weights[:, 1].roll(1, -1)
    weights[1, :, 2:] = 0.123  # queries that are padding must not count
    means = HeadMeans()
    means.add("encoder", 0, "entropy", entropies(weights), batch.real()["encoder"][0])
    found = means.table("entropy", {"encoder": [[0, 1, 2]]}, 3)["encoder"][0].tolist()
    expected = [(4 * math.log(4) + 2 * math.log(2)) / 6, 0.0, math.log(2)]
    assert found == pytest.approx(expected, abs=1e-6)


def test_confidence_leaves_the_end_out() -> None:
    batch = batch_of((2, 2))
    weights = torch.tensor([[0.1, 0.2, 0.7]]).expand(1, 1, 3, 3)
    assert confidences(weights, candidates(batch, "encoder")).flatten().tolist() == pytest.approx(
        [0.2] * 3
    )
    assert largest(weights, candidates(batch, "encoder")).flatten().tolist() == [1, 1, 1]


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
def test_positional_heads_of_the_encoder(offset: int) -> None:
    counts = PositionCounts()
    for batch in (batch_of((5, 1), (3, 1), (1, 1)), batch_of((7, 1))):  # also of several widths
        weights, allowed = pointing(batch, "encoder", offset), candidates(batch, "encoder")
        counts.add("encoder", 0, weights, allowed)
    assert counts.best("encoder", 0) == [(offset, 1.0)]


@pytest.mark.parametrize("offset", [-2, -1, 0])
def test_positional_heads_of_the_decoder(offset: int) -> None:
    batch = batch_of((1, 5), (1, 2), (1, 1))
    weights, allowed = pointing(batch, "decoder", offset), candidates(batch, "decoder")
    counts = PositionCounts()
    counts.add("decoder", 0, weights, allowed)
    assert counts.best("decoder", 0) == [(offset, 1.0)]


def test_positions_against_a_loop() -> None:
    torch.manual_seed(0)
    batches = [batch_of((6, 4), (3, 5)), batch_of((2, 2)), batch_of((9, 7), (1, 1), (4, 4))]
    for site in ("encoder", "decoder"):
        counts, hits, possible = PositionCounts(), [{}, {}], [{}, {}]
        for batch in batches:
            allowed = candidates(batch, site)
            weights = torch.rand(len(batch.rows), 2, *allowed.shape[1:])
            weights[:, 1] *= torch.rand(weights[:, 1, :, :1].shape) < 0.7  # not in use
            counts.add(site, 0, weights, allowed)
            for row, query in allowed.any(-1).nonzero().tolist():
                keys = allowed[row, query].nonzero().flatten().tolist()
                if len(keys) < 2:
                    continue
                for head in (0, 1):
                    if not weights[row, head, query].any():
                        continue
                    for key in keys:
                        possible[head][key - query] = possible[head].get(key - query, 0) + 1
                    best = max(keys, key=lambda k: float(weights[row, head, query, k]))
                    hits[head][best - query] = hits[head].get(best - query, 0) + 1
        for head, (position, share) in enumerate(counts.best(site, 0)):
            best = min(hits[head], key=lambda p: (-hits[head][p], abs(p), p))
            assert position == best
            assert share == pytest.approx(hits[head][best] / possible[head][best])


def test_nothing_to_choose_from_gives_no_position() -> None:
    batch = batch_of((1, 1))
    allowed = candidates(batch, "encoder")  # one word, and the end, which is no candidate
    counts = PositionCounts()
    counts.add("encoder", 0, even(batch, "encoder"), allowed)
    ((position, share),) = counts.best("encoder", 0)
    assert position == 0
    assert math.isnan(share)


def test_distance_from_the_diagonal() -> None:
    batch = batch_of((4, 4), (2, 3))
    queries = batch.real()["cross"][0]
    diagonal = torch.zeros(2, 1, 5, 5)
    diagonal[0, 0] = torch.eye(5)
    distance, uniform = off_diagonal(diagonal, batch)
    assert distance[0].abs().max() == 0
    # Row 1 of 4, at 1/3, and even weights on 3 keys at 0, 1/2 and 1.
    assert float(uniform[1, 0, 1]) == pytest.approx((1 / 3 + 1 / 6 + 2 / 3) / 3)
    distance, uniform = off_diagonal(even(batch, "cross"), batch)
    assert distance[0, 0].tolist() == pytest.approx(uniform[0, 0].tolist())
    assert distance[1, 0, queries[1]].tolist() == pytest.approx(
        uniform[1, 0, queries[1]].tolist(), abs=1e-7
    )
    corner = torch.zeros(2, 1, 5, 5)
    corner[..., 0] = 1.0
    distance, _ = off_diagonal(corner, batch)
    assert distance[0, 0].tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_batches_have_the_weights_of_the_model_and_say_how_far_they_are() -> None:
    torch.manual_seed(0)
    model = Transformer(
        source_vocab_size=20,
        target_vocab_size=20,
        d_model=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        position={"kind": "sinusoidal", "max_length": 8},
    ).eval()
    pairs = [([5, 6], [7]), ([8] * 8, [9]), ([5, 6, 7], [8, 9])]  # the second is too long
    done: list[int] = []
    seen = []
    for batch, weights in attention_batches(model, pairs, 8, done.append):
        seen += batch.rows
        expected = model.attention_weights(batch.source, batch.target_input)
        for site, layers in weights.items():
            assert torch.equal(layers[0], expected[site][0])
            assert not layers[0].requires_grad
    assert sorted(seen) == [0, 2]
    assert done[-1] == 2


def test_every_kind_of_attention_gives_distributions_to_the_studies() -> None:
    torch.manual_seed(0)
    sizes = {"source_vocab_size": 12, "target_vocab_size": 12, "d_model": 16, "heads": 4}
    options = {"kind": "moh", "shared_heads": 1, "active_heads": 2, "decoder": "deltanet"}
    model = Transformer(**sizes, attention=options, encoder_layers=1, decoder_layers=1).eval()
    pairs = [([5, 6, 7], [8, 9]), ([4], [5, 6, 7, 8])]
    raw = model.attention_weights(torch.tensor([[5, 6, 3]]), torch.tensor([[2, 8, 9]]))
    assert raw["decoder"][0].min() < 0
    seen = 0
    for batch, weights in attention_batches(model, pairs, 1):
        for site, (layer,) in weights.items():
            assert layer.min() >= 0
            sums = layer.sum(dim=-1)
            active = sums > 0.5
            torch.testing.assert_close(sums[active], torch.ones_like(sums[active]))
            share = active.float().mean()
            assert share == (1.0 if site == "decoder" else 0.5)
            assert entropies(layer).isfinite().all()
        seen += len(batch.rows)
    assert seen == 2
