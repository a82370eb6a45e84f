"""Subword tokenizers (SentencePiece), trained on the training split and kept in the checkpoint."""

import functools
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sentencepiece
import torch

from headlab.data.sampling import sample_bpe, sample_unigram
from headlab.errors import HeadlabError

PAD, UNK, BOS, EOS = 0, 1, 2, 3
CONTROL = (PAD, UNK, BOS, EOS)

SPACE_MARK = "\u2581"  # what SentencePiece writes for a space
MAX_LINE_BYTES = 4000  # its trainer drops longer lines; we cut them up instead


class Tokenizer:
    """Text to subword ids and back, without changing the text.

    ``decode(encode(text)) == text`` for every string of Unicode scalar values, unless
    ``lowercase`` is set. Characters never seen in training become their UTF-8 bytes. Text that
    looks like a control symbol (``</s>``, ``<pad>``) is text: ``encode`` never returns a control
    id. A sentence is encoded as if a space stood before it, so that a word has the same pieces at
    the start as in the middle; ``decode`` takes that space away.

    Args:
        model: a serialized SentencePiece model.
        lowercase: lower-case every text before encoding it.
    """

    def __init__(self, model: bytes, lowercase: bool = False) -> None:
        self.model = model
        self.lowercase = lowercase
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._bytes = {b: self._processor.piece_to_id(f"<0x{b:02X}>") for b in range(256)}
        self._space_mark = [self._bytes[b] for b in SPACE_MARK.encode()]

    @functools.cached_property
    def kind(self) -> str:
        """ "unigram" or "bpe", as the model was trained."""
        from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
        proto.ParseFromString(self.model)
        return "bpe" if proto.trainer_spec.model_type == 2 else "unigram"

    @property
    def vocab_size(self) -> int:
        """Number of ids, control ids included."""
        return self._processor.vocab_size()

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces of ``text``, without BOS and EOS."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` for many texts in one call."""
        prepared = [self._prepare(text) for text in texts]
        encoded = self._processor.encode(prepared)
        for i, text in enumerate(prepared):
            if SPACE_MARK in text:  # would come back as a space; spell its bytes instead
                parts = self._processor.encode(text.split(SPACE_MARK))
                encoded[i] = parts[0]
                for part in parts[1:]:
                    encoded[i] = encoded[i] + self._space_mark + part
        return encoded

    def sample_all(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Draw a random segmentation of each text.

        Args:
            texts: the sentences.
            alpha: smoothing of the distribution over segmentations (unigram), or the probability
                of passing over a merge (BPE); see ``headlab.data.sampling``.
            seed: the same seed gives the same segmentations, in any process.
        """
        generator = np.random.default_rng(seed)
        merges = self._merges if self.kind == "bpe" else {}
        drawn = []
        for text in texts:
            ids: list[int] = []
            for i, part in enumerate(self._prepare(text).split(SPACE_MARK)):
                ids += self._space_mark if i else []
                if self.kind == "bpe":
                    written = part.replace(" ", SPACE_MARK)
                    ids += sample_bpe(merges, self._bytes, written, alpha, generator)
                elif part:
                    ids += sample_unigram(self._processor, part, alpha, generator)
            drawn.append(ids)
        return drawn

    @functools.cached_property
    def _merges(self) -> dict[str, tuple[float, int]]:
        processor = self._processor
        ordinary = [
            i
            for i in range(self.vocab_size)
            if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))
        ]
        return {processor.id_to_piece(i): (processor.get_score(i), i) for i in ordinary}

    def _prepare(self, text: str) -> str:
        return " " + (text.lower() if self.lowercase else text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; control ids are skipped."""
        return self.decode_all([ids])[0]

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """``decode`` for many rows in one call."""
        texts = self._processor.decode([[i for i in row if i not in CONTROL] for row in rows])
        return [text.removeprefix(" ") for text in texts]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id as SentencePiece writes it (a space is drawn as ``\u2581``)."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def surfaces(self, ids: Iterable[int]) -> list[bytes]:
        """The UTF-8 bytes that each piece stands for; a piece may hold a part of a character.

        Joined, those of ``encode(text)`` are a space and the text (lower-cased where the
        tokenizer does that). Control symbols stand for nothing.
        """
        found = []
        for i in map(int, ids):
            if i in CONTROL:
                found.append(b"")
            elif i in self._byte_of:
                found.append(bytes([self._byte_of[i]]))
            else:
                found.append(self._processor.id_to_piece(i).replace(SPACE_MARK, " ").encode())
        return found

    @functools.cached_property
    def _byte_of(self) -> dict[int, int]:
        return {piece: byte for byte, piece in self._bytes.items()}

    def state(self) -> dict[str, Any]:
        """Plain tensors and types, for a checkpoint."""
        model = torch.frombuffer(bytearray(self.model), dtype=torch.uint8)
        return {"model": model, "lowercase": self.lowercase}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer that ``state`` was taken from."""
        return cls(state["model"].numpy().tobytes(), state["lowercase"])


@dataclass(frozen=True)
class Tokenizers:
    """The source and the target language's tokenizer: one object when the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both sides share one vocabulary."""
        return self.source is self.target

    def encode_pairs(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> list[tuple[list[int], list[int]]]:
        """Source and target pieces of each pair, without BOS and EOS."""
        rows = self.source.encode_all(sources), self.target.encode_all(targets)
        return list(zip(*rows, strict=True))

    def state(self) -> dict[str, Any]:
        """Plain tensors and types, for a checkpoint."""
        return {
            "source": self.source.state(),
            "target": None if self.joint else self.target.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Tokenizers":
        """The tokenizers that ``state`` was taken from."""
        source = Tokenizer.from_state(state["source"])
        target = state["target"]
        return cls(source, source if target is None else Tokenizer.from_state(target))


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    kind: str,
    character_coverage: float,
    lowercase: bool,
) -> Tokenizer:
    """Train a SentencePiece model with byte fallback and identity normalisation.

    Args:
        texts: sentences of the training split.
        vocab_size: number of ids asked for, the 4 control ids and 256 bytes included; fewer
            when the texts do not support as many.
        kind: "unigram" (Kudo 2018) or "bpe" (Sennrich et al. 2016).
        character_coverage: share of the characters seen that get a piece of their own; the
            rarest are spelled in bytes.
        lowercase: lower-case every text, in training and later.

    Raises:
        HeadlabError: no text, an unknown kind, or a vocabulary too small for the characters.
    """
    if kind not in ("unigram", "bpe"):
        raise HeadlabError(f"tokenizer.kind={kind}: choose unigram or bpe")
    if not 0.0 < character_coverage <= 1.0:
        raise HeadlabError(f"tokenizer.character_coverage={character_coverage} must be in (0, 1]")
    writer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_training_lines(texts, lowercase),
            model_writer=writer,
            model_type=kind,
            vocab_size=vocab_size,
            hard_vocab_limit=False,  # lowers the size where the corpus cannot support it
            character_coverage=character_coverage,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,  # Tokenizer adds the leading space itself
            remove_extra_whitespaces=False,
            max_sentence_length=MAX_LINE_BYTES + 8,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            num_threads=1,  # the result must not depend on the number of cores
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
        if needed or vocab_size < 256 + len(CONTROL) + 1:
            least = needed.group(1) if needed else str(256 + len(CONTROL) + 1)
            raise HeadlabError(
                f"tokenizer.vocab_size={vocab_size} is too small: 4 control ids, 256 bytes and "
                f"this corpus's characters need at least {least}"
            ) from error
        reason = str(error).split("] ")[-1].strip() or "no usable text"
        raise HeadlabError(
            f"the tokenizer could not be trained on this corpus: {reason}"
        ) from error
    return Tokenizer(writer.getvalue(), lowercase)


def _training_lines(texts: Iterable[str], lowercase: bool) -> Iterator[str]:
    """Lines as ``Tokenizer`` will encode them, the long ones cut up."""
    for text in texts:
        text = " " + (text.lower() if lowercase else text)
        if len(text) * 4 <= MAX_LINE_BYTES:
            yield text
            continue
        for start in range(0, len(text), MAX_LINE_BYTES // 4):
            yield text[start : start + MAX_LINE_BYTES // 4]
