"""Where predictive coding, equilibrium propagation, dual propagation and PEPITA equal something known.

All in float64, and against twins that follow the equations with plain autograd.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from test_rules_of_the_field import IMAGES, NETS, assert_same, backprop, batch, gradients, net_of
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.models import PlainMLP, ResMLP, StudentNet
from sonde.network import Network
from sonde.network.chain import chain
from sonde.rules import (
    DualPropagation,
    EquilibriumPropagation,
    ForwardForward,
    Pair,
    Pepita,
    PredictiveCoding,
    Rule,
    Signal,
)
from sonde.rules.pc import relaxed
from sonde.rules.rule import Evaluation, Route
from sonde.training.credit_assignment import CreditAssignment


def signal_of(net: Any, x: Tensor, y: Tensor, loss: Any = F.cross_entropy) -> Signal:
    """What a rule of the route `states` sees of a batch."""
    seen: list[Signal] = []

    class Looking(Rule):
        route: Route = "states"

        def pairs(self, state: Any, signal: Signal) -> list[Pair]:
            seen.append(signal)
            return []

    CreditAssignment(net, Looking(), sample=x, loss=loss).backward(x, y)
    net.zero_grad()
    return seen[0]


def errors_twin(net: Network, signal: Signal, beta: float, steps: int, rate: float) -> list[Tensor]:
    """ε_1 … ε_L after descending the energy by autograd, all states at once."""
    h = [state.clone() for state in signal.states]
    for _ in range(steps):
        free = [state.requires_grad_() for state in h[1:]]
        ahead = [h[l + 1] - net.advance(h[l], l, signal.x) for l in range(net.depth)]
        energy = sum((one.square().sum() / 2 for one in ahead), torch.zeros(()))
        energy = energy + beta * F.cross_entropy(net.tail(h[-1], net.depth, signal.x).output, signal.y, reduction="sum")
        slopes = torch.autograd.grad(energy, free)
        h = [h[0], *((state - rate * slope).detach() for state, slope in zip(free, slopes, strict=True))]
    return [(h[l + 1] - net.advance(h[l], l, signal.x)).detach() for l in range(net.depth)]


@pytest.mark.parametrize("name", ["residual_mlp", "vit_mini", "conv_net", "somebody's ViT"])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_states_descend_the_energy_as_autograd_does(name: str, steps: int) -> None:
    net, (x, y) = net_of(name), batch()
    signal = signal_of(net, x, y)
    errors = errors_twin(net, signal, 0.7, steps, 0.3)
    found = {unit.layer: error for unit, error in relaxed(signal, 0.7, steps, 0.3)}
    assert sorted(found) == list(range(max(1, net.depth + 1 - steps), net.depth + 1))
    for layer, error in enumerate(errors, start=1):
        torch.testing.assert_close(found.get(layer, torch.zeros_like(error)), error, rtol=1e-9, atol=1e-14)


def test_small_moves_of_large_states_are_not_rounded_away() -> None:
    """In float32, states of size 10⁴ round a move of 10⁻⁴ away; ε_L is that move."""
    net, (x, y) = net_of("residual_mlp"), batch()
    with torch.no_grad():
        for p in net.embed.parameters():
            p.mul_(1e4)
    exact = relaxed(signal_of(net, x, y), 1e-3, 1, 0.1)
    single = relaxed(signal_of(net.float(), x.float(), y), 1e-3, 1, 0.1)
    for (_, error), (_, rounded) in zip(exact, single, strict=True):
        torch.testing.assert_close(rounded.double(), error, rtol=1e-3, atol=1e-3 * float(error.abs().max()))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    "rule",
    [
        PredictiveCoding(learn_at="arrival", rate=1.0, credit_scale="none"),
        DualPropagation(credit_scale="none", beta=3.0),
    ],
    ids=["Z-IL", "dual propagation, α = ½"],
)
def test_it_is_backprop(name: str, rule: Rule) -> None:
    net, (x, y) = net_of(name), batch()
    expected = backprop(net, x, y)
    CreditAssignment(net, rule, sample=x).backward(x, y)
    assert_same(gradients(net), expected)


def test_learning_on_arrival_is_the_error_that_inference_brings_first() -> None:
    net, (x, y) = net_of("residual_mlp"), batch()
    signal = signal_of(net, x, y)
    rule = PredictiveCoding(learn_at="arrival", rate=0.6)
    credits = rule.credits(rule.init(None, None), signal)  # type: ignore[arg-type]
    for steps in range(1, net.depth + 1):
        errors = errors_twin(net, signal, 1.0, steps, 0.6)
        layer = net.depth + 1 - steps
        torch.testing.assert_close(credits[layer], -errors[layer - 1], rtol=1e-9, atol=1e-14)
        torch.testing.assert_close(credits[layer], 0.6**steps * signal.gradients[layer], rtol=1e-9, atol=1e-14)


def small(share: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The cross-entropy times a small number."""
    return lambda z, y: share * F.cross_entropy(z, y)


