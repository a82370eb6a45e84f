"""From a corpus to batches: tokenizer, length limit, token budget."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L

from headlab.data.batches import Batch, EncodedPairs, EvaluationBatches, TrainingBatches, collate
from headlab.data.corpus import SPLITS, Corpus, SplitReport, format_report
from headlab.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from headlab.errors import HeadlabError
from headlab.files import replace_file

logger = logging.getLogger("headlab")

TOKENIZER_VERSION = 1  # raise it when the same texts and options give another tokenizer


class TranslationData(L.LightningDataModule):
    """Encoded splits of a corpus, in batches.

    Args:
        corpus: where the sentence pairs come from.
        tokenizer: keyword arguments of ``train_tokenizer``, and ``joint`` (one vocabulary for
            both languages, or one for each).
        max_tokens: budget of a training batch: rows times the longest side, padding included.
        max_length: longest sequence, in subwords, with its EOS (or BOS) counted; longer pairs are
            dropped and counted.
        subword_sampling: strength of subword regularisation; 0 for none.
        seed: decides the order of the batches.
        tokenizers: use these (when training goes on from a checkpoint), train none.

    Raises:
        HeadlabError: numbers out of range; in ``prepare``, nothing left to train on.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Mapping[str, Any],
        max_tokens: int,
        max_length: int,
        subword_sampling: float,
        seed: int,
        tokenizers: Tokenizers | None = None,
    ) -> None:
        super().__init__()
        for key, value, least in (("max_tokens", max_tokens, 1), ("max_length", max_length, 2)):
            if value < least:
                raise HeadlabError(f"batches.{key}={value} must be at least {least}")
        if not 0.0 <= subword_sampling < 1.0:
            raise HeadlabError(f"batches.subword_sampling={subword_sampling} must lie in [0, 1)")
        self.corpus, self.tokenizer = corpus, dict(tokenizer)
        self.max_tokens, self.max_length = max_tokens, max_length
        self.subword_sampling, self.seed = subword_sampling, seed
        self._tokenizers = tokenizers
        self.texts: dict[str, tuple[list[str], list[str]]] = {}  # split -> sources, references
        self.pairs: dict[str, EncodedPairs] = {}
        self._training_texts: tuple[list[str], list[str]] = ([], [])
        self.train_batches: TrainingBatches | None = None
        self._position: dict[str, int] | None = None

    def prepare(self) -> Tokenizers:
        """Load the corpus, train or take the tokenizers, encode, apply the length limit."""
        if self.pairs:
            return self.tokenizers
        splits = self.corpus.load()
        self.texts = {s: (list(splits[s]["source"]), list(splits[s]["target"])) for s in SPLITS}
        if self._tokenizers is None:
            self._tokenizers = self._train_tokenizers()
        for split in SPLITS:
            self.pairs[split] = self._encode(split)
        return self.tokenizers

    @property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers; ``prepare`` must have run."""
        assert self._tokenizers is not None, "call prepare() first"
        return self._tokenizers

    def setup(self, stage: str) -> None:
        """Lightning's hook: see ``prepare``."""
        self.prepare()

    def train_dataloader(self) -> TrainingBatches:
        """Shuffled batches of this process's share."""
        rank, ranks = self._rank()
        self.train_batches = TrainingBatches(
            self.pairs["train"],
            self.max_tokens,
            self.seed,
            rank,
            ranks,
            texts=self._training_texts,
            tokenizers=self.tokenizers,
            sampling=self.subword_sampling,
            max_length=self.max_length,
        )
        if self._position is not None:
            self.train_batches.load_state_dict(self._position)
            self._position = None
        return self.train_batches

    def state_dict(self) -> dict[str, int]:
        """Where the training batches stand, for a checkpoint."""
        return self.train_batches.state_dict() if self.train_batches is not None else {}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Let ``train_dataloader`` go on from there.

        Lightning would hand the state to the batches themselves, but not when their number is
        asked for before it restores the rest, as the learning-rate schedule does.
        """
        self._position = state_dict or None

    def val_dataloader(self) -> EvaluationBatches:
        """The validation split, this process's share."""
        return EvaluationBatches(self.pairs["validation"], self.max_tokens, *self._rank())

    def validation_examples(self, count: int | None = None) -> list[tuple[str, str]]:
        """The first sentence pairs of the validation split (all of them for None), as text."""
        sources, references = self.texts["validation"]
        return list(zip(sources[:count], references[:count], strict=True))

    def batch_from_texts(self, pairs: Sequence[tuple[str, str]]) -> Batch:
        """Encode and pad sentence pairs, cut to the length limit."""
        limit = self.max_length - 1
        sources = self.tokenizers.source.encode_all([source for source, _ in pairs])
        targets = self.tokenizers.target.encode_all([target for _, target in pairs])
        return collate([row[:limit] for row in sources], [row[:limit] for row in targets])

    def _rank(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _encode(self, split: str) -> EncodedPairs:
        sources, targets = self.texts[split]
        source_rows = self.tokenizers.source.encode_all(sources)
        target_rows = self.tokenizers.target.encode_all(targets)
        kept = [
            i
            for i, (source, target) in enumerate(zip(source_rows, target_rows, strict=True))
            if max(len(source), len(target)) + 1 <= self.max_length
        ]
        report = SplitReport(read=len(sources), kept=len(kept))
        report.drop(f"longer than batches.max_length={self.max_length}", len(sources) - len(kept))
        if report.dropped:
            logger.info("in subwords, %s", format_report(split, report))
        if not kept:
            raise HeadlabError(
                f"every {split} pair is longer than batches.max_length={self.max_length} subwords; "
                "raise it (and position.max_length, where position has one)"
            )
        if len(kept) < len(sources) / 2:
            logger.warning(
                "more than half of the %s pairs are longer than batches.max_length=%d subwords",
                split,
                self.max_length,
            )
        if split == "train" and self.subword_sampling:
            self._training_texts = [sources[i] for i in kept], [targets[i] for i in kept]
        return EncodedPairs([source_rows[i] for i in kept], [target_rows[i] for i in kept])

    def _train_tokenizers(self) -> Tokenizers:
        options = dict(self.tokenizer)
        joint = options.pop("joint")
        sources, targets = self.texts["train"]
        if joint:
            both = self._tokenizer(sources + targets, options)
            return Tokenizers(both, both)
        return Tokenizers(self._tokenizer(sources, options), self._tokenizer(targets, options))

    def _tokenizer(self, texts: list[str], options: dict[str, Any]) -> Tokenizer:
        """Train a tokenizer, or read the one that the same texts and options gave before."""
        digest = hashlib.sha256(repr((TOKENIZER_VERSION, sorted(options.items()))).encode())
        for text in texts:
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        path = Path(self.corpus.root) / "cache" / f"tokenizer-{digest.hexdigest()[:16]}.model"
        if path.is_file():
            tokenizer = Tokenizer(path.read_bytes(), options["lowercase"])
        else:
            tokenizer = train_tokenizer(texts, **options)
            replace_file(path, lambda file: file.write(tokenizer.model))
        if tokenizer.vocab_size < options["vocab_size"]:
            logger.warning(
                "tokenizer: this corpus supports %d pieces, fewer than tokenizer.vocab_size=%d",
                tokenizer.vocab_size,
                options["vocab_size"],
            )
        return tokenizer
