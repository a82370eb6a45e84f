"""One training run, from a resolved configuration to best.ckpt."""

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.loggers import TensorBoardLogger

from headlab.allocator import keep_freed_memory
from headlab.checkpoint import read_checkpoint, save_checkpoint
from headlab.data.corpus import build_corpus
from headlab.data.module import TranslationData
from headlab.data.tokenizer import Tokenizers
from headlab.errors import HeadlabError
from headlab.heads.hard_concrete import HardConcreteGates, check_gates
from headlab.training.checkpoints import AtomicCheckpointIO, Checkpoints
from headlab.training.module import TranslationModule, check_balance, check_smoothing
from headlab.training.schedule import build_schedule
from headlab.training.shards import Shards
from headlab.training.starting import all_heads, starting_point, take_weights, training_state
from headlab.transformer import Transformer

logger = logging.getLogger("headlab")


@dataclass(frozen=True)
class Run:
    """What a finished training leaves behind."""

    folder: Path
    # best.ckpt, or last.ckpt when nothing was validated; pruned.ckpt where gates were learnt
    checkpoint: Path
    module: TranslationModule
    data: TranslationData
    logger: TensorBoardLogger
    step: int  # optimizer steps taken
    best_score: float | None  # of the number that callbacks.checkpoints.monitor names
    main: bool  # whether this is the process that reports, of those of a distributed run


def fit(config: dict[str, Any], folder: Path, resume: Path | None = None) -> Run:
    """Train.

    Args:
        config: the whole configuration, resolved, plain types.
            ``init_from`` is a checkpoint that a new run takes tokenizers and weights from; heads
            that it lacks are missing in the new model, too, beside those of ``model.ablate``.
        folder: of the run: checkpoints and TensorBoard files go there.
        resume: a checkpoint of this run to go on from; ``init_from`` is not read again then.

    Raises:
        HeadlabError: something in the configuration or the corpus cannot be used; all of it is
            checked before long work begins.
        Interrupted: a signal stopped the run after its state was saved.
    """
    if config["keep_memory"]:
        keep_freed_memory()
    if config["threads"] is not None:
        if config["threads"] < 1:
            raise HeadlabError(f"threads={config['threads']} must be at least 1, or null")
        torch.set_num_threads(config["threads"])
    quieten()
    raw = training_state(resume) if resume is not None else None
    start = None
    if raw is None and config.get("init_from") is not None:
        start = starting_point(config)
        config = {**config, "model": {**config["model"], "ablate": start.model.hparams["ablate"]}}
    _check_model(config)
    board = build_logger(config, folder, raw)
    trainer = build_trainer(config, folder, board)
    checkpoints = next(c for c in trainer.callbacks if isinstance(c, Checkpoints))  # type: ignore[attr-defined]
    finished = raw is not None and _finished(trainer, raw)
    tokenizers = Tokenizers.from_state(raw["headlab"]["tokenizers"]) if raw else None
    tokenizers = start.tokenizers if start else tokenizers
    data = TranslationData(
        build_corpus(config["data"]),
        config["tokenizer"],
        seed=config["seed"],
        tokenizers=tokenizers,
        **config["batches"],
    )
    tokenizers = data.prepare()
    corpus = data.corpus.cache_folder().name
    if raw is not None and raw["headlab"].get("corpus", corpus) != corpus:
        raise HeadlabError(
            f"the corpus is not the one that {resume} was trained on ({corpus} now, "
            f"{raw['headlab']['corpus']} then); restore its files, or start a new run"
        )
    _check_interval(config["trainer"], data)
    L.seed_everything(config["seed"], verbose=False)
    model = Transformer(
        source_vocab_size=tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
        **config["model"],
    )
    if start is not None:
        take_weights(model, start)
    module = build_module(config, model, tokenizers, corpus)
    logger.info("%s", describe(model))
    logger.info("run folder: %s   (tensorboard --logdir %s)", folder, folder.parent)
    link_latest(folder, Path(config["paths"]["outputs"]))
    if finished and raw is not None:
        step, best_score = raw["global_step"], raw["callbacks"][checkpoints.state_key]["best_score"]
    else:
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        step, best_score = trainer.global_step, checkpoints.best_score
    best = checkpoints.best if checkpoints.best.exists() else checkpoints.last
    if module.gates is not None and trainer.is_global_zero:
        loaded = read_checkpoint(best)  # closed heads are cut
        best = folder / "pruned.ckpt"
        save_checkpoint(best, loaded, loaded.model)
    return Run(
        folder,
        best,
        module,
        data,
        board,
        step=step,
        best_score=best_score,
        main=trainer.is_global_zero,
    )


