"""``headlab attend``: what every head looks at in one sentence, as a picture."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headlab.cli.outputs import check_out
from headlab.cli.shared import choose_device, prepare_cpu
from headlab.errors import HeadlabError
from headlab.head_names import SITES, compress

if TYPE_CHECKING:
    from headlab.checkpoint import Loaded
    from headlab.data.tokenizer import Tokenizer
    from headlab.plots import LayerMaps
    from headlab.transformer import Transformer

LONGEST = 200  # pieces; maps of longer sentences could not be read


def attend(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, e.g. outputs/latest/best.ckpt")],
    sentence: Annotated[str, typer.Argument(help="The sentence to translate.")],
    target: Annotated[
        str | None,
        typer.Option(help="Its translation, to look at in place of the model's own."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The picture: .png, .pdf or .svg.")] = Path(
        "attention.png"
    ),
    site: Annotated[
        str | None, typer.Option(help="Only one attention: encoder, decoder or cross.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Only one layer, counted from 0.", show_default=False)
    ] = None,
    per_layer: Annotated[
        bool,
        typer.Option(
            "--per-layer", help="A larger picture for each attention and layer, named after --out."
        ),
    ] = False,
    dpi: Annotated[
        int, typer.Option(min=20, max=600, help="Dots per inch; 8 million in all at most.")
    ] = 120,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads. Default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Translate a sentence and draw the attention of every head.

    One picture shows the encoder's self-attention, the decoder's masked self-attention and the
    cross-attention, with a row for each layer and a column for each head.
    """
    from headlab.checkpoint import read_checkpoint
    from headlab.data.text import is_blank
    from headlab.plots import (
        attention_figure,
        attention_overview,
        check_picture_name,
        missing_glyphs,
        save_figure,
    )

    if is_blank(sentence):
        raise HeadlabError("the sentence is blank; give words, such as 'The timer is finished.'")
    if target is not None and is_blank(target):
        raise HeadlabError("--target is blank; leave it out to see the model's own translation")
    if site is not None and site not in SITES:
        raise HeadlabError(f"--site {site}: choose {', '.join(SITES[:-1])} or {SITES[-1]}")
    check_picture_name(out)
    _check_out(out, checkpoint, replaced=not per_layer)
    prepare_cpu(threads)
    loaded = read_checkpoint(checkpoint, choose_device(device))
    _check_layer(loaded.model, site, layer)
    _check_heads(loaded.model, site, layer)

    translation, maps = _attention(loaded, sentence, target)
    typer.echo(translation)
    chosen = [one for one in maps if site in (None, one.site) and layer in (None, one.layer)]
    title = f"{sentence} → {translation}"
    if per_layer:
        places = [out.with_name(f"{out.stem}_{a.site}_{a.layer}{out.suffix}") for a in chosen]
        for path in places:
            _check_out(path, checkpoint)
        for one, path in zip(chosen, places, strict=True):
            pieces = one.query_pieces, one.key_pieces
            figure = attention_figure(one.weights, *pieces, one.title, heads=one.heads, dpi=dpi)
            typer.echo(str(save_figure(figure, path)))
    elif len(chosen) == 1:
        one = chosen[0]
        pieces = one.query_pieces, one.key_pieces
        name = f"{one.title}: {title}"
        figure = attention_figure(one.weights, *pieces, name, heads=one.heads, dpi=dpi)
        typer.echo(str(save_figure(figure, out)))
    else:
        typer.echo(str(save_figure(attention_overview(chosen, title, dpi=dpi), out)))

    drawn = [piece for one in chosen for piece in (*one.query_pieces, *one.key_pieces)]
    if boxes := missing_glyphs(drawn):
        shown = boxes if len(boxes) <= 10 else f"{boxes[:10]}…"
        typer.echo(
            f"boxes stand for {shown}: install a font for them, e.g. Noto Sans CJK", err=True
        )
    command = ["headlab", "evaluate", str(checkpoint)]
    if len(chosen) > 1 and not per_layer:
        last = f"{chosen[-1].layer}"
        command[1:] = ["attend", str(checkpoint), sentence, "--site", chosen[-1].site]
        command += ["--layer", last, "--out", f"{chosen[-1].site}_{last}{out.suffix}"]
    typer.echo(f"next: {shlex.join(command)}")


def _check_out(path: Path, checkpoint: Path, replaced: bool = True) -> None:
    """Refuse a place for a picture; ``replaced``: whether a file there would be."""
    check_out(
        *(path, "attention.png", checkpoint),
        ours=lambda path: not replaced or b"atplotlib" in path.read_bytes(),  # which signs them
        what="a picture of this kind",
    )


def _check_layer(model: "Transformer", site: str | None, layer: int | None) -> None:
    if layer is None:
        return
    counts = {"encoder": model.encoder_layers} | dict.fromkeys(SITES[1:], model.decoder_layers)
    most = counts[site] if site else max(counts.values())
    if not 0 <= layer < most:
        where = f"the {site} attention" if site else "this model"
        raise HeadlabError(f"--layer {layer}: {where} has layers 0 to {most - 1}")


def _check_heads(model: "Transformer", site: str | None, layer: int | None) -> None:
    """Refuse to draw what has been pruned away."""
    heads = model.head_names
    if not any(site in (None, one.site) and layer in (None, one.layer) for one in heads):
        there = ", ".join(compress(heads)) or "none"
        raise HeadlabError(f"no head to draw there; the heads of this checkpoint are {there}")


def _attention(
    loaded: "Loaded", sentence: str, target: str | None
) -> tuple[str, list["LayerMaps"]]:
    """The translation, and the maps of all sites and layers for it.

    Raises HeadlabError where the sentence or the given translation is too long, or not Unicode.
    """
    import torch

    from headlab.data.tokenizer import BOS, EOS
    from headlab.decoding import Translator, one_line
    from headlab.plots import layer_maps

    model, tokenizers = loaded.model, loaded.tokenizers
    source_ids = [*_encoded(tokenizers.source, sentence, "the sentence", model.max_length), EOS]
    if target is not None:
        target_ids = _encoded(tokenizers.target, target, "--target", model.max_length)
        translation = one_line(target)
    else:
        translator = Translator.from_loaded(loaded, beam=1)
        found = translator.hypotheses([sentence])
        translation = one_line(translator.texts(found)[0])
        target_ids = found[0].ids
        if not found[0].finished:
            typer.echo("the translation was cut at the model's length limit", err=True)
    # What the decoder reads; a translation that was cut may fill every position by itself.
    read = [BOS, *target_ids][: model.max_length]
    with torch.inference_mode():
        device = next(model.parameters()).device
        rows = torch.tensor([source_ids], device=device), torch.tensor([read], device=device)
        weights = model.attention_weights(*rows)
    pieces = tokenizers.source.pieces(source_ids), tokenizers.target.pieces(read)
    return translation, layer_maps(weights, 0, *pieces, model.kept)


def _encoded(tokenizer: "Tokenizer", text: str, name: str, max_length: int | None) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise HeadlabError(f"{name} is not UTF-8") from error
    ids = tokenizer.encode(text)
    most = min(LONGEST, max_length or LONGEST) - 1
    if len(ids) > most:
        raise HeadlabError(f"{name} has {len(ids)} pieces; {most} can be drawn: shorten it")
    return ids