def apart(rule: Rule, share: float = 1.0) -> list[float]:
    """Of every layer, the distance of the rule's credit to the gradient, relative to it."""
    net, (x, y) = net_of("residual_mlp"), batch()
    signal = signal_of(net, x, y, small(share))
    credits = rule.credits(None, signal)
    return [float((a - g).norm() / g.norm()) for a, g in zip(credits, signal.gradients, strict=True)]


SETTLED: dict[str, Any] = {"steps": 400, "rate": 0.3}


def test_predictive_coding_at_equilibrium_is_backprop_when_the_error_is_small() -> None:
    large, small = (apart(PredictiveCoding(**SETTLED), share) for share in (1e-2, 1e-3))
    assert max(small) < 1e-2
    for before, after in zip(large, small, strict=True):
        assert after == pytest.approx(before / 10, rel=0.15)


@pytest.mark.parametrize(("one_sided", "order"), [(False, 2), (True, 1)])
def test_equilibrium_propagation_tends_to_backprop_with_the_order_of_its_nudges(one_sided: bool, order: int) -> None:
    first, half = (apart(EquilibriumPropagation(beta=beta, one_sided=one_sided, **SETTLED)) for beta in (2e-2, 1e-2))
    for before, after in zip(first, half, strict=True):
        assert after == pytest.approx(before / 2**order, rel=0.1)
    if not one_sided:
        net, (x, y) = net_of("residual_mlp"), batch()
        signal = signal_of(net, x, y)
        credits = EquilibriumPropagation(beta=1e-2, **SETTLED).credits(None, signal)  # type: ignore[arg-type]
        for a, g in zip(credits, signal.gradients, strict=True):
            assert F.cosine_similarity(a.flatten(1), g.flatten(1), eps=0).min() >= 0.9999


def test_dual_propagation_tends_to_backprop_when_the_nudge_does() -> None:
    first, half = (apart(DualPropagation(alpha=1.0, beta=beta, passes=3)) for beta in (2e-3, 1e-3))
    assert first[-1] > 0
    for before, after in zip(first, half, strict=True):
        assert after == pytest.approx(before / 2, rel=0.1)


def test_the_two_states_of_dual_propagation_have_the_mean_and_the_difference_of_its_equations() -> None:
    net, (x, y) = net_of("residual_mlp"), batch()
    signal = signal_of(net, x, y)
    alpha, beta = 0.8, 0.3
    found = {p.unit.layer: p for p in DualPropagation(alpha=alpha, beta=beta).pairs(None, signal)}  # type: ignore[arg-type]
    mean = signal.states[0]
    for l in range(net.depth):
        torch.testing.assert_close(found[l + 1].unit.input, mean, rtol=1e-12, atol=0)
        delta = -beta * found[l + 1].credit
        prediction = net.advance(mean, l, x).detach()
        plus, minus = prediction + alpha * delta, prediction - (1 - alpha) * delta
        mean = alpha * plus + (1 - alpha) * minus


