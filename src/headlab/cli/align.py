"""``headlab align``: word alignments from the cross-attention, a line a sentence pair."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from headlab.cli import streams
from headlab.cli.outputs import check_out
from headlab.cli.shared import choose_device, prepare_cpu
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.checkpoint import Loaded
    from headlab.head_names import Head
    from headlab.heads.alignment import Links

EXIT_BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended
READ_BYTES = 64 * 1024  # at most so much is read before it is aligned
BATCH_TOKENS = 4096

_LINKS = re.compile(rb"(\d+-\d+( \d+-\d+)*)?")  # a line of output

Pair = tuple[str, str]


def align(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, e.g. outputs/latest/best.ckpt")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Sentence pairs, source and target with a tab between them; none: one a line "
            "from standard input. Put -- before a pair that begins with a dash.",
            show_default=False,
        ),
    ] = None,
    heads: Annotated[
        list[str] | None,
        typer.Option(
            help="Heads whose weights are averaged, such as cross.2.* or cross.0.0. "
            "Default: all of the cross-attention."
        ),
    ] = None,
    shift: Annotated[
        bool,
        typer.Option(
            help="Take the weights of the step that reads a target word, after the one that "
            "predicts it."
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="A file in place of standard output, written whole.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads. Default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Align the words of sentence pairs: each target word with the source word it looks at most.

    Writes pairs i-j of source and target word for each line, counted from 0 and split at white
    space; a blank line for a blank one.
    """
    from headlab.checkpoint import read_checkpoint
    from headlab.files import replace_file

    if output is not None:
        check_out(
            *(output, "alignments.txt", checkpoint),
            ours=_is_ours,
            what="a file of alignments",
            option="--output",
        )
    prepare_cpu(threads)
    loaded = read_checkpoint(checkpoint, choose_device(device))
    aligner = _Aligner(loaded, _chosen(loaded, heads), int(shift))
    if pairs:
        given = [os.fsencode(pair) for pair in pairs]
        parts: Iterator[list[bytes]] = iter([given])
        unit = "pair"
    else:
        if sys.stdin.isatty():
            typer.echo("Type source, tab, target; end with Ctrl-D.", err=True)
        parts, unit = _arriving_lines(sys.stdin.buffer), "line"

    texts = (text for part in parts for text in aligner.aligned(part, unit))
    if output is not None:
        whole = b"".join(texts)
        replace_file(output, lambda file: file.write(whole))
        return
    try:
        for text in texts:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        streams.abandon_output()  # the reader has seen enough (``| head``)
        raise typer.Exit(EXIT_BROKEN_PIPE) from None
    except OSError as error:
        streams.abandon_output()
        raise HeadlabError(f"standard output: cannot be written ({error.strerror})") from None


def _is_ours(path: Path) -> bool:
    return all(_LINKS.fullmatch(line) for line in path.read_bytes().split(b"\n"))


def _chosen(loaded: "Loaded", patterns: Sequence[str] | None) -> "list[Head]":
    from headlab.head_names import parse_heads

    existing = [head for head in loaded.model.head_names if head.site == "cross"]
    if not existing:
        raise HeadlabError("the cross-attention of this checkpoint has no head left to align with")
    return existing if not patterns else parse_heads(patterns, existing, "--heads")


def _arriving_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a stream, as many at once as have come: a slow writer gets line by line."""
    rest = b""
    while data := stream.read1(READ_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


class _Aligner:
    """From lines to alignments; counts the lines for its errors."""

    def __init__(self, loaded: "Loaded", heads: "Sequence[Head]", shift: int) -> None:
        self.loaded, self.shift = loaded, shift
        kept = loaded.model.kept["cross"]
        self.places = [(head.layer, kept[head.layer].index(head.head)) for head in heads]
        self.number = 0

    def aligned(self, lines: Sequence[bytes], unit: str) -> Iterator[bytes]:
        """The lines of alignments for these lines, at once; before an error what precedes it.

        Raises:
            HeadlabError: a line is not UTF-8, has no tab or several, or is too long.
        """
        first = self.number == 0
        pairs: list[Pair | None] = []
        fault: HeadlabError | None = None
        for line in lines:
            self.number += 1
            try:
                pairs.append(self._pair(line, f"{unit} {self.number}", first and not pairs))
            except HeadlabError as error:
                fault = error
                break
        found = self._links([pair for pair in pairs if pair is not None])
        texts = []
        for pair in pairs:
            links = next(found) if pair is not None else []
            texts.append(" ".join(f"{source}-{target}" for source, target in links) + "\n")
        yield "".join(texts).encode()
        if fault is not None:
            raise fault

    def _pair(self, line: bytes, where: str, first: bool) -> Pair | None:
        from headlab.data.text import BYTE_ORDER_MARK, is_blank

        line = line.removesuffix(b"\r")
        try:
            text = (line.removeprefix(BYTE_ORDER_MARK) if first else line).decode()
        except UnicodeDecodeError:
            raise HeadlabError(f"{where} is not UTF-8") from None
        if is_blank(text):
            return None
        source, *targets = text.split("\t")
        if len(targets) != 1:
            raise HeadlabError(f"{where} has {len(targets)} tabs; write source, one tab, target")
        if is_blank(source) or is_blank(targets[0]):
            return None
        most = self.loaded.model.max_length
        tokenizers = self.loaded.tokenizers
        for name, tokenizer, side in (
            ("source", tokenizers.source, source),
            ("target", tokenizers.target, targets[0]),
        ):
            pieces = len(tokenizer.encode(side))
            if most is not None and pieces + 1 > most:
                raise HeadlabError(
                    f"{where}: the {name} has {pieces} pieces, this model takes {most - 1}; cut it"
                )
        return source, targets[0]

    def _links(self, pairs: Sequence[Pair]) -> "Iterator[Links]":
        """The links of each pair, by target word."""
        import torch

        from headlab.heads.alignment import best_sources
        from headlab.heads.weights import attention_batches
        from headlab.heads.words import white_words, words_of_pieces

        tokenizers = self.loaded.tokenizers
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        ids = tokenizers.encode_pairs(sources, targets)
        words = [
            words_of_pieces(tokenizer, texts, rows, [white_words(text) for text in texts])
            for tokenizer, texts, rows in (
                (tokenizers.source, sources, [one for one, _ in ids]),
                (tokenizers.target, targets, [other for _, other in ids]),
            )
        ]
        found: list[Links] = [[] for _ in pairs]
        for batch, weights in attention_batches(self.loaded.model, ids, BATCH_TOKENS):
            layers, rows = weights["cross"], batch.rows
            mean = torch.stack([layers[layer][:, at] for layer, at in self.places]).mean(dim=0)
            keys = words[0].membership(rows, mean.size(2), 0, like=mean)
            queries = words[1].membership(rows, mean.size(1), self.shift, like=mean)
            looked = best_sources(mean.unsqueeze(1), queries, keys)[:, 0].tolist()
            there = queries.any(dim=-1).tolist()
            for row, sources_of, exists in zip(rows, looked, there, strict=True):
                found[row] = [(s, t) for t, s in enumerate(sources_of) if exists[t] and s >= 0]
        return iter(found)
