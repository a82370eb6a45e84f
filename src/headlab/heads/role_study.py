"""The stages of the study of roles: each measured once, and kept when the study is interrupted."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from headlab.checkpoint import Loaded
from headlab.data.text import is_blank
from headlab.evaluation import bleu_tokenizer
from headlab.head_names import SITES, Head
from headlab.heads.alignment import Agreement, Aligner, Links, agreements
from headlab.heads.parsing import Parse
from headlab.heads.redundancy import HeadDistances
from headlab.heads.role_names import RoleSettings
from headlab.heads.roles import Numbers, Vocabulary, measure_heads, piece_counts, punctuation
from headlab.heads.study import Study
from headlab.heads.syntax import Accuracy, Relation, SyntaxCounts
from headlab.heads.weights import attention_batches
from headlab.heads.words import Span, plain_words, white_words, words_of_pieces

# Shows progress: called with a title and a total, it yields what is called with what is done.
Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


class Material(NamedTuple):
    """The sentence pairs of a study: those that the model can read."""

    sources: list[str]
    targets: list[str]
    pairs: list[tuple[list[int], list[int]]]  # their pieces
    kept: list[int]  # which of the given sentences they are

    @classmethod
    def choose(cls, loaded: Loaded, sources: Sequence[str], targets: Sequence[str]) -> "Material":
        """Leave out pairs with a blank side, and those that are too long for the model."""
        most = loaded.model.max_length
        pairs = loaded.tokenizers.encode_pairs(sources, targets)
        kept = [
            i
            for i, (pair, *texts) in enumerate(zip(pairs, sources, targets, strict=True))
            if (most is None or max(map(len, pair)) < most) and not any(map(is_blank, texts))
        ]
        return cls(
            [sources[i] for i in kept],
            [targets[i] for i in kept],
            [pairs[i] for i in kept],
            kept,
        )


class RoleStudy:
    """Measures heads on some sentences, a stage at a time.

    A stage that an earlier run with the same settings finished is not measured again.

    Args:
        study: keeps what was measured.
        loaded: the checkpoint.
        material: the sentences.
        settings: from configs/roles.yaml.
        bar: shows progress.
    """

    def __init__(
        self, study: Study, loaded: Loaded, material: Material, settings: RoleSettings, bar: Bar
    ) -> None:
        self.study, self.loaded, self.material = study, loaded, material
        self.settings, self.bar = settings, bar

    def numbers(self, training: Sequence[str] | None) -> dict[Head, Numbers]:
        """What the weights of each head show, from one pass over the sentences.

        Args:
            training: sources of the training split, for frequencies; None: not to be had, and
                rare words are left out.
        """
        done = self.study.done("numbers", dict[str, Numbers])
        if done is None:
            tokenizers = self.loaded.tokenizers
            counts, unusual = None, None
            if training is not None:
                rows = tokenizers.source.encode_all(training)
                size = tokenizers.source.vocab_size
                counts, unusual = piece_counts(rows, size, self.settings.frequent)
            vocabulary = Vocabulary(
                punctuation(tokenizers.source), punctuation(tokenizers.target), counts, unusual
            )
            with self.bar("attention weights", len(self.material.pairs)) as progress:
                found = measure_heads(
                    self.loaded.model,
                    self.material.pairs,
                    vocabulary,
                    self.settings.batch_tokens,
                    progress,
                )
            done = {str(head): one for head, one in found.items()}
            self.study.record("numbers", done)
        return {_head(name): one for name, one in done.items()}

    def agreements(
        self, gold: Sequence[Links] | None, training: tuple[Sequence[str], Sequence[str]] | None
    ) -> dict[Head, Agreement]:
        """How well each head of the cross-attention agrees with word alignments.

        Args:
            gold: alignments of the pairs by white-space words; None: those of a lexicon learnt
                from ``training``.
            training: the training split; None: not to be had.
        """
        done = self.study.done("agreements", dict[str, Agreement])
        if done is None:
            if gold is None and training is None:
                return {}
            material, tokenizers = self.material, self.loaded.tokenizers
            if gold is not None:
                links = list(gold)
                sources = [white_words(text) for text in material.sources]
                targets = [white_words(text) for text in material.targets]
            else:
                assert training is not None
                links, sources, targets = self._learnt(*training)
            source_ids, target_ids = zip(*material.pairs, strict=True)
            with self.bar("word alignments", len(material.pairs)) as progress:
                found = agreements(
                    self.loaded.model,
                    material.pairs,
                    words_of_pieces(tokenizers.source, material.sources, source_ids, sources),
                    words_of_pieces(tokenizers.target, material.targets, target_ids, targets),
                    links,
                    self.settings.batch_tokens,
                    progress,
                )
            done = {str(head): one for head, one in found.items()}
            self.study.record("agreements", done)
        return {_head(name): one for name, one in done.items()}

    def _learnt(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> tuple[list[Links], list[list[Span]], list[list[Span]]]:
        """Alignments of the study's sentences by a lexicon of the training split's."""
        data = self.loaded.config.get("data") or {}
        spaced = [bleu_tokenizer(str(data.get(k, ""))) == "13a" for k in ("source", "target")]

        def words(texts: Sequence[str], side: int) -> list[list[Span]]:
            return [plain_words(text, spaced[side]) for text in texts]

        def lower(texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> list[list[str]]:
            return [
                [text[start:end].lower() for start, end in some]
                for text, some in zip(texts, spans, strict=True)
            ]

        count = self.settings.lexicon_pairs
        learning = [list(texts[:count]) for texts in (sources, targets)]
        known = [lower(texts, words(texts, side)) for side, texts in enumerate(learning)]
        aligner = Aligner(list(zip(*known, strict=True)), self.settings.iterations)
        spans = words(self.material.sources, 0), words(self.material.targets, 1)
        pairs = zip(
            lower(self.material.sources, spans[0]),
            lower(self.material.targets, spans[1]),
            strict=True,
        )
        return [aligner.links(*pair) for pair in pairs], *spans

    def syntax(self, site: str, parse: Callable[[], Sequence[Parse]]) -> "Syntax":
        """Which relations each head of a self-attention follows.

        Args:
            site: "encoder", with parses of the sources, or "decoder", of the targets.
            parse: gives the parses of the study's sentences; called when they are needed.
        """
        key = f"syntax {site}"
        done = self.study.done(key, Followed)
        if done is None:
            parses = parse()
            model, material = self.loaded.model, self.material
            side = 0 if site == "encoder" else 1
            tokenizer = (self.loaded.tokenizers.source, self.loaded.tokenizers.target)[side]
            texts = (material.sources, material.targets)[side]
            ids = [pair[side] for pair in material.pairs]
            words = words_of_pieces(tokenizer, texts, ids, [parse.words for parse in parses])
            counts = SyntaxCounts(causal=site == "decoder", ignored=self.settings.ignored)
            with self.bar(f"syntax, {site}", len(ids)) as progress:
                batches = attention_batches(
                    model, material.pairs, self.settings.batch_tokens, progress
                )
                for batch, weights in batches:
                    counts.add(parses, words, batch.rows, weights[site])
            least = self.settings.instances
            relations = counts.relations(least)
            heads = {
                str(Head(site, layer, head)): [one.accuracy for one in found]
                for layer, kept in enumerate(model.kept[site])
                for head, found in zip(kept, counts.accuracies(layer, least), strict=False)
            }
            done = Followed(relations, heads)
            self.study.record(key, done)
        by_head = {
            _head(name): [Accuracy(*pair) for pair in zip(done.relations, values, strict=True)]
            for name, values in done.heads.items()
        }
        return Syntax(done.relations, by_head)

    def distances(self) -> dict[str, np.ndarray]:
        """Site -> distances between its heads, (heads, heads), in the order of their names."""
        done = self.study.done("distances", dict[str, list[list[float]]])
        if done is None:
            sums = {site: HeadDistances() for site in SITES}
            with self.bar("distances between heads", len(self.material.pairs)) as progress:
                batches = attention_batches(
                    self.loaded.model, self.material.pairs, self.settings.batch_tokens, progress
                )
                for batch, weights in batches:
                    real = batch.real()
                    for site, layers in weights.items():
                        sums[site].add(layers, real[site][0])
            done = {site: some.matrix().tolist() for site, some in sums.items()}
            self.study.record("distances", done)
        return {site: np.array(rows, dtype=float) for site, rows in done.items()}


class Followed(NamedTuple):
    """``Syntax`` as it is recorded."""

    relations: list[Relation]
    heads: dict[str, list[float]]  # head -> its accuracy on each relation


class Syntax(NamedTuple):
    """What was found at one self-attention."""

    relations: list[Relation]
    heads: dict[Head, list[Accuracy]]  # of every head, in the order of the relations


def _head(name: str) -> Head:
    site, layer, head = name.split(".")
    return Head(site, int(layer), int(head))