def linear() -> Network:
    return StudentNet(d=6, L=2, alpha=0.0).build(IMAGES, generator(2, "init")).double()


def with_matrix(net: Network, x: Tensor, f_iC: Tensor, **options: Any) -> CreditAssignment:
    assignment = CreditAssignment(net, Pepita(credit_scale="none", **options), sample=x)
    assignment.state.matrices[0].copy_(f_iC)  # type: ignore[attr-defined]
    return assignment


def test_pepitas_matrix_is_drawn_with_the_published_deviation() -> None:
    net, (x, _) = net_of("residual_mlp"), batch()
    (f_iC,) = CreditAssignment(net, Pepita(), sample=x, seed=3).state.matrices  # type: ignore[attr-defined]
    assert f_iC.shape == (64, 4)
    assert float(f_iC.std()) == pytest.approx(0.05 * 2 * (6 / 64) ** 0.5, rel=0.15)


@pytest.mark.parametrize("name", ["residual_mlp", "conv_net"])
def test_pepita_is_the_derivative_along_the_changed_input_when_its_matrix_is_small(name: str) -> None:
    net, (x, y) = net_of(name), batch()
    net.eval()
    f_iC = torch.randn(64, 4, generator=generator(7, "F")).double()
    signal = signal_of(net, x, y)
    direction = (signal.error_NC @ f_iC.T).view_as(x)
    _, slopes = torch.autograd.functional.jvp(lambda x: tuple(net.run(x).states), x, direction)
    epsilon = 1e-5
    assignment = with_matrix(net, x, epsilon * f_iC)
    credits = assignment.rule.credits(assignment.state, signal)
    for a, slope in zip(credits, slopes, strict=True):
        torch.testing.assert_close(a / epsilon, -slope, rtol=1e-3, atol=1e-4)


def test_pepita_with_the_derivative_of_a_linear_network_lowers_the_loss_and_with_its_opposite_does_not() -> None:
    (x, y), whole = batch(), linear()
    jacobian_Ci = torch.func.jacrev(lambda one: whole(one[None])[0])(x[0]).flatten(1)
    for sign, lowers in ((-1, True), (1, False)):
        net = linear()
        assignment = with_matrix(net, x, 1e-3 * sign * jacobian_Ci.T)
        before = assignment.backward(x, y).loss
        credited = [*net.embed.parameters(), *net.blocks.parameters()]
        with torch.no_grad():
            for p in credited:
                p -= 1e-1 * p.grad  # type: ignore[operator]
        assert (F.cross_entropy(net(x), y) < before) == lowers


@pytest.mark.parametrize(("model", "derivative"), [("plain", "unit"), ("plain", "none"), ("residual", "none")])
def test_pepitas_gradients_are_those_of_its_equations(model: str, derivative: str) -> None:
    kind = PlainMLP if model == "plain" else ResMLP
    net, (x, y) = kind(d=6, L=2).build(IMAGES, generator(2, "init")).double(), batch()
    f_iC = torch.randn(64, 4, generator=generator(7, "F")).double()
    with_matrix(net, x, f_iC, derivative=derivative).backward(x, y)
    states, z_NC = net.states(x)
    e_NC = (z_NC.softmax(-1) - F.one_hot(y, 4)).detach()
    moved, _ = net.states(x + (e_NC @ f_iC.T).view_as(x))
    below = (x + (e_NC @ f_iC.T).view_as(x)).flatten(1)
    layers: list[Any] = [net.embed, *net.blocks]
    for layer, h, h_err in zip(layers, states, moved, strict=True):
        a = (h - h_err).detach()
        if derivative == "unit" and layer is not net.embed:
            a = a * (layer.linear(below) > 0)
        torch.testing.assert_close(layer.linear.weight.grad, a.T @ below / len(x))
        below = h_err.detach()
    torch.testing.assert_close(net.readout.out_head.weight.grad, e_NC.T @ below / len(x))  # type: ignore[union-attr, operator]


