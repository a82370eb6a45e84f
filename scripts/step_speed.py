"""What each measure that makes a training step fast is worth, one taken away at a time.

    python scripts/step_speed.py            # the sizes of experiment=multi30k_en_de, 2 threads

Needs no corpus: the sentences are random pieces, with the lengths of image captions. The variants
take turns on the same batches, so that a machine that is busy for a while slows all of them; a
ratio is that of two turns of one round.
"""

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from attention_speed import sentences
from torch import Tensor, nn

import headlab.dropout
from headlab.allocator import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, keep_freed_memory
from headlab.data.batches import Batch, EncodedPairs, TrainingBatches
from headlab.data.tokenizer import PAD
from headlab.training.loss import linear_cross_entropy
from headlab.training.shards import Shards
from headlab.transformer import Transformer

ORDINARY = 128 * 2**10  # both thresholds of glibc, as a process begins


@contextmanager
def memory_given_back() -> Iterator[None]:
    if not keep_freed_memory():
        raise SystemExit("the memory settings are those of Linux with glibc; leave this one out")
    mallopt = ctypes.CDLL("libc.so.6").mallopt
    for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
        mallopt(option, ORDINARY)
    yield
    keep_freed_memory()


@contextmanager
def bernoulli_dropout() -> Iterator[None]:
    ours, headlab.dropout.dropout = headlab.dropout.dropout, F.dropout
    yield
    headlab.dropout.dropout = ours


def whole_logits(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, None]:
    logits = hidden @ weight.t()
    return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing), None


class Variant:
    """A training of its own, with one thing changed."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        shards: int = 2,
        loss: Callable[..., tuple[Tensor, Tensor | None]] = linear_cross_entropy,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        compiled: bool = False,
        fused: bool = True,
    ) -> None:
        torch.manual_seed(0)
        self.model = Transformer(
            source_vocab_size=arguments.vocabulary,
            target_vocab_size=arguments.vocabulary,
            d_model=128,
            heads=4,
            feed_forward=256,
            dropout=0.25,
        ).train()
        self.shards, self.loss, self.around = Shards(shards), loss, around
        self.encode, self.decode = self.model.encode, self.model.decode
        if compiled:
            self.encode = torch.compile(self.encode, dynamic=True)
            self.decode = torch.compile(self.decode, dynamic=True)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, fused=fused)

    def turn(self, batches: list[Batch]) -> float:
        """Seconds for a step on each batch."""
        with self.around():
            start = time.perf_counter()
            for batch in batches:
                value, _ = self.shards(self.objective, batch, self.parameters)
                (value / batch.target_tokens).backward()
                nn.utils.clip_grad_norm_(self.parameters, 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            return time.perf_counter() - start

    def objective(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = self.decode(batch.target_input, self.encode(batch.source)).hidden
        real = batch.target_output != PAD
        weight = self.model.output.weight
        return self.loss(hidden[real], weight, batch.target_output[real], 0.1)[0], {}


VARIANTS = {
    "as it is": {},
    "every operation split between the threads": {"shards": 1},
    "four parts in place of two": {"shards": 4},
    "all logits at once": {"loss": whole_logits},
    "Bernoulli dropout": {"around": bernoulli_dropout},
    "freed memory given back": {"around": memory_given_back},
    "AdamW, not fused": {"fused": False},
    "torch.compile, dynamic shapes": {"shards": 1, "compiled": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--max-tokens", type=int, default=4096, help="of a batch, with padding")
    parser.add_argument("--batches", type=int, default=6, help="in a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without", nargs="+", choices=list(VARIANTS)[1:], default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    generator = torch.Generator().manual_seed(0)
    pairs = [sentences(generator, arguments.vocabulary, 4000) for _ in range(2)]
    batches = list(TrainingBatches(EncodedPairs(*pairs), arguments.max_tokens, 1))
    batches = batches[: arguments.batches]
    tokens = sum(batch.target_tokens for batch in batches)
    variants = {
        name: Variant(arguments, **options)
        for name, options in VARIANTS.items()
        if name not in arguments.without
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(-1, arguments.turns):  # the first turn warms up
        for name, variant in variants.items():
            print(f"\rturn {number + 1} of {arguments.turns}: {name:45s}", end="", file=sys.stderr)
            took = variant.turn(batches)
            if number >= 0:
                seconds[name].append(took)
    print(file=sys.stderr)
    print(f"{arguments.threads} threads, {arguments.max_tokens:,} tokens a batch, padding included")
    for name, times in seconds.items():
        ratios = [mine / theirs for mine, theirs in zip(seconds["as it is"], times, strict=True)]
        speed = tokens / statistics.median(times)
        print(
            f"{name:45s} {speed:7,.0f} target tokens/s   x {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
