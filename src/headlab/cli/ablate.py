"""``headlab ablate``: switch heads off and see what breaks."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from headlab.cli.shared import choose_device, prepare_cpu, progress_bar
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.checkpoint import Loaded
    from headlab.cli.sentences import Sentences
    from headlab.heads.ablation import Row
    from headlab.heads.ablation_results import Results
    from headlab.heads.plans import Configuration
    from headlab.heads.study import Study


class WithSettings(TyperCommand):
    """A command whose help ends with the configuration that its settings change."""

    def get_help(self, context: Any) -> str:
        """The usual help, then the files as they are, with their comments."""
        from headlab.cli.configuration import folder

        files = [folder() / "ablate.yaml", *sorted((folder() / "ablation").glob("*.yaml"))]
        texts = [super().get_help(context).rstrip()]
        for path in files:
            name = "" if path == files[0] else f"\nablation={path.stem}, keys ablation.*:\n"
            texts.append(name + path.read_text("utf-8").rstrip())
        return "\n".join(texts)


def ablate(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, e.g. outputs/latest/best.ckpt")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Any key of configs/ablate.yaml, see below."),
    ] = None,
) -> None:
    """Switch heads off and measure what the model is worth without them.

    For each configuration of heads: BLEU, chrF and negative log-likelihood a token, the change
    from the full model, and whether it is more than chance. Results go into a folder beside the
    checkpoint; the same command goes on where an interrupted one stopped.

    A head is site.layer.head, counted from 0; the sites are encoder, decoder (its masked
    self-attention) and cross. Every part may be * or a range: cross.2.*, encoder.0.1-3.

    Examples: headlab ablate CKPT; headlab ablate CKPT ablation=all_but_one;
    headlab ablate CKPT ablation=list 'ablation.heads=\\[encoder.0.3,cross.2.*]'
    """
    if "=" in str(checkpoint) and not checkpoint.exists():
        raise HeadlabError(
            f"{checkpoint}: the checkpoint comes first, as in headlab ablate "
            f"outputs/latest/best.ckpt {checkpoint}"
        )
    try:
        _ablate(checkpoint, settings or [])
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None


def _ablate(checkpoint: Path, overrides: Sequence[str]) -> None:
    from headlab.checkpoint import read_checkpoint, read_raw
    from headlab.cli.ablation_report import print_results
    from headlab.cli.ablation_settings import read_settings
    from headlab.cli.sentences import choose_sentences
    from headlab.heads.ablation_results import write_results

    if not checkpoint.is_file():
        read_raw(checkpoint)  # says what is wrong with it
    settings = read_settings(overrides)
    plan = settings["ablation"]
    source, reference = settings["source"], settings["reference"]
    if source is not None and reference is None:
        path, file = shlex.quote(str(checkpoint)), shlex.quote(source)
        raise HeadlabError(
            f"source={source} has no reference: BLEU, chrF and likelihood need one, reference=FILE;"
            f" what heads do can be seen without: headlab roles {path} --source {file}"
        )
    prepare_cpu(settings["threads"])
    loaded = read_checkpoint(checkpoint, _device(settings["device"]))
    configurations = _configurations(plan, loaded)

    limit = settings["sentences"]
    first, second = (None if name is None else Path(name) for name in (source, reference))
    sentences = choose_sentences(loaded, settings["split"], first, second, limit=limit)
    deciding = None
    if plan.get("keep") == "best":
        deciding = choose_sentences(loaded, plan["choose_on"], limit=limit)
        if deciding == sentences:
            typer.echo(
                f"heads are chosen and reported on the same sentences ({sentences.part}): that "
                "flatters them; set ablation.choose_on or split",
                err=True,
            )
    results, study = _measure(checkpoint, settings, loaded, configurations, sentences, deciding)
    write_results(study, results, loaded.model, settings["figures"]["dpi"])
    study.close()
    print_results(results, loaded.model, settings["significance"]["level"])
    typer.echo(f"written: {study.folder}/")
    kept = [text for text in overrides if not text.lstrip("+").startswith("ablation")]
    typer.echo(f"next: {_next_command(checkpoint, plan['kind'], kept)}")


def _configurations(plan: Mapping[str, Any], loaded: "Loaded") -> "list[Configuration]":
    from headlab.head_names import parse_heads
    from headlab.heads import plans

    existing = loaded.model.head_names
    if not existing:
        raise HeadlabError(f"{loaded.path} has no attention head left to switch off")
    if not plan["heads"]:
        raise HeadlabError(
            "ablation.heads must name heads, such as 'ablation.heads=[encoder.0.3,cross.2.*]'"
        )
    heads = parse_heads(plan["heads"], existing, "ablation.heads")
    kind = plan["kind"]
    if kind == "all_but_one":
        return plans.all_but_one(heads, existing)
    if kind == "random":
        return plans.random_draws(heads, plan["k"], plan["draws"], plan["seed"])
    simple = {
        "each_head": plans.each_head,
        "each_layer": plans.each_layer,
        "each_site": plans.each_site,
        "list": plans.together,
    }
    return simple[kind](heads)


def _measure(
    checkpoint: Path,
    settings: Mapping[str, Any],
    loaded: "Loaded",
    configurations: "Sequence[Configuration]",
    sentences: "Sentences",
    deciding: "Sentences | None",
) -> "tuple[Results, Study]":
    """Run the plan: on the sentences that choose heads, where there are any, and on the others."""
    from headlab.decoding import Translator
    from headlab.evaluation import scoring_options
    from headlab.heads.ablation import METRICS, Row, best_heads, spread
    from headlab.heads.ablation_results import Results
    from headlab.heads.study import Study

    plan = settings["ablation"]
    metrics = [name for name in METRICS if name in settings["metrics"]]
    described = {
        "ablation": plan,
        "metrics": metrics,
        "decoding": Translator.from_loaded(loaded, **settings["decoding"]).options,
        "scoring": scoring_options(loaded.config, settings["lowercase"]),
        "sentences": _described(sentences),
        "deciding": None if deciding is None else _described(deciding),
        "device": next(loaded.model.parameters()).device.type,
    }
    shown = {key: settings[key] for key in ("significance", "figures")}
    study = Study(checkpoint, f"ablation-{plan['kind']}-{sentences.part}", described, shown)
    choice: list[Row] = []
    best: list[Row] = []
    about: list[Row] = []
    if deciding is not None:
        choice, how = _run(settings, loaded, study, deciding, configurations)
        about.append(how)
        best = best_heads(choice, plan["choose_by"])
        chosen = {row["configuration"] for row in best}
        configurations = [one for one in configurations if one.name in chosen]
    rows, how = _run(settings, loaded, study, sentences, configurations)
    about.insert(0, how)
    spreads = spread(rows, metrics) if plan["kind"] == "random" else []
    decimals = settings["figures"]["decimals"]
    kind = plan["kind"]
    return Results(kind, rows, choice, best, about, spreads, metrics, decimals), study


def _run(
    settings: Mapping[str, Any],
    loaded: "Loaded",
    study: "Study",
    sentences: "Sentences",
    configurations: "Sequence[Configuration]",
) -> "tuple[list[Row], Row]":
    """The rows of one set of sentences, and how they came about."""
    from headlab.heads.ablation import Ablation, Significance
    from headlab.heads.measure import Measurer

    metrics = settings["metrics"]
    measurer = Measurer(
        loaded,
        sentences.sources,
        sentences.references,
        translate=bool({"bleu", "chrf"} & set(metrics)),
        likelihood="nll" in metrics,
        lowercase=settings["lowercase"],
        **settings["decoding"],
    )
    significance = Significance(**settings["significance"])
    ablation = Ablation(measurer, study, sentences.part, metrics, significance)
    known = ablation.known(configurations)
    count = len(configurations)
    number = f"{count:,} configuration{'s' if count != 1 else ''}"
    size = f"{len(sentences.sources):,} sentences"
    typer.echo(f"{number} on {sentences.part} ({size})", err=True)
    if known:
        typer.echo(f"{known:,} of them were measured before: {study.folder}/", err=True)
    with progress_bar(f"{sentences.part}, sentences", ablation.steps(configurations)) as progress:
        rows = ablation.run(configurations, progress)
    return rows, ablation.about()


def _described(sentences: "Sentences") -> list[Any]:
    """Their name and a digest of them."""
    digest = hashlib.sha256()
    for text in (*sentences.sources, *(sentences.references or ())):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return [sentences.part, len(sentences.sources), digest.hexdigest()]


def _device(name: str) -> Any:
    try:
        return choose_device(name)
    except HeadlabError as error:
        raise HeadlabError(str(error).replace("--device ", "device=")) from error


def _next_command(checkpoint: Path, kind: str, settings: Sequence[str]) -> str:
    path = shlex.quote(str(checkpoint))
    following = {"each_site": "each_layer", "each_layer": "each_head", "each_head": "all_but_one"}
    if kind in following:
        return f"headlab ablate {path} " + shlex.join([f"ablation={following[kind]}", *settings])
    return f"headlab importance {path}"
