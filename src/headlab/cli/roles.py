"""``headlab roles``: what each attention head does."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headlab.cli.sentences import choose_sentences, read_split
from headlab.cli.shared import choose_device, prepare_cpu, progress_bar
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.checkpoint import Loaded
    from headlab.cli.sentences import Sentences
    from headlab.head_names import Head
    from headlab.heads.alignment import Links
    from headlab.heads.parsing import Parse
    from headlab.heads.role_names import Role
    from headlab.heads.role_study import Material
    from headlab.heads.study import Study

SIDES = {"encoder": "source", "decoder": "target"}


def roles(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, e.g. outputs/latest/best.ckpt")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Keys of configs/roles.yaml, such as positional=0.8."
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation or test")] = "test",
    source: Annotated[
        Path | None, typer.Option(help="A file instead of a split, a sentence a line.")
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="The translations of --source. Default: the model's own are looked at."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many sentences.")
    ] = None,
    alignments: Annotated[
        Path | None,
        typer.Option(
            help="Word alignments of the sentences, i-j pairs by white space. Default: those of "
            "a lexicon learnt from the training split."
        ),
    ] = None,
    parser: Annotated[
        list[str] | None,
        typer.Option(
            help="A spaCy pipeline, for the side whose language it has; or source=NAME, "
            "target=NAME. Default: fr_core_news_sm for French, none for others."
        ),
    ] = None,
    conllu_source: Annotated[
        Path | None, typer.Option(help="Parses of the source sentences, CoNLL-U.")
    ] = None,
    conllu_target: Annotated[
        Path | None, typer.Option(help="Parses of the target sentences, CoNLL-U.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads. Default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Say what each head does: positional, syntactic, rare-word, aligned, a sink, or nothing.

    Writes tables and figures into a folder beside the checkpoint.
    """
    from headlab.checkpoint import read_checkpoint
    from headlab.cli.importance import fingerprint
    from headlab.cli.role_report import print_roles
    from headlab.cli.role_settings import read_role_settings
    from headlab.data.text import sha256_of
    from headlab.heads.role_results import Findings, write_results
    from headlab.heads.role_study import Material, RoleStudy
    from headlab.heads.study import Study

    chosen = read_role_settings(settings or [])
    prepare_cpu(threads)
    loaded = read_checkpoint(checkpoint, choose_device(device))
    if not loaded.model.head_names:
        raise HeadlabError(f"{checkpoint} has no attention head left to look at")
    files = {"--conllu-source": conllu_source, "--conllu-target": conllu_target}
    digests = {
        key: sha256_of(path, key)
        for key, path in {**files, "--alignments": alignments}.items()
        if path is not None
    }
    parsers = _pipelines(loaded, parser or [], files)
    sentences = choose_sentences(loaded, split, source, reference, limit)
    if sentences.references is None:
        for key in ("--alignments", "--conllu-target"):
            if key in digests:
                raise HeadlabError(f"{key} needs the translations it belongs to: --reference")
    cut = limit is not None
    parsed, gold = _read_given(sentences, files, alignments, cut)
    training = _training_split(loaded)
    described = {
        **asdict(chosen),
        "training": training and fingerprint(*training),
        "sentences": fingerprint(sentences.sources, sentences.references or []),
        "files": digests,
        "parsers": {
            site: [name, pipeline.meta.get("version")] for site, (name, pipeline) in parsers.items()
        },
        "device": next(loaded.model.parameters()).device.type,
    }
    study = Study(checkpoint, f"roles-{sentences.part}", described)
    targets = sentences.references or _translations(loaded, study, sentences)
    material = Material.choose(loaded, sentences.sources, targets)
    _say_left_out(material, sentences)
    parses: dict[str, Callable[[], Sequence[Parse]]] = {
        site: _chosen_parses(every, material) for site, every in parsed.items()
    }
    for site, texts in (("encoder", material.sources), ("decoder", material.targets)):
        if site in parsers:
            parses[site] = _from_pipeline(parsers[site][1], texts, SIDES[site])

    stages = RoleStudy(study, loaded, material, chosen, progress_bar)
    numbers = stages.numbers(training and training[0])
    agreements = stages.agreements(gold and [gold[i] for i in material.kept], training)
    syntax = {
        site: stages.syntax(site, parse)
        for site, parse in parses.items()
        if any(loaded.model.kept[site])
    }
    found = Findings(numbers, agreements, syntax, stages.distances())
    named = write_results(study, loaded.model, found, chosen, sentences.part)
    study.close()
    print_roles(found, named, chosen)
    typer.echo(f"written: {study.folder}/")
    typer.echo(f"next: {_next_command(checkpoint, named)}")


