"""The gated delta rule: in chunks for training, step by step for decoding, as weights to look at.

All functions take, for each head and position, q, k (batch, heads, length, width), v (batch,
heads, length, value width), the logarithm of the decay a, and the write strength b, each
(batch, heads, length). The state S is (batch, heads, value width, width); S_0 = 0.
"""

import torch
from torch import Tensor


def recurrent_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence as it is written, a position at a time (Yang et al. 2024, eq. 10).

    Returns:
        The outputs, (batch, heads, length, value width), and the last state.
    """
    if state is None:
        state = v.new_zeros(*v.shape[:2], v.size(-1), k.size(-1))
    outputs = []
    for t in range(q.size(2)):
        key, value = k[:, :, t], v[:, :, t]
        state = state * decay[:, :, t, None, None].exp()
        known = (state @ key.unsqueeze(-1)).squeeze(-1)
        change = write[:, :, t, None] * (value - known)
        state = state + change.unsqueeze(-1) * key.unsqueeze(-2)
        outputs.append((state @ q[:, :, t].unsqueeze(-1)).squeeze(-1))
    if not outputs:
        return v.new_zeros(v.shape), state
    return torch.stack(outputs, dim=2), state


def chunked_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    write: Tensor,
    chunk: int,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same numbers, ``chunk`` positions at a time (Yang et al. 2024, section 3.2).

    Within a chunk that starts from S_0, let G_i be the sum of log a up to position i, and u_i what
    position i writes: S_i = exp(G_i) S_0 + sum_{j<=i} exp(G_i - G_j) u_j k_j^T. Putting this into
    u_i = b_i (v_i - a_i S_{i-1} k_i) gives a triangular system for all u of the chunk at once::

        u_i + b_i sum_{j<i} exp(G_i - G_j) (k_i . k_j) u_j = b_i (v_i - exp(G_i) S_0 k_i)

    The system does not depend on S_0, so all chunks are solved together; only S_0 is handed from
    one to the next.

    Returns:
        As ``recurrent_delta_rule``.
    """
    length, width = q.size(2), k.size(-1)
    if state is None:
        state = v.new_zeros(*v.shape[:2], v.size(-1), width)
    chunk = min(chunk, max(length, 1))
    missing = -length % chunk
    if missing:  # positions that neither write nor fade
        q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in (q, k, v))
        decay, write = (torch.nn.functional.pad(x, (0, missing)) for x in (decay, write))

    def in_chunks(x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, chunk))

    q, k, v, decay, write = (in_chunks(x) for x in (q, k, v, decay, write))
    total, fading = _fading(decay)
    system = _system(k, fading, write)
    from_start = write.unsqueeze(-1) * total.exp().unsqueeze(-1) * k
    solved = _solve(system, torch.cat([write.unsqueeze(-1) * v, from_start], dim=-1))
    written, undone = solved.split([v.size(-1), width], dim=-1)
    scores = (q @ k.transpose(-2, -1)) * fading
    outputs = []
    for n in range(q.size(2)):
        change = written[:, :, n] - undone[:, :, n] @ state.transpose(-2, -1)
        seen = total[:, :, n].exp().unsqueeze(-1) * (q[:, :, n] @ state.transpose(-2, -1))
        outputs.append(seen + scores[:, :, n] @ change)
        last = total[:, :, n, -1:]
        kept = (last - total[:, :, n]).exp().unsqueeze(-1) * k[:, :, n]
        state = last.unsqueeze(-1).exp() * state + change.transpose(-2, -1) @ kept
    if not outputs:
        return v.new_zeros(*v.shape[:2], 0, v.size(-1)), state
    return torch.cat(outputs, dim=2)[:, :, :length], state


def implied_weights(q: Tensor, k: Tensor, decay: Tensor, write: Tensor) -> Tensor:
    """The w in ``o_t = sum_s w_ts v_s``, (batch, heads, length, length), from S_0 = 0.

    The solution of the triangular system of ``chunked_delta_rule`` for one chunk over everything:
    exact, and quadratic in the length.
    """
    _, fading = _fading(decay)
    scores = (q @ k.transpose(-2, -1)) * fading
    return scores @ _solve(_system(k, fading, write), torch.diag_embed(write))