def test_pepita_without_the_derivative_refuses_units_of_several_layers() -> None:
    net, (x, _) = net_of("residual_mlp"), batch()
    with pytest.raises(SondeError, match="derivative=none"):
        CreditAssignment(net, Pepita(derivative="none"), sample=x)


def test_depth_scale_divides_what_a_block_adds_by_the_root_of_the_depth() -> None:
    net, (x, _) = net_of("residual_mlp"), batch()
    states, _ = net.states(x)
    CreditAssignment(net, PredictiveCoding(depth_scale=True), sample=x)
    scaled, _ = net.states(x)
    torch.testing.assert_close(scaled[1] - scaled[0], (states[1] - states[0]) / 3**0.5)
    plain = PlainMLP(d=6, L=2).build(IMAGES, generator(2, "init")).double()
    with pytest.raises(SondeError, match="residual"):
        CreditAssignment(plain, PredictiveCoding(depth_scale=True), sample=x)


def test_the_pairs_of_a_unit_share_the_factor_of_their_sum() -> None:
    net, (x, y) = net_of("residual_mlp"), batch()
    found = []
    for scale in ("none", "rms"):
        rule = EquilibriumPropagation(credit_scale=scale, steps=5)  # type: ignore[arg-type]
        net.zero_grad()
        CreditAssignment(net, rule, sample=x).backward(x, y)
        found.append(gradients(net))
    credits = EquilibriumPropagation(steps=5).credits(None, signal_of(net, x, y))  # type: ignore[arg-type]
    for layer in range(net.depth):
        factor = 1 / (credits[layer + 1].square().mean().sqrt() + 1e-6)
        for name in (f"blocks.{layer}.w1.weight", f"blocks.{layer}.w2.bias"):
            torch.testing.assert_close(found[1][name], found[0][name] * factor)


MOVING: list[Rule] = [
    PredictiveCoding(steps=4),
    EquilibriumPropagation(steps=4),
    DualPropagation(alpha=0.7),
    Pepita(),
    ForwardForward(),
]


@pytest.mark.parametrize("rule", MOVING, ids=lambda rule: type(rule).__name__)
def test_statistics_and_random_numbers_advance_once_a_step(rule: Rule) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5)),
        *(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5)) for _ in range(2)),
        nn.Linear(8, 4),
    ).double()
    made, (x, y) = chain(net), batch()
    assignment = CreditAssignment(made, rule, sample=x)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.manual_seed(1)
    made.run(x)
    expected, drawn = {name: value.clone() for name, value in net.named_buffers()}, torch.get_rng_state()
    net.load_state_dict(before)
    torch.manual_seed(1)
    assignment.backward(x, y)
    assert torch.equal(torch.get_rng_state(), drawn)
    for name, value in net.named_buffers():
        assert torch.equal(value, expected[name]), name


# ---- Forward-Forward


def one_layer() -> tuple[Network, Tensor, Tensor]:
    net, (x, y) = PlainMLP(d=6, L=1).build(IMAGES, generator(2, "init")).double(), batch()
    return net, x, y


def test_the_gradient_of_forward_forward_is_autograds_for_both_passes() -> None:
    net, x, y = one_layer()
    assignment = CreditAssignment(net, ForwardForward(threshold=0.8), sample=x)
    drawn = assignment.state.rng.clone_state()  # type: ignore[attr-defined]
    assignment.backward(x, y)
    found = gradients(net)
    wrong = (y + torch.randint(1, 4, y.shape, generator=drawn)) % 4
    assert (wrong != y).all()
    net.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for label, sign in ((y, 1), (wrong, -1)):
        marked = x.flatten(1).clone()
        marked[:, :4] = F.one_hot(label, 4).double()
        h_0 = net.embed.linear(marked)  # type: ignore[operator, union-attr]
        read = h_0.detach() / (h_0.detach().square().mean(1, keepdim=True).sqrt() + 1e-8)
        h_1 = torch.relu(net.blocks[0].linear(read))  # type: ignore[operator, union-attr]
        for h in (h_0, h_1):
            total = total + F.softplus(sign * (0.8 * 6 - h.square().sum(1))).mean()
    total.backward()  # type: ignore[no-untyped-call]
    for name, value in gradients(net).items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-14)
    assert {"readout.out_head.weight", "readout.out_head.bias"} == found.keys() - gradients(net).keys()


