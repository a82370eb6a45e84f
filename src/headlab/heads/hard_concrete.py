"""Learnt gates: each head of a trained model learns whether it is needed.

The gate of a head is a random number between 0 and 1 that multiplies the head's output, the same
for all sentences; one parameter, log alpha, says where it tends to lie. While training it is drawn
from the hard concrete distribution (Louizos, Welling, Kingma 2018, "Learning Sparse Neural Networks
through L0 Regularization", section 2.3), as Voita et al. 2019 do for heads (section 6; the details
are those of their code)::

    s = sigmoid((log u - log(1 - u) + log alpha) / temperature)      u uniform in (0, 1)
    gate = clip(s (high - low) + low, 0, 1)                          low < 0 < 1 < high

Stretched beyond 0 and 1 and clipped, it is 0 or 1 exactly with probabilities above zero, and yet
has a gradient. How many heads are open is expected to be

    sum over heads of P(gate != 0) = sigmoid(log alpha - temperature log(-low / high))

(Louizos et al., eq. 12), which is added to the loss, times a weight: a head whose help is worth
less closes. Without noise the gate is ``clip(sigmoid(log alpha) (high - low) + low, 0, 1)``:
Voita's code takes no temperature there, and neither does this. With the stretch of the paper it is
exactly 0 from log alpha = -2.398 down and exactly 1 from 2.398 up.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headlab.errors import HeadlabError
from headlab.head_names import SITES, TITLES, Head

if TYPE_CHECKING:
    from headlab.transformer import Transformer

EPSILON = 1e-6  # u lies between this and 1 minus this


class HardConcreteGates(nn.Module):
    """A gate for every head of the chosen sites.

    Args:
        heads: the heads that the model has, as ``Transformer.head_names``.
        shapes: site -> (layers, heads), by the heads' numbers, missing ones included.
        penalty: site -> what an open head costs, in nats a target token; the loss grows by the
            weight times the expected number of open heads (the sum, as in the paper; Voita's code
            divides the sum over all layers by their number, so its 0.1 with 18 layers is 0.0056
            here). A site with 0 or None has no gates.
        temperature: of the noise; near 0 gates are 0 or 1, a large one makes them fractional.
        low, high: the stretch.
        start: log alpha at the beginning. 0 would halve every head of the model at once, 2 makes
            each 0.96 of what it was; from 2.398 up the model begins as it is.

    Raises:
        HeadlabError: a value out of its range, by its configuration key, or there is no head at the
            sites that have a weight.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        shapes: Mapping[str, tuple[int, int]],
        penalty: Mapping[str, float | None],
        temperature: float = 0.33,
        low: float = -0.1,
        high: float = 1.1,
        start: float = 2.0,
    ) -> None:
        super().__init__()
        check_gates(penalty=penalty, temperature=temperature, low=low, high=high, start=start)
        self.penalty = {site: float(penalty.get(site) or 0.0) for site in SITES}
        self.temperature, self.low, self.high = temperature, low, high
        self.shapes = dict(shapes)
        self.heads = [one for one in heads if self.penalty[one.site]]
        if not self.heads:
            places = ", ".join(site for site in SITES if self.penalty[site])
            raise HeadlabError(f"gates.penalty: the model has no heads left at {places}")
        self.log_alpha = nn.ParameterDict()
        for site in self.sites:
            count = sum(one.site == site for one in self.heads)
            self.log_alpha[site] = nn.Parameter(torch.full((count,), float(start)))

    @classmethod
    def of_model(cls, model: "Transformer", **settings: Any) -> "HardConcreteGates":
        """Gates for a model's heads."""
        shapes = {site: (len(layers), model.heads) for site, layers in model.kept.items()}
        return cls(model.head_names, shapes, **settings)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments for ``of_model`` that make the same gates, but for the learnt values."""
        stretch = {"low": self.low, "high": self.high}
        return {"penalty": self.penalty, "temperature": self.temperature, **stretch}

    @property
    def sites(self) -> list[str]:
        """The sites with gates."""
        return [site for site in SITES if any(one.site == site for one in self.heads)]

    def noise(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Uniform random numbers for ``sample``, drawn on the CPU: a seed means the same anywhere.

        Args:
            generator: None: PyTorch's global one.
        """
        return {
            site: torch.rand(log_alpha.shape, dtype=log_alpha.dtype, generator=generator).to(
                log_alpha.device
            )
            for site, log_alpha in self.log_alpha.items()
        }

    def sample(self, noise: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Gates for one training step.

        Args:
            noise: site -> a uniform number in (0, 1) for each gate of the site; None: drawn anew.

        Returns:
            Site -> (layers, heads), as ``Transformer`` takes them; missing heads have gate 1.
        """
        gates = {}
        noise = self.noise() if noise is None else noise
        for site, log_alpha in self.log_alpha.items():
            u = noise[site].clamp(EPSILON, 1.0 - EPSILON)
            s = torch.sigmoid((u.log() - (-u).log1p() + log_alpha) / self.temperature)
            gates[site] = self._table(site, self._stretch(s))
        return gates

    def evaluation(self) -> dict[str, Tensor]:
        """The gates without noise; returned as by ``sample``."""
        return {
            site: self._table(site, self._stretch(torch.sigmoid(log_alpha)))
            for site, log_alpha in self.log_alpha.items()
        }

    def open_probabilities(self) -> dict[str, Tensor]:
        """Site -> P(gate != 0) of each of its heads, in order, (heads of the site,).

        Voita's code clips them to [1e-6, 1 - 1e-6], which changes no decimal that is shown.
        """
        shift = self.temperature * math.log(-self.low / self.high)
        return {site: torch.sigmoid(a - shift) for site, a in self.log_alpha.items()}

    def expected_open(self) -> dict[str, Tensor]:
        """Site -> the expected number of open heads, a scalar."""
        return {site: p.sum() for site, p in self.open_probabilities().items()}

    def cost(self) -> Tensor:
        """What is added to the loss a token: over sites, weight times expected open heads."""
        costs = [self.penalty[site] * count for site, count in self.expected_open().items()]
        return torch.stack(costs).sum()

    def by_head(self) -> dict[Head, float]:
        """The gate without noise of every head that has one."""
        with torch.no_grad():
            gates = {site: gate.tolist() for site, gate in self.evaluation().items()}
        return {one: gates[one.site][one.layer][one.head] for one in self.heads}

    def _stretch(self, s: Tensor) -> Tensor:
        return (s * (self.high - self.low) + self.low).clamp(0.0, 1.0)

    def _table(self, site: str, gates: Tensor) -> Tensor:
        places = [one[1:] for one in self.heads if one.site == site]
        layers, heads = torch.tensor(places, device=gates.device).T
        table = gates.new_ones(self.shapes[site])
        return table.index_put((layers, heads), gates)


def check_gates(
    penalty: Mapping[str, float | None],
    temperature: float,
    low: float,
    high: float,
    start: float,
    learning_rate: float = 1.0,
) -> None:
    """Refuse settings of gates that make no sense, by configuration key.

    Raises:
        HeadlabError: names key, value and remedy.
    """
    for site, weight in penalty.items():
        if site not in SITES:
            raise HeadlabError(
                f"gates.penalty.{site}: no such site; choose from {', '.join(SITES)}"
            )
        if weight is not None and not 0.0 <= weight < math.inf:
            raise HeadlabError(
                f"gates.penalty.{site}={weight} must be at least 0; 0 leaves the "
                f"{TITLES[site]} without gates"
            )
    if not any(penalty.values()):
        raise HeadlabError(
            "gates.penalty is 0 everywhere: nothing would close; give a site a weight such as "
            "gates.penalty.encoder=0.005, or take gates=none"
        )
    for key, value in (("temperature", temperature), ("learning_rate", learning_rate)):
        if not 0.0 < value < math.inf:
            raise HeadlabError(f"gates.{key}={value} must be above 0")
    if not -math.inf < low < 0.0:
        raise HeadlabError(f"gates.low={low} must be below 0, or no gate would ever be exactly 0")
    if not 1.0 < high < math.inf:
        raise HeadlabError(f"gates.high={high} must be above 1, or no gate would ever be exactly 1")
    if not math.isfinite(start):
        raise HeadlabError(f"gates.start={start} must be a finite number")
