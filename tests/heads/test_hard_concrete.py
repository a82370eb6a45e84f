"""Gates against Monte-Carlo, finite differences, and the model that they are folded into."""

import math

import pytest
import torch

from headlab.errors import HeadlabError
from headlab.head_names import Head
from headlab.heads.hard_concrete import HardConcreteGates
from headlab.heads.surgery import fold_gates
from headlab.transformer import Transformer

BOUND = math.log(1.1 / 0.1)  # 2.398: from here on the gate without noise is 0 or 1


def many(log_alpha: float, temperature: float = 0.33) -> HardConcreteGates:
    """Two hundred thousand gates that are all alike."""
    layers, heads = 400, 500
    names = [Head("encoder", i, j) for i in range(layers) for j in range(heads)]
    return HardConcreteGates(
        names,
        {"encoder": (layers, heads)},
        {"encoder": 1.0},
        temperature=temperature,
        start=log_alpha,
    ).double()


def tiny(**options) -> Transformer:
    torch.manual_seed(0)
    return Transformer(
        source_vocab_size=30,
        target_vocab_size=30,
        d_model=16,
        heads=4,
        encoder_layers=2,
        decoder_layers=2,
        feed_forward=16,
        dropout=0.0,
        **options,
    )


PENALTY = {"encoder": 0.1, "decoder": 0.2, "cross": 0.3}


@pytest.mark.parametrize("temperature", [0.33, 2 / 3])
@pytest.mark.parametrize("log_alpha", [-3.0, -0.5, 0.0, 2.0, 4.0])
def test_expectations_are_those_of_the_samples(log_alpha: float, temperature: float) -> None:
    gates = many(log_alpha, temperature)
    torch.manual_seed(1)
    samples = gates.sample()["encoder"].detach().flatten()
    error = 5 / math.sqrt(samples.numel())
    is_open = gates.open_probabilities()["encoder"][0].item()
    assert (samples > 0).double().mean().item() == pytest.approx(is_open, abs=error / 2)
    # E[g] is the integral of P(g > t) over t from 0 to 1, and below 1 the distribution function
    # of the gate is that of the concrete distribution (Louizos et al. 2018, eq. 11).
    t = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    s = (t + 0.1) / 1.2
    above = 1 - torch.sigmoid(temperature * (s.log() - (1 - s).log()) - log_alpha)
    assert samples.mean().item() == pytest.approx(above.mean().item(), abs=error)
    assert gates.expected_open()["encoder"].item() == pytest.approx(samples.numel() * is_open)


@pytest.mark.parametrize(
    ("log_alpha", "gate"),
    [(-BOUND - 1e-3, 0.0), (BOUND + 1e-3, 1.0), (-30.0, 0.0), (30.0, 1.0), (0.0, 0.5)],
)
def test_the_gate_without_noise(log_alpha: float, gate: float) -> None:
    gates = HardConcreteGates.of_model(tiny(), penalty=PENALTY, start=log_alpha)
    assert all(table.unique().tolist() == [gate] for table in gates.evaluation().values())


def test_just_inside_the_bounds_gates_are_fractions() -> None:
    for log_alpha in (-BOUND + 1e-3, BOUND - 1e-3):
        gates = HardConcreteGates.of_model(tiny(), penalty=PENALTY, start=log_alpha)
        assert all(0 < value < 1 for value in gates.by_head().values())


def test_the_numbers_of_the_published_figure() -> None:
    """The curves of Voita et al.'s figure 6 fit temperature 0.5: P(0) 0.23, 0.04, 0.86."""
    for log_alpha, closed in ((0.0, 0.23), (2.0, 0.04), (-3.0, 0.86)):
        gates = many(log_alpha, 0.5)
        assert 1 - gates.open_probabilities()["encoder"][0].item() == pytest.approx(
            closed, abs=0.006
        )


def test_a_start_from_the_bound_on_leaves_the_model_as_it_is() -> None:
    model = tiny().eval()
    ids = torch.randint(4, 30, (3, 7))
    gates = HardConcreteGates.of_model(model, penalty=PENALTY, start=2.4).evaluation()
    assert torch.equal(model(ids, ids, gates), model(ids, ids))