@pytest.mark.parametrize("shape", [(3, 5), (3, 2, 5), (3, 5, 2, 4)], ids=["vectors", "tokens", "maps"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_goodness_of_tokens_and_maps_is_a_mean_over_places(shape: tuple[int, ...], sign: float) -> None:
    h = torch.randn(shape, generator=generator(6, "h"), dtype=torch.float64).requires_grad_()
    places = h[:, :, None] if h.ndim == 2 else h.mT if h.ndim == 3 else h.flatten(2)  # N×d×places
    total = torch.zeros((), dtype=torch.float64)
    for sample in places:
        sums = [sample[:, place].square().sum() for place in range(sample.shape[1])]
        total = total + F.softplus(sign * (0.8 * 5 - sum(sums) / len(sums)))
    (expected,) = torch.autograd.grad(total, h)
    found = ForwardForward(threshold=0.8)._credit(Evaluation(1, h, h), sign)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_goodness_tells_true_from_wrong_labels_after_training() -> None:
    net, _, _ = one_layer()
    y = torch.arange(64) % 4
    x = 0.3 * torch.randn(64, 1, 8, 8, generator=generator(5, "x")).double()
    x[:, 0, 4, :4] += F.one_hot(y, 4)
    assignment = CreditAssignment(net, ForwardForward(threshold=1.0), sample=x)
    optimiser = torch.optim.Adam(assignment.parameters(), lr=1e-2)

    def margin() -> float:
        sums_NC = assignment.predict(x).detach()
        true_N = sums_NC.gather(1, y[:, None])[:, 0]
        return float((true_N - (sums_NC.sum(1) - true_N) / 3).mean())

    margins = [margin()]
    for _ in range(3):
        for _ in range(60):
            optimiser.zero_grad()
            step = assignment.backward(x, y)
            optimiser.step()
        margins.append(margin())
    assert margins[1:] == sorted(margins[1:])  # at the start the margin is by chance
    assert margins[-1] > margins[0] + 2
    torch.testing.assert_close(step.loss, F.cross_entropy(step.output_NC, y))
    assert (assignment.predict(x).argmax(1) == y).double().mean() > 0.9


def test_forward_forward_refuses_what_it_cannot_label() -> None:
    net, x, _ = one_layer()
    with pytest.raises(SondeError, match="labels"):
        CreditAssignment(net, ForwardForward(), sample=x, loss=nn.MSELoss())
    assignment = CreditAssignment(net, ForwardForward(), sample=x, loss=F.mse_loss)  # a function does not tell
    with pytest.raises(SondeError, match="labels"):
        assignment.backward(x, torch.zeros(len(x), 4, dtype=x.dtype))


def test_the_readout_of_forward_forward_predicts_on_neutral_labels() -> None:
    net, x, y = one_layer()
    assignment = CreditAssignment(net, ForwardForward(prediction="readout"), sample=x)
    neutral = x.flatten(1).clone()
    neutral[:, :4] = 0.25
    h_0 = net.embed.linear(neutral)  # type: ignore[operator, union-attr]
    h_1 = torch.relu(net.blocks[0].linear(h_0 / h_0.square().mean(1, keepdim=True).sqrt()))  # type: ignore[operator, union-attr]
    z = net.readout(h_1 / h_1.square().mean(1, keepdim=True).sqrt())
    torch.testing.assert_close(assignment.predict(x), z, rtol=1e-6, atol=0)
    torch.testing.assert_close(assignment.backward(x, y).output_NC, z, rtol=1e-6, atol=0)