def _gates(config: Mapping[str, Any], model: Transformer) -> dict[str, Any]:
    """The learnt gates that the configuration asks for, and their learning rate."""
    if config.get("gates") is None:
        return {}
    settings = dict(config["gates"])
    rate = settings.pop("learning_rate")
    return {"gates": HardConcreteGates.of_model(model, **settings), "gate_learning_rate": rate}


def describe(model: Transformer) -> str:
    """One line: the number of parameters, how many of them are attention, and missing heads."""
    total = sum(p.numel() for p in model.parameters())
    attention = sum(p.numel() for n, p in model.named_parameters() if "_attention." in n)
    layers = model.encoder_layers + model.decoder_layers
    here, whole = len(model.head_names), len(all_heads(model))
    missing = f"; {here} of {whole} heads" if here < whole else ""
    return (
        f"parameters: {total:,} ({attention:,} in attention: {layers} layers, "
        f"{model.heads} heads, width {model.d_model}{missing})"
    )


def _check_model(config: Mapping[str, Any]) -> None:
    """Build what can be built without data, so that mistakes show before any is read."""
    longest, table = config["batches"]["max_length"], config["position"].get("max_length")
    if table is not None and longest > table:
        raise HeadlabError(
            f"batches.max_length={longest} is longer than position.max_length={table}; "
            "raise the second or lower the first"
        )
    with torch.device("meta"):
        vocabulary = 300
        model = Transformer(
            source_vocab_size=vocabulary, target_vocab_size=vocabulary, **config["model"]
        )
    if config.get("gates") is not None:
        check_gates(**config["gates"])
        _gates(config, model)
    check_balance(config["loss"].get("balance", 0.0))
    build_schedule(total_steps=1000, **config["schedule"])
    check_smoothing(config["loss"]["label_smoothing"])
    Shards(config.get("shards", 1))
    try:
        build("optimizer", config["optimizer"])(model.parameters())
    except (TypeError, ValueError, RuntimeError) as error:
        raise HeadlabError(f"optimizer: {error}") from error


def build(key: str, node: Mapping[str, Any], **arguments: Any) -> Any:
    """Instantiate what the configuration describes under ``key``.

    Raises:
        HeadlabError: it refuses its arguments.
    """
    try:
        return instantiate(node, _convert_="all", **arguments)
    except InstantiationException as error:
        cause = error.__cause__ or error
        if isinstance(cause, HeadlabError):
            raise cause from None
        raise HeadlabError(f"{key}: {str(cause).splitlines()[0]}") from error


def build_module(
    config: dict[str, Any], model: Transformer, tokenizers: Tokenizers, corpus: str = ""
) -> TranslationModule:
    """The training of a model as the configuration asks for it; arguments as the module's."""
    return TranslationModule(
        model,
        tokenizers,
        build("optimizer", config["optimizer"]),
        config["schedule"],
        config["loss"]["label_smoothing"],
        config,
        corpus,
        **_gates(config, model),
        balance=config["loss"].get("balance", 0.0),
        shards=config.get("shards", 1),
    )


def build_logger(config: Mapping[str, Any], folder: Path, raw: Mapping[str, Any] | None) -> Any:
    """The logger of a run, in its folder; ``raw`` is the checkpoint that it goes on from."""
    # What an interrupted run logged after its last checkpoint is logged again: TensorBoard drops
    # the old points from purge_step on.
    # A fresh run says so too: TensorBoard takes the first such mark for the beginning.
    purge = {"purge_step": 0 if raw is None else raw["global_step"] + 1}
    place = {"save_dir": str(folder), "name": "", "version": "tensorboard"}
    return build("logger", config["logger"], default_hp_metric=False, **place, **purge)


