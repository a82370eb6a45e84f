"""Training speed beside a plain loop around torch.nn.Transformer, on the same batches.

    python scripts/training_speed.py FOLDER          # a folder with Multi30k's raw text files

Both models have the sizes of ``experiment=multi30k_en_de``, the same vocabulary, loss, optimizer
and number of threads. They take turns, so that a machine that is busy for a while slows both; the
table gives target tokens per second of every turn, and the ratio turn by turn.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headlab.allocator import keep_freed_memory
from headlab.data.batches import Batch
from headlab.data.corpus import build_corpus
from headlab.data.module import TranslationData
from headlab.training.loss import linear_cross_entropy
from headlab.transformer import PAD, Transformer

SIZES = {"d_model": 128, "heads": 4, "layers": 4, "feed_forward": 256, "dropout": 0.25}
SMOOTHING = 0.1


class Plain(nn.Module):
    """Embedding, torch.nn.Transformer, output layer: what a tutorial writes."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        width = SIZES["d_model"]
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        position = torch.arange(256)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
        waves = torch.stack([position.sin(), position.cos()], dim=-1).flatten(1)
        self.register_buffer("position", waves)
        self.dropout = nn.Dropout(SIZES["dropout"])
        self.transformer = nn.Transformer(
            width,
            SIZES["heads"],
            SIZES["layers"],
            SIZES["layers"],
            SIZES["feed_forward"],
            SIZES["dropout"],
            batch_first=True,
            norm_first=True,
        )

    def embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * math.sqrt(SIZES["d_model"])
        return self.dropout(x + self.position[: ids.size(1)])

    def loss(self, batch: Batch) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(
            batch.target_input.size(1), dtype=torch.bool
        )
        hidden = self.transformer(
            self.embed(batch.source),
            self.embed(batch.target_input),
            tgt_mask=causal,
            src_key_padding_mask=batch.source == PAD,
            tgt_key_padding_mask=batch.target_input == PAD,
            memory_key_padding_mask=batch.source == PAD,
            tgt_is_causal=True,
        )
        logits = hidden @ self.embedding.weight.t()
        return F.cross_entropy(
            logits.flatten(0, 1),
            batch.target_output.flatten(),
            ignore_index=PAD,
            label_smoothing=SMOOTHING,
        )


def our_loss(model: Transformer) -> Callable[[Batch], Tensor]:
    def loss(batch: Batch) -> Tensor:
        encoded = model.encode(batch.source)
        hidden = model.decode(batch.target_input, encoded).hidden
        real = batch.target_output != PAD
        total, _ = linear_cross_entropy(
            hidden[real], model.output.weight, batch.target_output[real], SMOOTHING
        )
        return total / batch.target_tokens

    return loss


def turn(model: nn.Module, loss: Callable[[Batch], Tensor], optimizer: Any, batches: list) -> float:
    """Target tokens per second over the batches."""
    started = time.perf_counter()
    for batch in batches:
        loss(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return sum(b.target_tokens for b in batches) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="Multi30k's raw text files")
    parser.add_argument("--max-tokens", type=int, default=4096, help="of a batch, with padding")
    parser.add_argument("--batches", type=int, default=20, help="in a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as root:
        corpus = build_corpus(
            {
                "_target_": "headlab.data.multi30k.Multi30k",
                "source": "en",
                "target": "de",
                "root": root,
                "limit": None,
                "path": arguments.folder,
                "test_split": "test_2016_flickr",
            }
        )
        tokenizer = {"kind": "bpe", "vocab_size": 8000, "joint": True, "lowercase": True}
        data = TranslationData(
            corpus,
            {**tokenizer, "character_coverage": 0.9995},
            max_tokens=arguments.max_tokens,
            max_length=128,
            subword_sampling=0.0,
            seed=1,
        )
        vocabulary = data.prepare().target.vocab_size
        batches = list(data.train_dataloader())[: arguments.batches]
    torch.manual_seed(0)
    ours = Transformer(
        source_vocab_size=vocabulary,
        target_vocab_size=vocabulary,
        encoder_layers=SIZES["layers"],
        decoder_layers=SIZES["layers"],
        **{k: v for k, v in SIZES.items() if k != "layers"},
    )
    plain = Plain(vocabulary)
    contestants = []
    for name, model, loss in (
        ("Headlab", ours, our_loss(ours)),
        ("torch.nn.Transformer", plain, plain.loss),
    ):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        turn(model, loss, optimizer, batches[:3])  # warm up
        count = sum(p.numel() for p in model.parameters())
        print(f"{name}: {count:,} parameters")
        contestants.append((name, model, loss, optimizer))
    speeds: dict[str, list[float]] = {name: [] for name, *_ in contestants}
    for i in range(arguments.turns):
        for name, model, loss, optimizer in contestants:
            speeds[name].append(turn(model, loss, optimizer, batches))
            print(f"turn {i + 1}  {name:22} {speeds[name][-1]:8,.0f} target tokens/s", flush=True)
    ratios = [a / b for a, b in zip(*speeds.values(), strict=True)]
    print(
        f"ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f}), "
        f"{arguments.threads} threads, {arguments.max_tokens} tokens a batch"
    )


if __name__ == "__main__":
    main()
