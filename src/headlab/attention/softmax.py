"""The softmax attention itself, which every variant but the recurrent one ends in."""

import torch
import torch.nn.functional as F
from torch import Tensor

from headlab.dropout import dropout as drop


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``softmax(q k^T scale + bias, masked) v`` for each head (Vaswani et al. 2017, eq. 1).

    Args:
        q: (batch, heads, queries, width).
        k, v: (batch, kv_heads, keys, width), (batch, kv_heads, keys, value width); query head i
            reads key/value head i // (heads / kv_heads).
        mask: boolean, True = may attend, broadcastable to (batch, heads, queries, keys). A query
            with nothing to attend to gets zeros, in output and gradient.
        bias: added to the scores, broadcastable to the same shape.
        dropout: probability of dropping a weight.
        scale: None: 1 / sqrt(width).
        need_weights: compute step by step, and return the weights.

    Returns:
        The heads' outputs, (batch, heads, queries, value width), and the weights before dropout,
        (batch, heads, queries, keys), or None when they were not asked for. The fused kernel,
        which serves when they are not, has the same output and gradients.
    """
    grouped = k.size(1) != q.size(1)
    # On the CPU PyTorch has no fused kernel with dropout either, and ours is cheaper.
    fused = not need_weights and not (dropout and q.device.type == "cpu")
    if fused:
        if bias is not None:
            mask = bias.to(q) if mask is None else bias.to(q).masked_fill(~mask, -torch.inf)
        if grouped and q.size(2) == 1 and (mask is None or mask.dim() == 4):
            # A step of decoding: the heads of a group are queries of one key/value head, which is
            # then read once for all of them.
            if mask is not None and mask.size(1) > 1:
                mask = mask.transpose(1, 2).unflatten(2, (k.size(1), -1))[:, 0]
            folded = F.scaled_dot_product_attention(
                q.unflatten(1, (k.size(1), -1)).squeeze(3), k, v, mask, dropout, scale=scale
            )
            return folded.flatten(1, 2).unsqueeze(2), None
        return F.scaled_dot_product_attention(
            q, k, v, mask, dropout, scale=scale, enable_gqa=grouped
        ), None
    if grouped:
        group = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-2, -1)
    scores = scores / q.size(-1) ** 0.5 if scale is None else scores * scale
    if bias is not None:
        scores = scores + bias.to(scores)
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        # The lowest finite number, not -inf, so that a row of nothing is not 0/0; what it then
        # spreads over the forbidden keys is taken back by the second line.
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        weights = weights.masked_fill(~mask, 0.0)
    heads = drop(weights, dropout) @ v
    return heads, weights if need_weights else None
