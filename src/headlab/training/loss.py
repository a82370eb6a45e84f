"""Label-smoothed cross-entropy that never holds the logits of a whole batch."""

from typing import Any

import torch
from torch import Tensor

CHUNK = 256  # tokens whose logits exist at one time


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        wants_hidden, wants_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        hidden_grad = torch.empty_like(hidden) if wants_hidden else None
        weight_grad = torch.zeros_like(weight) if wants_weight else None
        weight = weight.to(hidden.dtype)
        sums = hidden.new_zeros(2, dtype=torch.promote_types(hidden.dtype, torch.float32))
        log_totals = sums.new_zeros(())
        for start in range(0, hidden.size(0), CHUNK):
            rows = hidden[start : start + CHUNK]
            # Passes over the logits cost as much as a product: none more than softmax needs.
            logits = (rows @ weight.t()).to(sums.dtype)
            wanted = logits.gather(1, targets[start : start + CHUNK, None])
            largest = logits.amax(dim=1, keepdim=True)
            probabilities = logits.softmax(dim=1)
            # The largest probability is exp(0) over the sum of all exp(logit - largest).
            log_total = largest - probabilities.amax(dim=1, keepdim=True).log()
            log_totals += log_total.sum()
            sums[1] += (log_total - wanted).sum()  # -log p of the targets
            # d loss / d logits = softmax - smoothed one-hot target: the softmax here, the rest of
            # it below.
            probabilities = probabilities.to(hidden.dtype)
            if hidden_grad is not None:
                torch.mm(probabilities, weight, out=hidden_grad[start : start + CHUNK])
            if weight_grad is not None:
                weight_grad.addmm_(
                    probabilities.t().to(weight_grad.dtype), rows.to(weight_grad.dtype)
                )
        middle = weight.mean(dim=0)  # gives the mean of a row's logits
        mean = log_totals - (hidden.to(sums.dtype) @ middle.to(sums.dtype)).sum()
        sums[0] = (1.0 - smoothing) * sums[1] + smoothing * mean
        if hidden_grad is not None:
            hidden_grad.sub_(weight[targets], alpha=1.0 - smoothing).sub_(middle, alpha=smoothing)
        if weight_grad is not None:
            rows = hidden.to(weight_grad.dtype)
            weight_grad.index_add_(0, targets, rows, alpha=smoothing - 1.0)
            weight_grad.sub_(rows.sum(dim=0), alpha=smoothing / weight.size(0))
        ctx.save_for_backward(hidden_grad, weight_grad)
        loss, nll = sums[0].clone(), sums[1].clone()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_grad, weight_grad = ctx.saved_tensors
        scale = grads[0]
        return (
            None if hidden_grad is None else hidden_grad * scale.to(hidden_grad.dtype),
            None if weight_grad is None else weight_grad * scale.to(weight_grad.dtype),
            None,
            None,
        )


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Sum over tokens of the label-smoothed cross-entropy of ``softmax(hidden @ weight^T)``.

    Equal to ``F.cross_entropy(hidden @ weight.T, targets, reduction="sum",
    label_smoothing=smoothing)`` (Szegedy et al. 2016: the target keeps 1 - smoothing and all ids,
    the target included, share the rest). It walks over chunks of tokens and computes the
    gradients on the way, so that memory does not grow with tokens times vocabulary (as Liger
    Kernel and Cut Cross-Entropy do on GPUs). Give it real tokens only: padding counts nowhere.

    Args:
        hidden: (tokens, d_model).
        weight: the output matrix, (vocabulary, d_model).
        targets: ids, (tokens,).
        smoothing: probability mass spread evenly over the vocabulary, in [0, 1).

    Returns:
        The smoothed loss, with gradients, and the plain negative log-likelihood in nats, without;
        both summed over tokens.
    """
    return _LinearCrossEntropy.apply(hidden, weight, targets, smoothing)
