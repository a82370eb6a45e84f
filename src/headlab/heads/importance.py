"""How much each head matters: by gradient, by its attention weights, by the loss without it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headlab.data.tokenizer import PAD
from headlab.decoding.search import BATCH_TOKENS
from headlab.errors import HeadlabError
from headlab.head_names import SITES, Head
from headlab.heads.gates import gates_without
from headlab.heads.measure import Measurer
from headlab.heads.statistics import HeadMeans, StudyBatch, study_batches
from headlab.heads.study import Study
from headlab.heads.weights import as_distributions, candidates, confidences, entropies, in_use
from headlab.transformer import Transformer

Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
Scores = dict[Head, float]


def gradient_scores(
    model: Transformer,
    pairs: Pairs,
    batch_tokens: int = BATCH_TOKENS,
    progress: Callable[[int], None] | None = None,
) -> Scores:
    """Michel et al. 2019's importance as their translation code has it (section 4.1).

    For each head the mean, over real query positions, of ``|output . d loss / d output|``, where
    the output (head_dim) is the head's before W_O, and the loss is the negative log-likelihood
    summed over the real target tokens. The mean is over positions and not over sentences, and a
    sum over tokens does not depend on which sentences share a batch; so neither does the score.
    The sites stay apart: queries of the encoder are source tokens (EOS counted), those of decoder
    and cross-attention what the decoder reads (``<s>`` counted). Padding never counts.

    Args:
        model: computed in evaluation mode, whatever mode it is in.
        pairs: source and target pieces, without BOS and EOS.
        batch_tokens: tokens of the longer side in a batch, padding counted.
        progress: called after each batch with the number of pairs done so far.

    Returns:
        A score of at least 0 for each head that the model has.
    """
    means, done = HeadMeans(), 0
    for batch in study_batches(model, pairs, batch_tokens):
        real = batch.real()
        for (site, layer), products in head_products(model, batch).items():
            means.add(site, layer, "score", products.abs().transpose(1, 2), real[site][0])
        done += len(batch.rows)
        if progress is not None:
            progress(done)
    return _by_head(model, means, "score")


def head_products(model: Transformer, batch: StudyBatch) -> dict[tuple[str, int], Tensor]:
    """``output . d loss / d output`` of every head at every position, as in ``gradient_scores``.

    By the chain rule the sum over positions is d loss / d gate at a gate of 1.

    Returns:
        (site, layer) -> (batch, queries, heads that the layer has), in the order of ``kept``;
        layers without heads are left out.
    """
    training = model.training
    model.eval()
    try:
        with torch.enable_grad(), _head_outputs(model) as outputs:
            encoded = model.encode(batch.source)
            hidden = model.decode(batch.target_input, encoded).hidden
            real = batch.target_output != PAD
            loss = F.cross_entropy(
                model.logits(hidden[real]), batch.target_output[real], reduction="sum"
            )
        places = list(outputs)
        if not places:
            return {}
        # Only what leads to the head outputs is computed: no gradient of a weight.
        gradients = torch.autograd.grad(loss, list(outputs.values()), allow_unused=True)
    finally:
        model.train(training)
    products = {}
    for (site, layer), gradient in zip(places, gradients, strict=True):
        output = outputs[site, layer].detach()
        # The encoder is not used at all where every head of the cross-attention is gone.
        product = output * (torch.zeros_like(output) if gradient is None else gradient)
        heads = len(model.kept[site][layer])
        products[site, layer] = product.unflatten(-1, (heads, -1)).sum(dim=-1)
    return products


@contextmanager
def _head_outputs(model: Transformer) -> Iterator[dict[tuple[str, int], Tensor]]:
    """Collects the input of every W_O: the heads' outputs, (batch, queries, heads * head_dim)."""
    outputs: dict[tuple[str, int], Tensor] = {}

    def collect(place: tuple[str, int]) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
        def hook(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
            (heads,) = arguments
            if not heads.requires_grad:  # the model's weights may be frozen
                heads = heads.detach().requires_grad_()
            outputs[place] = heads
            return (heads,)

        return hook

    handles = [
        attention.out_projection.register_forward_pre_hook(collect((site, layer)))
        for site in SITES
        for layer, attention in enumerate(model.attentions(site))
        if attention.heads
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def normalized_by_layer(scores: Mapping[Head, float]) -> Scores:
    """Scores divided by the Euclidean norm of those of their layer, at their site.

    Michel et al. 2019 (section 4.1) take this over from Molchanov et al. 2017. Where all scores of
    a layer are 0 they stay 0.
    """
    squares: dict[tuple[str, int], float] = {}
    for one, score in scores.items():
        squares[one[:2]] = squares.get(one[:2], 0.0) + score**2
    return {
        one: score / math.sqrt(squares[one[:2]]) if squares[one[:2]] else 0.0
        for one, score in scores.items()
    }


class WeightScores(NamedTuple):
    """What a head's attention weights say of it, on average over query positions."""

    confidence: Scores
    entropy: Scores  # nats


@torch.inference_mode()
def weight_scores(
    model: Transformer,
    pairs: Pairs,
    batch_tokens: int = BATCH_TOKENS,
    progress: Callable[[int], None] | None = None,
) -> WeightScores:
    """Confidence (Voita et al. 2019, section 4) and entropy of every head of every site.

    Confidence is the mean over query positions of the largest weight, where the end of sentence
    is no candidate: its key is left out, the other weights stay as they are. That concerns
    encoder and cross-attention; the decoder reads ``<s>`` and pieces, never an end, so nothing is
    left out there. Only keys are left out: the end of sentence as a query of the encoder counts
    like any token, and so does ``<s>`` in the decoder. Entropy is of the whole distribution.

    In a mixture of heads only the tokens that picked a head count for it; a head that none picked
    has 0.

    Arguments as for ``gradient_scores``.
    """
    means, done = HeadMeans(), 0
    training = model.training
    model.eval()
    try:
        for batch in study_batches(model, pairs, batch_tokens):
            real = batch.real()
            found = model.attention_weights(batch.source, batch.target_input)
            weights = as_distributions(model, found)
            for site, layers in weights.items():
                allowed, queries = candidates(batch, site), real[site][0]
                for layer, of_heads in enumerate(layers):
                    largest = confidences(of_heads, allowed)
                    served = queries.unsqueeze(1) & in_use(of_heads)
                    means.add(site, layer, "confidence", largest, served)
                    means.add(site, layer, "entropy", entropies(of_heads), served)
            done += len(batch.rows)
            if progress is not None:
                progress(done)
    finally:
        model.train(training)
    return WeightScores(*(_by_head(model, means, name) for name in WeightScores._fields))


def _by_head(model: Transformer, means: HeadMeans, name: str) -> Scores:
    tables = means.table(name, model.kept, model.heads)
    if model.head_names and not tables:
        raise HeadlabError(
            f"no sentence pair fits into the model's {model.max_length} positions; "
            "give shorter sentences"
        )
    return {
        one: float(tables[one.site][one.layer, one.head].nan_to_num()) for one in model.head_names
    }


def loss_changes(
    measurer: Measurer,
    study: Study,
    key: str = "",
    progress: Callable[[int], None] | None = None,
) -> Scores:
    """What each head is worth: the loss without it less the loss of the model as it is.

    Losses are mean negative log-likelihoods of a target token, in nats; one head at a time is
    switched off. A rise is positive, and a head that does harm has a negative change.

    Args:
        measurer: of a model and of sentence pairs, for likelihood.
        study: remembers each measurement, and is asked first.
        key: what the measurements' keys begin with.
        progress: called after each head with the number of heads done so far.
    """
    model = measurer.loaded.model

    def nll(name: str, heads: Sequence[Head]) -> float:
        found = study.done(key + name, float)
        if found is None:
            found = measurer.measure(gates_without(model, heads)).nll
            if found is None:
                raise HeadlabError("there is no pair whose likelihood can be measured")
            study.record(key + name, found)
        return found

    whole, changes = nll("no head off", []), {}
    for done, one in enumerate(model.head_names, start=1):
        changes[one] = nll(f"{one} off", [one]) - whole
        if progress is not None:
            progress(done)
    return changes


class Correlation(NamedTuple):
    """Spearman's rank correlation of a score with the measured loss change."""

    rho: float | None  # None: undefined, see ``spearman``
    p_value: float | None  # two-sided
    heads: int


def spearman(scores: Mapping[Head, float], loss_changes: Mapping[Head, float]) -> Correlation:
    """Rank correlation over the heads that both mappings have.

    Undefined for fewer than three heads, and where all of either side are equal. The p-value is
    scipy's, from Student's t distribution, and rough for few heads.
    """
    from scipy.stats import spearmanr

    heads = [one for one in scores if one in loss_changes]
    x, y = [scores[one] for one in heads], [loss_changes[one] for one in heads]
    if len(heads) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return Correlation(None, None, len(heads))
    rho, p_value = spearmanr(x, y)
    return Correlation(float(rho), float(p_value), len(heads))


def grids(model: Transformer, values: Mapping[Head, float]) -> dict[str, np.ndarray]:
    """Site -> (layers, heads), NaN where the model has no head or ``values`` no entry."""
    tables = {site: np.full((len(model.kept[site]), model.heads), np.nan) for site in SITES}
    for one, value in values.items():
        tables[one.site][one.layer, one.head] = value
    return tables


def ascending(scores: Mapping[Head, float], allowed: Iterable[Head]) -> list[Head]:
    """The allowed heads, least important first; equal ones by site, layer and number."""
    return sorted(allowed, key=lambda one: (scores[one], SITES.index(one.site), one[1:]))
