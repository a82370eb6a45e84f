"""Speed of every kind of attention, of training and of decoding with a cache and without.

    python scripts/attention_speed.py           # d_model 256, 8 heads, batches of 4,096 tokens

Needs no corpus: the sentences are random pieces, with the lengths of image captions. The kinds
take turns, so that a machine that is busy for a while slows all of them; speeds are relative to
multi-head attention. Models are untrained, and decoding is made to emit as many tokens as asked.
"""

import argparse
import time

import torch
from torch.profiler import ProfilerActivity, profile

from headlab.allocator import keep_freed_memory
from headlab.comparison import training_speeds
from headlab.data.batches import Batch, EncodedPairs, TrainingBatches
from headlab.data.tokenizer import BOS, EOS
from headlab.transformer import Transformer

KINDS = {
    "mha": {},
    "gqa": {"kind": "gqa", "kv_heads": 2},
    "mqa": {"kind": "mqa"},
    "mla": {"kind": "mla", "latent_dim": 32},
    "moh": {"kind": "moh", "shared_heads": 2, "active_heads": 6},
    "deltanet": {"decoder": "deltanet"},
    "hybrid": {"decoder": "hybrid"},
}


def sentences(generator: torch.Generator, vocabulary: int, number: int) -> list[list[int]]:
    """Random pieces; as many of each as captions have, 14 with a spread of 4."""
    lengths = (torch.randn(number, generator=generator) * 4 + 14).round().clamp(4, 40).int()
    return [
        torch.randint(EOS + 1, vocabulary, (int(n),), generator=generator).tolist() for n in lengths
    ]


@torch.inference_mode()
def decode(model: Transformer, source: torch.Tensor, tokens: int, cached: bool) -> float:
    """Seconds for so many greedy tokens of one sentence, whatever they are."""
    start = time.perf_counter()
    encoded = model.encode(source)
    ids = torch.tensor([[BOS]])
    cache = model.new_cache(1, tokens) if cached else None
    for _ in range(tokens):
        hidden = model.decode(ids[:, -1:] if cached else ids, encoded, cache).hidden
        ids = torch.cat([ids, model.logits(hidden[:, -1:]).argmax(dim=-1)], dim=1)
    return time.perf_counter() - start


def build(arguments: argparse.Namespace, kind: str) -> Transformer:
    torch.manual_seed(0)
    return Transformer(
        source_vocab_size=arguments.vocabulary,
        target_vocab_size=arguments.vocabulary,
        d_model=arguments.d_model,
        heads=arguments.heads,
        encoder_layers=arguments.layers,
        decoder_layers=arguments.layers,
        feed_forward=2 * arguments.d_model,
        attention=KINDS[kind],
        position={"kind": "sinusoidal", "max_length": 512},
    )


def print_profile(model: Transformer, batches: list[Batch]) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        training_speeds([model], batches, 1)
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--max-tokens", type=int, default=4096, help="of a batch, with padding")
    parser.add_argument("--batches", type=int, default=4, help="in a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--decode", type=int, default=256, help="tokens of the one sentence")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--profile", action="store_true", help="operators of each kind's training")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    generator = torch.Generator().manual_seed(0)
    pairs = [sentences(generator, arguments.vocabulary, 2000) for _ in range(2)]
    source = torch.tensor(pairs[0][:1])
    batches = list(TrainingBatches(EncodedPairs(*pairs), arguments.max_tokens, 1))
    batches = batches[: arguments.batches]
    models = {kind: build(arguments, kind) for kind in arguments.kinds}
    training = training_speeds(list(models.values()), batches, arguments.turns)
    print(f"{arguments.threads} threads, {arguments.max_tokens:,} tokens a batch")
    print("kind       training  tokens/s  | decoding with a cache, tokens/s  times uncached")
    for (kind, model), speed in zip(models.items(), training, strict=True):
        model.eval()
        seconds = [
            min(decode(model, source, arguments.decode, cached) for _ in range(2))
            for cached in (True, False)
        ]
        print(
            f"{kind:9s} {speed / training[0]:9.2f} {speed:9,.0f}  | "
            f"{arguments.decode / seconds[0]:31,.0f} {seconds[1] / seconds[0]:15.1f}"
        )
    if arguments.profile:
        for kind, model in models.items():
            print(kind)
            print_profile(model, batches)


if __name__ == "__main__":
    main()
