"""Translating the same sentences: ours, transformers' Marian, CTranslate2.

Each is timed from texts to texts, with our tokenizers, so that what differs is the model's work.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from headlab.benchmark.channel import Channel, commands, now
from headlab.benchmark.ctranslate import BEGIN, END, PADDING, UNKNOWN
from headlab.benchmark.material import Material
from headlab.benchmark.networks import marian_model
from headlab.benchmark.profiling import Profile
from headlab.checkpoint import read_checkpoint
from headlab.data.tokenizer import EOS, PAD, Tokenizers
from headlab.decoding import Translator
from headlab.decoding.hypothesis import pad_sources

if TYPE_CHECKING:
    from transformers import MarianMTModel


class Translations(NamedTuple):
    """Of a list of sentences, in their order: texts, pieces without EOS, and whether EOS came."""

    texts: list[str]
    ids: list[list[int]]
    finished: list[bool]

    @property
    def tokens(self) -> int:
        """Target tokens, EOS counted."""
        return sum(map(len, self.ids)) + sum(self.finished)


# Sentences (longest first), how many a batch (0: the contestant's own way), greedy or with a beam.
Decode = Callable[[Sequence[str], int, int], Translations]


def serve(channel: Channel, sentences: Sequence[str], decode: Decode, device: torch.device) -> None:
    """A contestant whose turn is to translate all sentences, or every so-manyth.

    Commands are ``{"every": n, "batch": rows, "beam": width}``; with ``"ids": true`` the answer
    has the pieces, with ``"profile": true`` the operators that took the most time.
    """
    channel.send({})
    for command in commands(channel):
        chosen = sentences[:: command["every"]]
        profile = Profile(device) if command.get("profile") else None
        start = now(device)
        found = decode(chosen, command["batch"], command["beam"])
        answer: dict[str, Any] = {"seconds": now(device) - start, "tokens": found.tokens}
        if profile is not None:
            answer["profile"] = profile.stop()
        if command.get("ids"):
            answer |= {"ids": found.ids, "finished": found.finished}
        channel.send(answer)


def ours(checkpoint: Path, device: torch.device) -> Decode:
    """``Translator`` as ``headlab translate`` uses it, or with so many sentences a batch.

    As in ``headlab translate``, the threads translate a batch each.
    """
    loaded = read_checkpoint(checkpoint, device)

    def decode(sentences: Sequence[str], batch: int, beam: int) -> Translations:
        # A batch of so many sentences has no limit of tokens.
        limits = {"batch_tokens": 2**31, "batch_rows": batch} if batch else {}
        translator = Translator.from_loaded(loaded, beam=beam, **limits)
        found = translator.hypotheses(sentences)
        ids, finished = [one.ids for one in found], [one.finished for one in found]
        return Translations(translator.texts(found), ids, finished)

    return decode


def marian(
    material: Material, lengths: Sequence[int], device: torch.device, every: int = 1
) -> Decode:
    """``MarianMTModel.generate``, with a cache of keys and values.

    Its weights are random, and so would be the length of what it writes: it is made to write as
    many tokens for each sentence as our translation has (``ForcedLengths``), EOS counted.

    Args:
        material: sizes, tokenizers and sentences.
        lengths: tokens of our translation of each sentence of the material, or every so-manyth.
        device: where.
        every: which of them: 1 is all.
    """
    torch.manual_seed(material.config["seed"])
    model: Any = marian_model(material.hparams)
    model.to(device).eval()
    tokenizers = material.read_tokenizers()
    wanted = dict(zip(material.sentences[::every], lengths, strict=True))

    def decode(sentences: Sequence[str], batch: int, beam: int) -> Translations:
        texts, ids = [], []
        for rows in in_batches(sentences, batch):
            sources = pad_sources(tokenizers.source.encode_all(rows), device)
            found = generate(model, sources, [wanted[row] for row in rows], beam)
            texts += tokenizers.target.decode_all(found)
            ids += found
        return Translations(texts, ids, [True] * len(ids))

    return decode


@torch.inference_mode()
def generate(
    model: "MarianMTModel", sources: Tensor, lengths: Sequence[int], beam: int = 1
) -> list[list[int]]:
    """Translations of the given lengths, EOS counted but not returned.

    Args:
        model: transformers' Marian.
        sources: (batch, source length), padded.
        lengths: one a row.
        beam: hypotheses a row; 1 is greedy. A beam stops when as many are finished.
    """
    due = [length for length in lengths for _ in range(beam)]
    found = model.generate(
        input_ids=sources,
        attention_mask=(sources != PAD).long(),
        logits_processor=[ForcedLengths(due, sources.device)],
        max_new_tokens=max(lengths),
        num_beams=beam,
        early_stopping=beam > 1,
        do_sample=False,
        use_cache=True,
    )
    rows: list[list[int]] = found[:, 1:].tolist()  # without the start symbol
    return [row[: row.index(EOS)] for row in rows]


class ForcedLengths:
    """A logits processor: EOS as the so-manyth token of each row, and not before.

    Args:
        lengths: for each row the number of its tokens, EOS counted.
        device: of the scores.
    """

    # Above and below all other scores, and finite: beam search adds scores up.
    CERTAIN = 1e9

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.lengths = torch.tensor(lengths, device=device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ids so far, (rows, 1 + tokens), and scores of the next one, (rows, vocabulary)."""
        due = self.lengths == input_ids.size(1)
        scores[:, EOS] = torch.where(due, self.CERTAIN, -self.CERTAIN)
        return scores


def ctranslate(
    folder: Path,
    tokenizers: Tokenizers,
    longest: int,
    threads: int,
    device: torch.device,
    at_once: int = 1,
) -> Decode:
    """CTranslate2 in float32.

    Args:
        folder: of the converted model, see ``headlab.benchmark.ctranslate``.
        tokenizers: ours.
        longest: tokens of a translation at most, EOS counted. It has no limit by sentence, as we
            have: it is given the length of our longest translation.
        threads: in all.
        device: where.
        at_once: batches that are worked on at a time; the threads are shared out among them.
    """
    from ctranslate2 import Translator as CTranslator

    translator = CTranslator(
        str(folder),
        device=device.type,
        compute_type="float32",
        inter_threads=at_once,
        intra_threads=max(1, threads // at_once),
    )

    never_emitted = [[PADDING], [UNKNOWN], [BEGIN]]  # as in ours

    def decode(sentences: Sequence[str], batch: int, beam: int) -> Translations:
        rows = [list(map(str, row)) for row in tokenizers.source.encode_all(sentences)]
        found = translator.translate_batch(
            rows,
            beam_size=beam,
            max_batch_size=batch,
            batch_type="examples",
            max_input_length=0,
            max_decoding_length=longest,
            suppress_sequences=never_emitted,
            return_end_token=True,
        )
        written = [result.hypotheses[0] for result in found]
        finished = [row[-1:] == [END] for row in written]
        ids = [
            [int(one) for one in (row[:-1] if end else row)]
            for row, end in zip(written, finished, strict=True)
        ]
        return Translations(tokenizers.target.decode_all(ids), ids, finished)

    return decode


def in_batches(sentences: Sequence[str], batch: int) -> Iterator[list[str]]:
    """So many sentences at a time; 0: all of them."""
    size = batch or max(1, len(sentences))
    for start in range(0, len(sentences), size):
        yield list(sentences[start : start + size])
