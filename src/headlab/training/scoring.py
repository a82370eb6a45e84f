"""BLEU and chrF of the whole validation split, at every validation."""

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from headlab.decoding import Translator
from headlab.evaluation import bleu_tokenizer, corpus_scores
from headlab.training.module import TranslationModule


class ValidationScores(Callback):
    """Translates the validation split and reports ``val/bleu`` and ``val/chrf``.

    It stands before the weight averaging in the list of callbacks, which puts the averaged
    weights aside at the end of a validation epoch: the scores are those of the averaged weights.

    Args:
        sentences: how many validation sentences to translate; None: all.
        lowercase: score without regard to case.
        decoding: keyword arguments of ``Translator``.
    """

    def __init__(self, sentences: int | None, lowercase: bool, decoding: dict[str, object]) -> None:
        self.sentences, self.lowercase, self.decoding = sentences, lowercase, decoding

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Translate this process's share of the sentences, score all of them."""
        if trainer.sanity_checking:
            return
        assert isinstance(pl_module, TranslationModule)
        pairs = trainer.datamodule.validation_examples(self.sentences)  # type: ignore[attr-defined]
        sources = [source for source, _ in pairs]
        rank, world = trainer.global_rank, trainer.world_size
        translator = Translator(pl_module.model, pl_module.tokenizers, **self.decoding)  # type: ignore[arg-type]
        gates = pl_module.evaluation_gates()
        mine = translator.texts(translator.hypotheses(sources[rank::world], gates=gates))
        translations = mine
        if world > 1:
            shares: list[list[str]] = [[] for _ in range(world)]
            torch.distributed.all_gather_object(shares, mine)
            translations = [shares[i % world][i // world] for i in range(len(sources))]
        pl_module.validation_translations = translations
        language = trainer.datamodule.corpus.target  # type: ignore[attr-defined]
        scores = corpus_scores(
            translations, [r for _, r in pairs], self.lowercase, bleu_tokenizer(language)
        )
        pl_module.report({"val/bleu": scores.bleu, "val/chrf": scores.chrf})