def test_gradients_are_finite_differences_under_the_same_noise() -> None:
    model = tiny().double().eval()
    ids = torch.randint(4, 30, (2, 6), generator=torch.Generator().manual_seed(2))
    gates = HardConcreteGates.of_model(model, penalty=PENALTY, start=0.3).double()
    generator = torch.Generator().manual_seed(3)
    noise = {site: torch.rand(8, generator=generator, dtype=torch.float64) for site in gates.sites}

    def objective() -> torch.Tensor:
        return model(ids, ids, gates.sample(noise)).square().mean() + gates.cost()

    objective().backward()
    step = 1e-6
    seen = 0
    for parameter in gates.parameters():
        for i in range(parameter.numel()):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter[i] += sign * step
                    values.append(objective().item())
                    parameter[i] -= sign * step
            expected = (values[0] - values[1]) / (2 * step)
            assert parameter.grad[i].item() == pytest.approx(expected, abs=1e-7, rel=1e-5)
            seen += 1
    assert seen == 24


def test_the_folded_model_is_the_gated_one() -> None:
    model = tiny(ablate=["cross.1.0", "encoder.0.2"], attention={"bias": True}).eval()
    gates = HardConcreteGates.of_model(model, penalty=PENALTY)
    torch.manual_seed(4)
    with torch.no_grad():
        for log_alpha in gates.parameters():
            log_alpha.copy_(torch.randn_like(log_alpha) * 3)
    values = gates.evaluation()
    closed = [one for one, value in gates.by_head().items() if value == 0]
    assert 0 < len(closed) < len(model.head_names)
    folded = fold_gates(model, values)
    ids = torch.randint(4, 30, (3, 7))
    torch.testing.assert_close(folded(ids, ids), model(ids, ids, values), atol=1e-6, rtol=0)
    assert set(model.head_names) - set(folded.head_names) == set(closed)


def test_only_heads_that_exist_and_cost_something_have_gates() -> None:
    model = tiny(ablate=["encoder.0.*", "encoder.1.1"])
    gates = HardConcreteGates.of_model(model, penalty={"encoder": 0.5, "decoder": 0, "cross": None})
    assert gates.sites == ["encoder"]
    assert gates.heads == [Head("encoder", 1, head) for head in (0, 2, 3)]
    sampled = gates.sample()
    assert set(sampled) == {"encoder"}
    assert sampled["encoder"].shape == (2, 4)
    assert sampled["encoder"][0].tolist() == [1.0] * 4
    probability = gates.open_probabilities()["encoder"]
    assert gates.cost().item() == pytest.approx(0.5 * probability.sum().item())


def test_sites_pay_by_their_own_weights() -> None:
    gates = HardConcreteGates.of_model(tiny(), penalty=PENALTY, start=0.0)
    gates.cost().backward()
    one = gates.log_alpha["encoder"].grad[0].item()
    for site, times in (("decoder", 2), ("cross", 3)):
        assert gates.log_alpha[site].grad.tolist() == pytest.approx([times * one] * 8)


def test_the_same_gates_from_their_settings() -> None:
    model = tiny()
    gates = HardConcreteGates.of_model(model, penalty=PENALTY, temperature=0.5, low=-0.2, start=1.0)
    again = HardConcreteGates.of_model(model, **gates.settings)
    again.load_state_dict(gates.state_dict())
    assert again.by_head() == gates.by_head()
    assert again.cost() == gates.cost()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"penalty": {"encoder": -1}}, "gates.penalty.encoder=-1 must be at least 0"),
        ({"penalty": {"encoder": math.nan}}, "gates.penalty.encoder=nan must be"),
        ({"penalty": {"middle": 1}}, "gates.penalty.middle: no such site; choose from encoder"),
        ({"penalty": {"encoder": 0, "cross": None}}, "gates.penalty is 0 everywhere"),
        ({"temperature": 0}, "gates.temperature=0 must be above 0"),
        ({"low": 0.0}, "gates.low=0.0 must be below 0"),
        ({"high": 1.0}, "gates.high=1.0 must be above 1"),
        ({"start": math.inf}, "gates.start=inf must be a finite number"),
    ],
)
def test_settings_that_make_no_sense(changed: dict, message: str) -> None:
    with pytest.raises(HeadlabError, match="^" + message.replace(".", r"\.")):
        HardConcreteGates.of_model(tiny(), **{"penalty": PENALTY, **changed})


def test_a_site_without_heads_cannot_be_gated() -> None:
    model = tiny(ablate=["cross.*.*"])
    with pytest.raises(HeadlabError, match=r"gates\.penalty: the model has no heads left at cross"):
        HardConcreteGates.of_model(model, penalty={"cross": 1.0})