def _fading(decay: Tensor) -> tuple[Tensor, Tensor]:
    """G, and exp(G_i - G_j) for j <= i with 0 elsewhere, over the last dimension."""
    total = decay.cumsum(dim=-1)
    length = decay.size(-1)
    past = torch.ones(length, length, dtype=torch.bool, device=decay.device).tril()
    # Masked before the exponential, which would overflow above the diagonal.
    difference = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~past, -torch.inf)
    return total, difference.exp()


def _system(k: Tensor, fading: Tensor, write: Tensor) -> Tensor:
    """b_i exp(G_i - G_j) (k_i . k_j) for j < i."""
    return (write.unsqueeze(-1) * (k @ k.transpose(-2, -1)) * fading).tril(-1)


def _solve(system: Tensor, right: Tensor) -> Tensor:
    """x of (I + system) x = right; the diagonal of ``system`` is taken as 1."""
    # In single precision at least: there is no solver for less.
    dtype = torch.promote_types(torch.promote_types(system.dtype, right.dtype), torch.float32)
    solution = torch.linalg.solve_triangular(
        system.to(dtype), right.to(dtype), upper=False, unitriangular=True
    )
    return solution.to(right.dtype)


class RecurrentCache:
    """The state of a recurrence, and the few inputs that its convolution still needs.

    Its size does not depend on how many positions it has seen. It remembers the state before the
    last call as well, with what that call read, so that ``truncate`` can take back some of it.

    Args:
        remembered: how many past inputs the convolution needs.
    """

    def __init__(self, remembered: int) -> None:
        self.length, self.remembered = 0, remembered
        self.state: Tensor | None = None
        self.tail: Tensor | None = None  # (batch, remembered, channels)
        self._before: tuple[int, Tensor | None, Tensor | None] = (0, None, None)
        self._read: tuple[Tensor, ...] | None = None

    def advance(
        self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor, mixed: Tensor
    ) -> Tensor:
        """The outputs of the new positions, (batch, heads, new, value width).

        Args:
            q, k, v, decay, write: of the new positions.
            mixed: what the convolution reads, (batch, new, channels).
        """
        self._before = self.length, self.state, self.tail
        self._read = (q, k, v, decay, write, mixed) if q.size(2) > 1 else None
        outputs, self.state = recurrent_delta_rule(q, k, v, decay, write, self.state)
        if self.tail is None:
            self.tail = mixed.new_zeros(len(mixed), self.remembered, mixed.size(2))
        self.tail = torch.cat([self.tail, mixed], dim=1)[:, -self.remembered :]
        self.length += q.size(2)
        return outputs

    def reorder(self, rows: Tensor) -> None:
        """Keep the given rows in the given order; a row may be repeated."""
        if self.state is not None and self.tail is not None:
            self.state, self.tail = (
                self.state.index_select(0, rows),
                self.tail.index_select(0, rows),
            )
        length, state, tail = self._before
        if state is not None and tail is not None:
            self._before = length, state.index_select(0, rows), tail.index_select(0, rows)
        if self._read is not None:
            self._read = tuple(x.index_select(0, rows) for x in self._read)

    def truncate(self, length: int) -> None:
        """Forget the positions from ``length`` on; only those of the last call can be."""
        first, state, tail = self._before
        if length == self.length:
            return
        if not first <= length <= self.length:
            raise ValueError(
                f"a recurrent state of {self.length} positions can be cut to {first} at least, "
                f"not to {length}"
            )
        read = self._read
        self.length, self.state, self.tail, self._read = first, state, tail, None
        if length > first and read is not None:
            *parts, mixed = read
            new = length - first
            q, k, v, decay, write = (x[:, :, :new] for x in parts)
            self.advance(q, k, v, decay, write, mixed[:, :new])

    def numbers(self) -> int:
        """How many numbers are kept for each sentence; without what ``truncate`` needs."""
        if self.state is None or self.tail is None:
            return 0
        return self.state[0].numel() + self.tail[0].numel()
