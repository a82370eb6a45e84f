"""Statistics of a mixture of heads: a head is judged by the tokens that picked it."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from headlab.data.tokenizer import EOS, PAD
from headlab.head_names import SITES, Head
from headlab.heads.importance import weight_scores
from headlab.heads.parsing import Parse
from headlab.heads.redundancy import HeadDistances
from headlab.heads.syntax import SyntaxCounts
from headlab.heads.words import Words
from headlab.training.head_statistics import head_statistics
from headlab.transformer import Transformer

PAIRS = [([5, 9, 4], [7, 8]), ([6], [11, 4, 9, 9, 5]), ([8, 8, 10, 7, 6], [4])]


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(3)
    mixture = {"kind": "moh", "shared_heads": 1, "active_heads": 2}
    model = Transformer(
        source_vocab_size=12,
        target_vocab_size=12,
        d_model=16,
        heads=4,
        encoder_layers=2,
        decoder_layers=1,
        attention=mixture,
    )
    with torch.no_grad():
        for site in SITES:
            for layer in model.attentions(site):
                torch.nn.init.normal_(layer.router.weight, std=1.0)
                layer.router.weight[3] = 0.0  # a routed head that is rarely the best
    return model.double().eval()


def expected(model: Transformer, head: Head) -> dict[str, list[float]]:
    """A sentence and a token at a time."""
    found: dict[str, list[float]] = {"entropy": [], "confidence": []}
    for source, target in PAIRS:
        ids, read = torch.tensor([[*source, EOS]]), torch.tensor([[2, *target]])
        with torch.no_grad():
            weights = model.attention_weights(ids, read)[head.site][head.layer][0, head.head]
        for row in weights:
            if row.sum() == 0:
                continue
            p = (row / row.sum()).tolist()
            found["entropy"].append(-sum(x * math.log(x) for x in p if x))
            found["confidence"].append(max(p if head.site == "decoder" else p[:-1]))
    return found


def test_entropy_and_confidence_of_the_tokens_that_picked_a_head(model: Transformer) -> None:
    scores, logged = weight_scores(model, PAIRS), head_statistics(model, PAIRS)
    tokens = {"encoder": 12, "decoder": 11, "cross": 11}
    some_left_out = False
    for head in model.head_names:
        values = expected(model, head)
        count = len(values["entropy"])
        some_left_out |= 0 < count < tokens[head.site]
        if head.head == 0:
            assert count == tokens[head.site]  # shared
        tag = f"{head.site}/layer_{head.layer}/head_{head.head}"
        for name, found in (("entropy", scores.entropy), ("confidence", scores.confidence)):
            if count:
                assert found[head] == pytest.approx(sum(values[name]) / count)
                assert logged[f"{name}/{tag}"] == pytest.approx(sum(values[name]) / count)
            else:
                assert found[head] == 0.0
                assert f"{name}/{tag}" not in logged
    assert some_left_out
    assert not any(math.isnan(value) for value in logged.values())


def test_distances_of_heads_that_share_tokens() -> None:
    torch.manual_seed(0)
    weights = torch.rand(2, 4, 5, 5).softmax(-1).double()
    weights[:, 0] *= torch.rand(2, 5, 1) < 0.6
    weights[0, 1, :2] = 0.0
    weights[:, 2] = 0.0  # picked by nobody
    distances = HeadDistances()
    distances.add([weights[:, :3], weights[:, 3:]], torch.ones(2, 5, dtype=torch.bool))
    matrix = distances.matrix()
    for i in range(4):
        for j in range(4):
            both = [
                jensenshannon(a, b, base=2)
                for a, b in zip(
                    weights[:, i].flatten(0, 1), weights[:, j].flatten(0, 1), strict=True
                )
                if a.any() and b.any()
            ]
            wanted = 0.0 if i == j else float(np.mean(both)) if both else 1.0
            assert matrix[i, j] == pytest.approx(wanted, abs=1e-6)


def test_relations_of_words_that_picked_a_head() -> None:
    weights = torch.zeros(1, 2, 4, 4)
    weights[0, 0, 1, 0] = weights[0, 0, 2, 0] = 1.0
    weights[0, 1, 2, 3] = 0.2  # only word 2 picked head 1
    parse = Parse(["a", "b", "c", "d"], [(1, 0, "x"), (2, 0, "x")])
    counts = SyntaxCounts(causal=False)
    counts.add([parse], Words([[0, 1, 2, 3]], [4]), [0], [weights])
    found = {one.relation.direction: one.accuracy for one in counts.accuracies(0)[0]}
    assert found["to head"] == 1.0
    found = {one.relation.direction: one.accuracy for one in counts.accuracies(0)[1]}
    assert found["to head"] == 0.0
    weights[0, 1, 2] = torch.tensor([0.2, 0.0, 0.0, 0.0])
    counts = SyntaxCounts(causal=False)
    counts.add([parse], Words([[0, 1, 2, 3]], [4]), [0], [weights])
    found = {one.relation.direction: one.accuracy for one in counts.accuracies(0)[1]}
    assert found["to head"] == 1.0  # of one word, not of two


def test_padding_is_no_token(model: Transformer) -> None:
    assert PAD == 0
    alone = {}
    for pair in PAIRS:
        for head, score in weight_scores(model, [pair]).entropy.items():
            alone.setdefault(head, []).append(score)
    together = weight_scores(model, PAIRS[:1] * 3).entropy
    for head, score in together.items():
        assert score == pytest.approx(alone[head][0])