def build_trainer(config: Mapping[str, Any], folder: Path, board: TensorBoardLogger) -> L.Trainer:
    """The trainer of a run, with its callbacks.

    Raises:
        HeadlabError: a training without an end, or one that would save nothing.
    """
    epochs, steps = (config["trainer"].get(key) for key in ("max_epochs", "max_steps"))
    if (epochs is None or epochs < 1) and (steps is None or steps < 1):
        raise HeadlabError(f"trainer.max_epochs={epochs} must be at least 1")
    if config["callbacks"].get("checkpoints") is None:
        raise HeadlabError("callbacks.checkpoints cannot be null: nothing would be saved")
    callbacks = []
    for name, node in config["callbacks"].items():
        if node is not None:
            place = {"folder": str(folder)} if name == "checkpoints" else {}
            callbacks.append(build(f"callbacks.{name}", node, **place))
    return build(
        "trainer",
        config["trainer"],
        default_root_dir=str(folder),
        logger=board,
        callbacks=callbacks,
        plugins=[AtomicCheckpointIO()],
        use_distributed_sampler=False,  # the batches share themselves out among processes
        num_sanity_val_steps=0,
        enable_model_summary=False,
    )


def _check_interval(trainer: Mapping[str, Any], data: TranslationData) -> None:
    """Refuse to validate less often than once an epoch by accident."""
    interval, batches = trainer.get("val_check_interval"), len(data.train_dataloader())
    every = trainer.get("check_val_every_n_epoch", 1)
    if isinstance(interval, int) and interval > batches and every is not None:
        raise HeadlabError(
            f"trainer.val_check_interval={interval} is more than the {batches} batches of an "
            f"epoch; choose at most {batches}, or 1.0 for once an epoch"
        )


def _finished(trainer: L.Trainer, raw: Mapping[str, Any]) -> bool:
    """Whether a run has come to its end; says how to extend it."""
    step, loops = raw["global_step"], raw["loops"]["fit_loop"]
    epochs, batches = loops["epoch_progress"]["current"], loops["epoch_loop.batch_progress"]
    whole = batches["is_last_batch"] and batches["current"]["completed"] > 0
    done = epochs["ready"] if whole else epochs["processed"]
    for key, limit, reached in (
        ("max_epochs", trainer.max_epochs, done),
        ("max_steps", trainer.max_steps, step),
    ):
        if limit is not None and 0 <= limit <= reached:
            logger.info(
                "this run has finished its trainer.%s=%d (step %s); it is scored again. To train "
                "on, add trainer.%s=%d",
                *(key, limit, f"{step:,}", key, limit * 2),
            )
            return True
    return False


def quieten() -> None:
    """Silence what Lightning says about machines and habits that are not the user's concern."""
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", ".*treespec.*|.*Checkpoint directory.*")


def link_latest(folder: Path, outputs: Path) -> None:
    """Point ``outputs/latest`` to the run's folder, replacing an older link in one act.

    The link is relative, so that ``outputs`` can be moved with all that is in it: relative to
    where ``outputs`` really lies, for it may be a link itself.
    """
    link = outputs / "latest"
    temporary = outputs / f".latest.{os.getpid()}"
    if os.path.lexists(link) and not _leads_to_a_run(link):
        logger.warning("%s is no link to a run; left as it is", link)
        return
    try:
        temporary.unlink(missing_ok=True)
        target = os.path.relpath(folder.resolve(), outputs.resolve())
        temporary.symlink_to(target, target_is_directory=True)
        os.replace(temporary, link)
    except OSError as error:
        logger.warning("%s could not be set (%s)", link, error.strerror)


def _leads_to_a_run(link: Path) -> bool:
    """Whether a newer run may take the link: it leads to a run's folder, or nowhere any more."""
    if not link.is_symlink():
        return False
    return not link.exists() or any(link.glob("*.ckpt")) or any(link.glob("tensorboard/*"))
