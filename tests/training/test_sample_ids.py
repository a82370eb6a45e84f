"""The sentences that a resumed training sees: exactly those that were left."""

import functools
from pathlib import Path

import lightning as L
import pytest
import torch

from headlab.data.module import TranslationData
from headlab.training.checkpoints import AtomicCheckpointIO, Checkpoints
from headlab.training.module import TranslationModule
from headlab.transformer import Transformer


class Recorder(L.Callback):
    """Notes the ids of each batch; breaks the training off after one of them."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.stop_after = stop_after

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        self.seen.append(batch.indices)

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        if self.stop_after is not None and len(self.seen) == self.stop_after:
            raise RuntimeError("power cut")


def train(data: TranslationData, folder: Path, recorder: Recorder, resume: Path | None) -> None:
    tokenizers = data.prepare()
    data._position = data.train_batches = None
    torch.manual_seed(0)
    sizes = {"d_model": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    vocabulary = tokenizers.source.vocab_size
    model = Transformer(
        source_vocab_size=vocabulary, target_vocab_size=vocabulary, feed_forward=16, **sizes
    )
    module = TranslationModule(
        model,
        tokenizers,
        functools.partial(torch.optim.AdamW, lr=0.01),
        {"kind": "cosine", "warmup_steps": 2},
        0.1,
        {},
    )
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=[recorder, Checkpoints(str(folder), "val/loss", "min", every_n_steps=1)],
        plugins=[AtomicCheckpointIO()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)


@pytest.mark.parametrize("sampling", [0.0, 0.3])
def test_ids_follow_each_other(tiny_data: TranslationData, tmp_path: Path, sampling: float) -> None:
    tiny_data.subword_sampling = sampling
    whole = Recorder()
    train(tiny_data, tmp_path / "whole", whole, None)
    epoch = len(whole.seen) // 3
    assert epoch >= 3
    for i in range(3):
        ids = [n for batch in whole.seen[i * epoch : (i + 1) * epoch] for n in batch]
        assert sorted(ids) == list(range(12))
    final = torch.load(tmp_path / "whole" / "last.ckpt", weights_only=True)["state_dict"]
    for stop in (1, epoch - 1, epoch, epoch + 1, 2 * epoch, 3 * epoch - 1):
        first, second = Recorder(stop), Recorder()
        folder = tmp_path / f"stopped-{stop}"
        with pytest.raises(RuntimeError, match="power cut"):
            train(tiny_data, folder, first, None)
        train(tiny_data, folder, second, folder / "last.ckpt")
        assert first.seen + second.seen == whole.seen
        again = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
        for name, tensor in final.items():
            assert torch.equal(again[name], tensor)
