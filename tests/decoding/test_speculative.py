"""Speculative search gives greedy search's tokens, whatever the draft is like."""

import pytest
import torch

from headlab.data.tokenizer import EOS
from headlab.decoding.greedy import greedy_search
from headlab.decoding.speculative import Speculation, speculative_search
from headlab.errors import HeadlabError
from headlab.transformer import Transformer

SOURCES = [[5, 6, 7], [9], [], [8, 8, 8, 8, 8, 4], [10, 4]]


def build(seed: int, **options) -> Transformer:
    torch.manual_seed(seed)
    sizes = {"source_vocab_size": 12, "target_vocab_size": 12, "d_model": 16, "heads": 2}
    sizes |= {"encoder_layers": 1, "decoder_layers": 4, "feed_forward": 16}
    model = Transformer(**sizes | options)
    with torch.no_grad():
        model.output.weight.mul_(3)  # opinions strong enough to differ
    return model.double().eval()


@pytest.mark.parametrize("draft_tokens", [1, 3, 8])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention": {"kind": "mla", "latent_dim": 6}, "position": {"kind": "rope"}},
        {"attention": {"kind": "mha", "decoder": "hybrid"}},
        {"ablate": ["decoder.0.*", "cross.1.0"], "position": {"kind": "alibi"}},
    ],
)
def test_every_draft_gives_the_greedy_translation(options: dict, draft_tokens: int) -> None:
    model = build(0, **options)
    greedy = greedy_search(model, SOURCES, max_extra=5)
    tokens = sum(len(one.ids) + one.finished for one in greedy)
    drafts = {
        "perfect": build(0, **options),
        "other": build(1),
        "recurrent": build(2, attention={"kind": "mha", "decoder": "deltanet"}),
        "short": build(3, position={"kind": "sinusoidal", "max_length": 9}),
    }
    with torch.no_grad():
        drafts["ends at once"] = build(4)
        drafts["ends at once"].decoder_norm.bias.copy_(
            50 * drafts["ends at once"].output.weight[EOS]
        )
    for name, draft in drafts.items():
        found, report = speculative_search(
            model, draft, SOURCES, draft_tokens=draft_tokens, max_extra=5
        )
        assert [one.ids for one in found] == [one.ids for one in greedy], name
        assert [one.finished for one in found] == [one.finished for one in greedy]
        for one, other in zip(found, greedy, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-9)
        assert report.tokens == tokens
        assert report.passes <= tokens
        assert report.passes + report.accepted == tokens
        if name == "perfect":
            assert report.acceptance == 1.0
            assert report.passes_per_token < 0.75


@pytest.mark.parametrize("draft_tokens", [1, 2, 3, 4, 30])
def test_a_translation_that_ends_ends_there(learnt, learnt_pairs, draft_tokens: int) -> None:
    """Where the draft proposes all tokens to the very end, nothing may be added behind it."""
    encode = learnt.tokenizers.source.encode
    sources = [encode(text) for text, _ in learnt_pairs]
    greedy = greedy_search(learnt.model, sources)
    assert all(one.finished and one.ids for one in greedy)
    found, report = speculative_search(
        learnt.model, learnt.model, sources, draft_tokens=draft_tokens
    )
    assert [(one.ids, one.finished) for one in found] == [(one.ids, True) for one in greedy]
    assert report.tokens == sum(len(one.ids) + 1 for one in greedy)
    assert report.passes + report.accepted == report.tokens
    assert report.acceptance == 1.0


def test_a_draft_must_propose_something() -> None:
    model = build(0)
    with pytest.raises(HeadlabError, match="--draft-tokens 0 must be at least 1"):
        speculative_search(model, model, SOURCES, draft_tokens=0)
    assert speculative_search(model, model, [])[0] == []
    assert Speculation().acceptance == 0.0
