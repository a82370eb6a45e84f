"""``headlab convert``: a trained checkpoint with another kind of attention."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from headlab.cli.outputs import check_checkpoint_out
from headlab.errors import HeadlabError

TARGETS = ("gqa", "mqa", "mla")


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, e.g. outputs/latest/best.ckpt")],
    to: Annotated[str, typer.Option(help="gqa, mqa (mean-pooled keys and values) or mla (exact)")],
    out: Annotated[Path, typer.Option(help="The checkpoint to write.")],
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="gqa: how many key/value heads to leave.")
    ] = None,
) -> None:
    """Rewrite a checkpoint's attention as grouped-query, multi-query or latent attention.

    gqa and mqa average the key and value heads of each group (Ainslie et al. 2023), which costs
    quality until the model has trained on for a twentieth to a tenth of its steps. mla computes
    exactly the same as before (Meng et al. 2025).
    """
    from headlab.checkpoint import read_checkpoint, save_checkpoint
    from headlab.conversion import to_grouped, to_latent

    if to not in TARGETS:
        raise HeadlabError(f"--to {to}: choose {', '.join(TARGETS[:-1])} or {TARGETS[-1]}")
    if (to == "gqa") != (kv_heads is not None):
        needs = "needs --kv-heads, such as 2" if to == "gqa" else "takes no --kv-heads"
        raise HeadlabError(f"--to {to} {needs}")
    check_checkpoint_out(out, f"{to}.ckpt", checkpoint)
    loaded = read_checkpoint(checkpoint)
    model = loaded.model
    converted = to_latent(model) if to == "mla" else to_grouped(model, kv_heads or 1)
    save_checkpoint(out, loaded, converted)
    before, after = (sum(p.numel() for p in one.parameters()) for one in (model, converted))
    typer.echo(f"{out}: {to}, {after:,} parameters ({before:,} before)")
    typer.echo(f"next: headlab compare {shlex.quote(str(checkpoint))} {shlex.quote(str(out))}")
    if to != "mla":
        start = shlex.quote(f"init_from={out}")
        typer.echo(f"      python train.py experiment=finetune {start} trainer.max_epochs=1")
