"""The count of operations, against the counter of torch."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headlab.benchmark.flops import Sizes, forward_flops, training_flops
from headlab.transformer import Transformer

ROWS, SOURCE, TARGET = 3, 7, 5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": "swiglu"},
        {"attention": {"kind": "gqa", "kv_heads": 2}},
        {"attention": {"kind": "mha", "head_dim": 6}},
        {"ablate": ["encoder.0.1", "cross.1.0", "cross.1.2"]},
    ],
    ids=str,
)
def test_the_formula_is_what_torch_counts_on_a_batch_without_padding(options: dict) -> None:
    sizes = {"d_model": 16, "heads": 4, "encoder_layers": 1, "decoder_layers": 2}
    vocabularies = {"source_vocab_size": 40, "target_vocab_size": 50, "tie_embeddings": "target"}
    model = Transformer(feed_forward=24, **vocabularies, **sizes, **options)
    source = torch.randint(4, 40, (ROWS, SOURCE))
    target = torch.randint(4, 50, (ROWS, TARGET))
    # Only the plain formulation of attention consists of products that the counter sees.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits = model(source, target)
        forward = counter.get_total_flops()
        logits.sum().backward()
    of_model = Sizes.of_model(model)
    assert of_model is not None
    assert ROWS * forward_flops(of_model, SOURCE, TARGET, causal=False) == forward
    assert counter.get_total_flops() == 3 * forward


def test_the_backward_pass_counts_twice_and_the_causal_half_once() -> None:
    model = Transformer(source_vocab_size=40, target_vocab_size=40, d_model=16, heads=2)
    sizes = Sizes.of_plain(model.hparams)
    assert sizes == Sizes.of_model(model)
    whole = forward_flops(sizes, 6, 9, causal=False)
    spared = len(sizes.decoder) * 4 * (9 * 8 // 2) * 16  # pairs above the diagonal
    assert whole - forward_flops(sizes, 6, 9) == spared
    assert training_flops(sizes, [(6, 9), (2, 3)]) == 3 * (
        forward_flops(sizes, 6, 9) + forward_flops(sizes, 2, 3)
    )


@pytest.mark.parametrize("kind", ["mla", "moh", "hybrid"])
def test_other_kinds_of_attention_have_no_count(kind: str) -> None:
    options = {"kind": "mla", "latent_dim": 8} if kind == "mla" else {"kind": kind}
    if kind == "moh":
        options |= {"shared_heads": 1, "active_heads": 2}
    if kind == "hybrid":
        options = {"kind": "mha", "decoder": "hybrid"}
    model = Transformer(
        source_vocab_size=40, target_vocab_size=40, d_model=16, heads=4, attention=options
    )
    assert Sizes.of_model(model) is None