def _pipelines(
    loaded: "Loaded", names: Sequence[str], files: dict[str, Path | None]
) -> dict[str, tuple[str, Any]]:
    """Site -> the name of a spaCy pipeline for its language, and the pipeline.

    Raises:
        HeadlabError: a pipeline is missing, or is for neither language.
    """
    from headlab.heads.parsing import PIPELINES, load_pipeline

    data = loaded.config.get("data") or {}
    languages = {site: str(data.get(side, "")) for site, side in SIDES.items()}
    found: dict[str, tuple[str, Any]] = {}
    for text in names:
        side, _, name = text.rpartition("=")
        if side not in ("", *SIDES.values()):
            raise HeadlabError(f"--parser {text}: write NAME, source=NAME or target=NAME")
        pipeline = load_pipeline(name)
        own = [
            site
            for site, of in SIDES.items()
            if (side == of if side else _language(languages[site]) == pipeline.lang)
        ]
        if not own:
            raise HeadlabError(
                f"--parser {name} is for {pipeline.lang}, and the checkpoint translates "
                f"{languages['encoder']} to {languages['decoder']}; "
                f"write source={name} or target={name}"
            )
        found |= dict.fromkeys(own, (name, pipeline))
    for site, side in SIDES.items():
        if files[f"--conllu-{side}"] is not None:
            found.pop(site, None)
        elif site not in found:
            name = PIPELINES.get(_language(languages[site]), "")
            hint = f"--parser NAME of a spaCy pipeline, or --conllu-{side} FILE"
            try:
                if name:
                    found[site] = name, load_pipeline(name)
                    continue
            except HeadlabError as error:
                hint = str(error).partition(": ")[2]
            typer.echo(f"no parses of the {side} ({languages[site]}): {hint}", err=True)
    return found


def _language(code: str) -> str:
    return code.lower().replace("_", "-").partition("-")[0]


def _translations(loaded: "Loaded", study: "Study", sentences: "Sentences") -> list[str]:
    """The model's own translations, kept with the study."""
    from headlab.decoding import Translator, one_line

    done = study.done("translations", list[str])
    if done is None:
        translator = Translator.from_loaded(loaded)
        with progress_bar("translating", len(sentences.sources)) as progress:
            texts = translator.translate(
                sentences.sources, progress=progress, name=lambda i: f"sentence {i + 1}"
            )
        done = [one_line(text) for text in texts]
        study.record("translations", done)
    return done


def _say_left_out(material: "Material", sentences: "Sentences") -> None:
    count = len(sentences.sources) - len(material.kept)
    if not material.kept:
        raise HeadlabError(f"{sentences.part}: every pair is blank or too long for the model")
    if count:
        typer.echo(f"{count:,} pairs are left out: a side is blank or too long", err=True)


def _read_given(
    sentences: "Sentences", files: dict[str, Path | None], alignments: Path | None, cut: bool
) -> tuple[dict[str, list["Parse"]], "list[Links] | None"]:
    """Parses by site, and alignments, from files: before any work, so that mistakes show first."""
    from headlab.heads.alignment import read_pharaoh
    from headlab.heads.parsing import read_conllu
    from headlab.heads.words import white_words

    targets = sentences.references or []
    parsed = {}
    for site, texts in (("encoder", sentences.sources), ("decoder", targets)):
        key = f"--conllu-{SIDES[site]}"
        path = files[key]
        if path is not None:
            parsed[site] = read_conllu(path, texts, cut, key)
    if alignments is None:
        return parsed, None
    lengths = [
        (len(white_words(one)), len(white_words(other)))
        for one, other in zip(sentences.sources, targets, strict=True)
    ]
    return parsed, read_pharaoh(alignments, lengths, cut, "--alignments")


def _chosen_parses(every: "Sequence[Parse]", material: "Material") -> "Callable[[], list[Parse]]":
    return lambda: [every[i] for i in material.kept]


def _from_pipeline(
    pipeline: Any, texts: Sequence[str], side: str
) -> "Callable[[], Sequence[Parse]]":
    from headlab.heads.parsing import parse_texts

    def parse() -> "Sequence[Parse]":
        with progress_bar(f"parsing the {side}", len(texts)) as progress:
            return parse_texts(pipeline, texts, progress)

    return parse


def _training_split(loaded: "Loaded") -> tuple[list[str], list[str]] | None:
    """What frequencies and the lexicon are learnt from; a study of a file can do without."""
    try:
        return read_split(loaded, "train")
    except HeadlabError as error:
        typer.echo(
            f"the training split cannot be read ({error}): rare words, and alignments where no "
            "file gives them, are left out",
            err=True,
        )
        return None


def _next_command(checkpoint: Path, named: "dict[Head, list[Role]]") -> str:
    """Switch off the heads of the most frequent role: does it matter?"""
    from headlab.head_names import compress
    from headlab.heads.role_names import KINDS

    groups = {
        kind: [head for head, some in named.items() if some and some[0].kind == kind]
        for kind in KINDS
    }
    path = shlex.quote(str(checkpoint))
    heads = max(groups.values(), key=len)
    if not heads:
        return f"headlab importance {path}"
    listed = shlex.quote(f"ablation.heads=[{','.join(compress(heads))}]")
    return f"headlab ablate {path} ablation=list {listed}"
