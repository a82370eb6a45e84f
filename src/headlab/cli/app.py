"""The ``headlab`` command."""

import logging
import sys

import typer

from headlab.cli import streams
from headlab.cli.ablate import WithSettings, ablate
from headlab.cli.align import align
from headlab.cli.attend import attend
from headlab.cli.benchmark import benchmark
from headlab.cli.compare import compare
from headlab.cli.convert import convert
from headlab.cli.evaluate import evaluate
from headlab.cli.importance import importance
from headlab.cli.prune import prune
from headlab.cli.roles import roles
from headlab.cli.translate import translate
from headlab.errors import HeadlabError

app = typer.Typer(
    help="Train a small translation Transformer and look at every attention head.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def train(context: typer.Context) -> None:
    """Train a model; takes Hydra overrides, such as model.heads=16 (the same as train.py)."""
    from headlab.cli.train import main as train_main

    train_main(context.args)


app.command()(translate)
app.command()(evaluate)
app.command()(attend)
app.command(cls=WithSettings, context_settings={"ignore_unknown_options": True})(ablate)
app.command()(importance)
app.command()(prune)
app.command()(roles)
app.command()(align)
app.command()(convert)
app.command()(compare)
app.command()(benchmark)


def main() -> None:
    """Run the command line; a mistake of the user's ends in one line and status 1."""
    streams.prepare()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        app(standalone_mode=True)
    except HeadlabError as error:
        fail(error)
    except BrokenPipeError:
        streams.leave()
    except OSError as error:
        fail(HeadlabError(f"{error.filename or 'output'}: {error.strerror or error}"))


def fail(error: HeadlabError) -> None:
    """Print the error and exit with status 1."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)
