"""Where the rules that the field compares equal backprop, or something else that is known.  All in float64."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from plain_modules import GUESTS, images
from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.models import ConvNet, ResidualMLP, ResNet, VitMini
from sonde.network import Network, Signature
from sonde.rules import (
    BatchMagnitudes,
    DirectFeedback,
    DirectKolenPollack,
    DirectTargets,
    FeedbackAlignment,
    FixedMagnitudes,
    ForwardDirectFeedback,
    ForwardGradient,
    KolenPollack,
    PredSim,
    Rule,
    Signal,
    TargetProjection,
    UniformSigns,
    WeightMirror,
)
from sonde.rules.states import weights_of
from sonde.training.credit_assignment import CreditAssignment

IMAGES = Signature(shape=(1, 8, 8), outputs=4, classifies=True)
NETS: dict[str, Callable[[], Any]] = {
    "residual_mlp": lambda: ResidualMLP(d=8, L=3, w2_std=0.3).build(IMAGES, generator(1, "init")),
    "vit_mini": lambda: VitMini(d=8, L=2, heads=2).build(IMAGES, generator(1, "init")),
    "conv_net": lambda: ConvNet(channels=(3, 4), d=8).build(IMAGES, generator(1, "init")),
    "res_net": lambda: ResNet(d=2).build(IMAGES, generator(1, "init")),
    "res_net, GroupNorm": lambda: ResNet(d=2, norm="group").build(IMAGES, generator(1, "init")),
    "somebody's ViT": lambda: GUESTS["vit_cls"].chain(),
}


def net_of(name: str) -> Any:
    return NETS[name]().double().train()


def batch(n: int = 6) -> tuple[Tensor, Tensor]:
    x, y = images(n)
    return x.double(), y


def backprop(net: Any, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    net.zero_grad()
    F.cross_entropy(net(x), y).backward()
    found = gradients(net)
    net.zero_grad()
    return found


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], rtol: float = 1e-10) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert (ours[name] - value).norm() <= rtol * value.norm() + 1e-14, name


def signal_of(net: Any, x: Tensor, y: Tensor) -> Signal:
    """What a rule sees of a batch, with every product it may ask for."""
    seen: list[Signal] = []

    class Looking(Rule):
        def credits(self, state: Any, signal: Signal) -> list[Tensor]:
            seen.append(signal)
            return [torch.zeros_like(h) for h in signal.states]

    CreditAssignment(net, Looking(), sample=x).backward(x, y)
    net.zero_grad()
    return seen[0]


def signs_of(net: Any) -> None:
    """Weights of the blocks that are all ±0.2."""
    with torch.no_grad():
        for w in weights_of(net.matrices()).values():
            w.copy_(torch.where(w >= 0, 0.2, -0.2))


# ---- rules of layers


@pytest.mark.parametrize("name", NETS)
def test_fa_by_layers_is_backprop_when_its_matrices_are_the_weights(name: str) -> None:
    net, (x, y) = net_of(name), batch()
    expected = backprop(net, x, y)
    assignment = CreditAssignment(net, FeedbackAlignment(level="layer", credit_scale="none"), sample=x)
    for matrix, w in weights_of(net.matrices()).items():
        assignment.state.matrices[matrix].copy_(w.detach())  # type: ignore[attr-defined]
    assignment.backward(x, y)
    assert_same(gradients(net), expected)


@pytest.mark.parametrize("name", NETS)
def test_usf_is_backprop_when_the_weights_are_signs_of_one_size(name: str) -> None:
    net, (x, y) = net_of(name), batch()
    signs_of(net)
    expected = backprop(net, x, y)
    CreditAssignment(net, UniformSigns(credit_scale="none"), sample=x).backward(x, y)
    assert_same(gradients(net), expected)


@pytest.mark.parametrize("name", NETS)
def test_frsf_is_backprop_when_its_magnitudes_are_those_of_the_weights(name: str) -> None:
    net, (x, y) = net_of(name), batch()
    expected = backprop(net, x, y)
    assignment = CreditAssignment(net, FixedMagnitudes(credit_scale="none"), sample=x)
    for matrix, w in weights_of(net.matrices()).items():
        assignment.state.matrices[matrix].copy_(w.detach().abs())  # type: ignore[attr-defined]
    assignment.backward(x, y)
    assert_same(gradients(net), expected)


def test_brsf_has_the_signs_of_the_weights_other_magnitudes_at_every_step_and_usf_as_its_mean() -> None:
    net, (x, _) = net_of("residual_mlp"), batch()
    rule, units = BatchMagnitudes(), net_of("residual_mlp").matrices()
    state: Any = CreditAssignment(net, rule, sample=x).state
    uniform: Any = CreditAssignment(net, UniformSigns(), sample=x).state
    one, other = rule.feedback(state, units), rule.feedback(state, units)
    target = UniformSigns().feedback(uniform, units)
    draws = [rule.feedback(state, units) for _ in range(2000)]
    for name, w in weights_of(units).items():
        assert not torch.equal(one[name], other[name])
        assert torch.equal(one[name].sign(), w.sign())
        mean = torch.stack([draw[name] for draw in draws]).mean(0)
        torch.testing.assert_close(mean, target[name] * 3**0.5 / 2, rtol=0.06, atol=0)
        size = torch.stack([draw[name] for draw in draws]).square().mean().sqrt()
        torch.testing.assert_close(size, target[name].abs().mean(), rtol=0.01, atol=0)


def kp_on(name: str, credit_scale: str = "none") -> tuple[CreditAssignment, Any]:
    assignment = CreditAssignment(net_of(name), KolenPollack(credit_scale=credit_scale), sample=batch()[0])  # type: ignore[arg-type]
    return assignment, assignment.state


def apart(assignment: CreditAssignment) -> dict[str, Tensor]:
    """V − W."""
    state: Any = assignment.state
    return {n: state.matrices[n] - w.detach() for n, w in weights_of(assignment.net.matrices()).items()}


@pytest.mark.parametrize("name", NETS)
def test_kp_whose_matrices_have_met_the_weights_is_backprop_and_stays_so(name: str) -> None:
    (x, y), (assignment, state) = batch(), kp_on(name)
    for key, w in weights_of(assignment.net.matrices()).items():
        state.matrices[key].copy_(w.detach())
    optimiser = torch.optim.AdamW(assignment.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(5):
        expected = backprop(assignment.net, x, y)
        assignment.net.zero_grad()
        assignment.backward(x, y)
        assert_same(gradients(assignment.net), expected)
        optimiser.step()
    for difference in apart(assignment).values():
        assert difference.abs().max() == 0


OPTIMISERS: dict[str, Any] = {
    "AdamW": partial(torch.optim.AdamW, lr=1e-2, weight_decay=3.0),
    "SGD": partial(torch.optim.SGD, lr=1e-2, weight_decay=3.0),
}


@pytest.mark.parametrize("name", ["residual_mlp", "conv_net"])
@pytest.mark.parametrize("kind", OPTIMISERS)
def test_kp_differs_from_the_weights_by_a_factor_less_at_every_step(kind: str, name: str) -> None:
    """Item 3: V − W = (1 − ηλ)^t (V_0 − W_0), whatever the gradients; after enough steps they have met."""
    (x, y), (assignment, state) = batch(), kp_on(name, "rms")
    optimiser = OPTIMISERS[kind](assignment.parameters())
    start = apart(assignment)
    before = {n: v.clone() for n, v in state.matrices.items()}
    for step in range(1, 501):
        optimiser.zero_grad()
        assignment.backward(x, y)
        optimiser.step()
        if step in (1, 10, 100, 500):
            for key, difference in apart(assignment).items():
                torch.testing.assert_close(difference, 0.97**step * start[key], rtol=1e-9, atol=1e-14)
    for key, difference in apart(assignment).items():
        assert difference.norm() < 1e-6 * start[key].norm()
        assert (state.matrices[key] - before[key]).norm() > 0.1 * before[key].norm(), "V takes W's steps"


def test_kp_takes_the_step_of_the_equation_and_both_matrices_decay() -> None:
    """Item 3: V ← (1 − ηλ)V − η·(gradient of W), W ← (1 − ηλ)W − η·(gradient of W), written out."""
    (x, y), (assignment, state) = batch(), kp_on("residual_mlp")
    eta, decay = 0.1, 0.3
    optimiser = torch.optim.SGD(assignment.parameters(), lr=eta, weight_decay=decay)
    for _ in range(5):
        old = {
            n: (w.detach().clone(), state.matrices[n].clone()) for n, w in weights_of(assignment.net.matrices()).items()
        }
        optimiser.zero_grad()
        assignment.backward(x, y)
        found = {n: p.grad.clone() for n, p in assignment.net.named_parameters() if p.grad is not None}
        optimiser.step()
        for key, w in weights_of(assignment.net.matrices()).items():
            for now, before in zip((w.detach(), state.matrices[key]), old[key], strict=True):
                torch.testing.assert_close(now, (1 - eta * decay) * before - eta * found[key], rtol=1e-12, atol=1e-15)


def test_kp_never_reads_the_value_of_a_weight() -> None:
    """Item 3: with weights that are not numbers V and its gradient are what they were: no weight is transported."""
    (x, y), (assignment, state) = batch(), kp_on("residual_mlp")
    rule: Any = assignment.rule
    assignment.backward(x, y)
    expected = {n: (v.clone(), v.grad.clone()) for n, v in state.matrices.items()}
    unknown = [{n: torch.full_like(w, torch.nan) for n, w in unit.items()} for unit in assignment.net.matrices()]
    gradients_of = [{n: w.grad for n, w in unit.items()} for unit in assignment.net.matrices()]
    feedback, state.moved = rule.feedback(state, unknown), True
    rule.update(state, SimpleNamespace(units=unknown, gradients_of_units=gradients_of))
    for key, (v, grad) in expected.items():
        assert torch.equal(feedback[key], v)
        assert torch.equal(state.matrices[key], v)
        assert torch.equal(state.matrices[key].grad, grad)


@pytest.mark.parametrize("fused", [False, True])
def test_kp_says_so_where_the_optimiser_leaves_its_matrices_out(fused: bool) -> None:
    (x, y), (assignment, _) = batch(), kp_on("residual_mlp")
    optimiser = torch.optim.Adam(assignment.net.parameters(), fused=fused)
    assignment.backward(x, y)
    assignment.backward(x, y)  # gradients are gathered: nothing has moved
    optimiser.step()
    with pytest.raises(SondeError, match=r"assignment\.parameters\(\)"):
        assignment.backward(x, y)


@pytest.mark.parametrize("name", ["residual_mlp", "conv_net"])
def test_mirrors_become_the_weights_as_the_samples_become_many(name: str) -> None:
    net, (x, y) = net_of(name), batch()
    apart = []
    for samples in (200, 20_000):
        rule = WeightMirror(every=1, samples=samples, rate=0.5)
        assignment = CreditAssignment(net, rule, sample=x)
        signal = signal_of(net, x, y)
        for _ in range(40):
            rule.update(assignment.state, signal)  # type: ignore[arg-type]
        found = rule.feedback(assignment.state, net.matrices())  # type: ignore[arg-type]
        weights = {n: w.detach() for n, w in weights_of(net.matrices()).items()}
        apart.append(max(float((found[n] - w).norm() / w.norm()) for n, w in weights.items()))
        for n, w in weights.items():
            torch.testing.assert_close(found[n].norm(), w.norm(), rtol=1e-12, atol=0)
    assert apart[1] < 0.03
    assert 5 < apart[0] / apart[1] < 20, "a hundred times the samples, a tenth of the error"


def test_a_mirror_learns_the_covariance_of_what_went_in_and_came_out() -> None:
    """A twin that sums over samples, each less the mean of all: with 5 samples the means are far from zero."""
    net, (x, y) = net_of("residual_mlp"), batch()
    rule = WeightMirror(every=1, samples=5, rate=0.5)
    state: Any = CreditAssignment(net, rule, sample=x).state
    noise = state.rng.clone_state()
    expected = {}
    for name, w in weights_of(net.matrices()).items():
        went_in = [row.double() for row in torch.randn(5, w.shape[1], generator=noise)]
        came_out = [w.detach() @ row for row in went_in]
        mean_in, mean_out = (sum(rows, torch.zeros(())) / 5 for rows in (went_in, came_out))
        v = state.matrices[name].clone()
        for one, other in zip(came_out, went_in, strict=True):
            v += 0.5 * torch.outer(one - mean_out, other - mean_in) / 4
        expected[name] = v * w.detach().norm() / v.norm()
    rule.update(state, signal_of(net, x, y))
    for name, v in expected.items():
        torch.testing.assert_close(state.matrices[name], v, rtol=1e-10, atol=1e-12)


def test_mirrors_learn_every_so_many_steps() -> None:
    net, (x, y) = net_of("residual_mlp"), batch()
    rule = WeightMirror(every=3)
    assignment = CreditAssignment(net, rule, sample=x)
    changed = []
    for _ in range(7):
        before = {n: v.clone() for n, v in assignment.state.matrices.items()}  # type: ignore[attr-defined]
        assignment.backward(x, y)
        after = assignment.state.matrices  # type: ignore[attr-defined]
        changed.append(any(not torch.equal(before[n], after[n]) for n in before))
    assert changed == [True, False, False, True, False, False, True]


# ---- rules of outputs


def test_drtp_is_dfa_of_the_squared_error_where_every_output_is_zero() -> None:
    net, (x, _) = net_of("conv_net"), batch()
    nn.init.zeros_(net.readout.out_head.weight)
    nn.init.zeros_(net.readout.out_head.bias)
    target = torch.randn(6, 4, dtype=torch.float64)
    rule = TargetProjection()
    assignment = CreditAssignment(net, rule, sample=x, loss=nn.MSELoss())
    dfa = CreditAssignment(net, DirectFeedback(), sample=x, loss=nn.MSELoss())
    seen: list[Signal] = []

    class Looking(Rule):
        def credits(self, state: Any, signal: Signal) -> list[Tensor]:
            seen.append(signal)
            return [torch.zeros_like(h) for h in signal.states]

    CreditAssignment(net, Looking(), sample=x, loss=nn.MSELoss()).backward(x, target)
    ours = rule.credits(assignment.state, seen[0])  # type: ignore[arg-type]
    theirs = DirectFeedback().credits(dfa.state, seen[0])  # type: ignore[arg-type]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b * 4 / 2, rtol=1e-10, atol=1e-14)


def test_drtp_sends_minus_the_label_s_column() -> None:
    net, (x, y) = net_of("residual_mlp"), batch()
    rule = TargetProjection()
    state: Any = CreditAssignment(net, rule, sample=x).state
    for a, b_dC in zip(rule.credits(state, signal_of(net, x, y)), state.matrices, strict=True):
        torch.testing.assert_close(a, -b_dC.T[y], rtol=1e-12, atol=0)


def test_dkp_approaches_the_head_at_the_rate_of_its_decay() -> None:
    """One linear hidden layer: B and the head take the same step, and their difference fades."""
    torch.manual_seed(0)
    net = Network(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), [], nn.Linear(8, 4, bias=False), residual=False
    ).double()
    x, y = batch()
    eta, decay = 0.1, 0.5
    rule = DirectKolenPollack(lr=eta, decay=eta * decay)
    assignment = CreditAssignment(net, rule, sample=x)
    optimiser = torch.optim.SGD(net.parameters(), lr=eta, weight_decay=decay)
    (b_dC,), head = assignment.state.matrices, net.readout.weight  # type: ignore[attr-defined]
    apart = (b_dC - head.T).detach()  # type: ignore[operator]
    for _ in range(300):
        optimiser.zero_grad()
        assignment.backward(x, y)
        optimiser.step()
        apart = apart * (1 - eta * decay)
        torch.testing.assert_close((b_dC - head.T).detach(), apart, rtol=1e-10, atol=1e-13)  # type: ignore[operator]
    assert (b_dC - head.T).norm() < 1e-6 * head.norm() + 1e-5  # type: ignore[operator]


def test_dkp_with_the_head_as_its_matrix_is_backprop() -> None:
    torch.manual_seed(0)
    net = Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), [], nn.Linear(8, 4), residual=False).double()
    x, y = batch()
    expected = backprop(net, x, y)
    assignment = CreditAssignment(net, DirectKolenPollack(credit_scale="none"), sample=x)
    assignment.state.matrices[0].copy_(net.readout.weight.T)  # type: ignore[attr-defined, operator]
    assignment.backward(x, y)
    assert_same(gradients(net), expected)


def linear(d: int = 5, L: int = 2, outputs: int = 4) -> Network:
    torch.manual_seed(1)
    blocks = [nn.Linear(d, d) for _ in range(L)]
    return Network(nn.Sequential(nn.Flatten(), nn.Linear(64, d)), blocks, nn.Linear(d, outputs), residual=True).double()


def jacobians(net: Network) -> list[Tensor]:
    """∂z/∂h_l of a linear residual network, C×d."""
    found = [net.readout.weight.detach()]
    for block in reversed(list(net.blocks)):
        eye = torch.eye(block.weight.shape[0], dtype=torch.float64)  # type: ignore[union-attr, index, arg-type]
        found.append(found[-1] @ (eye + block.weight.detach()))  # type: ignore[union-attr, operator]
    return found[::-1]  # type: ignore[return-value]


def test_fdfa_estimates_the_jacobian_without_bias_and_with_it_is_backprop() -> None:
    net, (x, y) = linear(), batch()
    expected = backprop(net, x, y)
    rule = ForwardDirectFeedback(credit_scale="none")
    assignment = CreditAssignment(net, rule, sample=x)
    state: Any = assignment.state
    signal = signal_of(net, x, y)
    draws: list[list[Tensor]] = []
    state.learner.follow = lambda steps: draws.append([-step for step in steps])  # B = 0: minus the estimate
    for _ in range(1500):
        rule.update(state, signal)
    for layer, jacobian_Cd in enumerate(jacobians(net)):
        estimates = torch.stack([draw[layer] for draw in draws])
        error = estimates.std(0) / len(draws) ** 0.5
        assert ((estimates.mean(0) - jacobian_Cd.T).abs() < 4.5 * error).all()
        state.learner.net[layer].data.copy_(jacobian_Cd.T)
    assignment.backward(x, y)
    assert_same(gradients(net), expected)


def test_of_tokens_that_have_outputs_fdfa_estimates_the_jacobian_of_one() -> None:
    """On T tokens, each with an output z = W h of its own."""
    rng = torch.Generator().manual_seed(0)
    w_Cd = torch.randn(3, 4, generator=rng, dtype=torch.float64)
    h_NTd = torch.zeros(4000, 6, 4, dtype=torch.float64)
    signal: Any = SimpleNamespace(states=[h_NTd], jvp=lambda directions: directions[0] @ w_Cd.T)
    seen: list[list[Tensor]] = []
    state: Any = SimpleNamespace(
        rng=rng,
        matrices=[torch.zeros(4, 3, dtype=torch.float64)],
        learner=SimpleNamespace(follow=seen.append),
    )
    ForwardDirectFeedback().update(state, signal)
    torch.testing.assert_close(-seen[0][0], w_Cd.T, rtol=0, atol=0.1)


def test_fdfa_learns_the_jacobian() -> None:
    net, (x, y) = linear(), batch()
    rule = ForwardDirectFeedback(lr=0.02)
    state: Any = CreditAssignment(net, rule, sample=x).state
    signal = signal_of(net, x, y)
    for step in range(600):
        state.learner.optimiser.param_groups[0]["lr"] = 0.02 * 0.99**step
        rule.update(state, signal)
    for b_dC, jacobian_Cd in zip(state.matrices, jacobians(net), strict=True):
        assert F.cosine_similarity(b_dC.flatten(), jacobian_Cd.T.flatten(), dim=0, eps=0) > 0.9


@pytest.mark.parametrize("name", NETS)
def test_a_forward_mode_pass_is_the_sum_of_jacobians_times_directions(name: str) -> None:
    net, (x, y) = net_of(name), batch(3)
    signal = signal_of(net, x, y)
    rng = generator(3, "v")
    directions = [torch.randn(h.shape, generator=rng, dtype=torch.float64) for h in signal.states]
    before = {key: value.clone() for key, value in net.named_buffers()}
    found = signal.jvp(directions)
    expected = torch.zeros_like(found)
    for layer, v in enumerate(directions):
        h = signal.states[layer]
        up, down = (net.tail(h + sign * 1e-6 * v, layer, x).output for sign in (1, -1))
        expected += (up - down).detach() / 2e-6
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    for key, value in before.items():
        if "num_batches" not in key and not key.endswith(("running_mean", "running_var")):
            assert torch.equal(dict(net.named_buffers())[key], value)


def test_a_forward_gradient_is_unbiased_and_with_all_directions_exact() -> None:
    net, (x, y) = linear(), batch(2)
    signal = signal_of(net, x, y)
    rule = ForwardGradient()
    state: Any = CreditAssignment(net, rule, sample=x).state
    draws = [rule.credits(state, signal) for _ in range(3000)]
    for layer, g in enumerate(signal.gradients):
        credits = torch.stack([draw[layer] for draw in draws])
        error = credits.std(0) / len(draws) ** 0.5
        assert ((credits.mean(0) - g).abs() < 4.5 * error).all()
    many = ForwardGradient(directions=3000).credits(state, signal)
    for a, g in zip(many, signal.gradients, strict=True):
        assert F.cosine_similarity(a.flatten(), g.flatten(), dim=0, eps=0) > 0.95


def test_a_forward_gradient_along_one_direction_is_that_direction_times_the_slope() -> None:
    net, (x, y) = net_of("conv_net"), batch(3)
    signal = signal_of(net, x, y)
    rule = ForwardGradient()
    state: Any = CreditAssignment(net, rule, sample=x).state
    rng = state.rng.clone_state()
    v = [torch.randn(h.shape, generator=rng).double() for h in signal.states]
    slope_N = sum((g * one).flatten(1).sum(1) for g, one in zip(signal.gradients, v, strict=True))
    for a, one in zip(rule.credits(state, signal), v, strict=True):
        expected = one * slope_N.view(-1, *[1] * (one.ndim - 1))  # type: ignore[union-attr]
        torch.testing.assert_close(a, expected, rtol=1e-10, atol=1e-14)


# ---- local losses and targets


def test_predsim_without_similarity_and_with_the_readout_as_its_head_has_the_exact_top_gradient() -> None:
    net, (x, y) = linear(), batch()
    rule = PredSim(beta=0)
    state: Any = CreditAssignment(net, rule, sample=x).state
    state.learner.net.heads[-1].load_state_dict(net.readout.state_dict())
    signal = signal_of(net, x, y)
    torch.testing.assert_close(rule.credits(state, signal)[-1], signal.gradients[-1], rtol=1e-10, atol=1e-14)


def test_predsim_descends_along_its_local_losses() -> None:
    """By hand: both losses as the paper writes them, at one state."""
    net, (x, y) = net_of("residual_mlp"), batch()
    rule = PredSim(beta=0.7)
    state: Any = CreditAssignment(net, rule, sample=x).state
    signal = signal_of(net, x, y)
    h = signal.states[1].clone().requires_grad_()
    heads, maps = state.learner.net.heads, state.learner.net.maps

    def similarity(rows: Tensor) -> Tensor:
        return torch.stack([torch.stack([cosine(a - a.mean(), b - b.mean()) for b in rows]) for a in rows])

    def cosine(a: Tensor, b: Tensor) -> Tensor:
        return a @ b / ((a.norm() + 1e-8) * (b.norm() + 1e-8))

    labels = F.one_hot(y, 4).double()
    local = 0.3 * F.cross_entropy(heads[1](h), y)
    local = local + 0.7 * (similarity(maps[1](h)) - similarity(labels)).square().mean()
    (g,) = torch.autograd.grad(local, h)
    torch.testing.assert_close(rule.credits(state, signal)[1], g * len(x), rtol=1e-10, atol=1e-14)


def test_ddtp_inverts_a_linear_network() -> None:
    net, (x, y) = linear(d=4, L=2), batch(64)
    rule = DirectTargets()
    assignment = CreditAssignment(net, rule, sample=x)
    state: Any = assignment.state
    signal = signal_of(net, x, y)
    ways = [torch.eye(4, dtype=torch.float64)]
    for block in reversed(list(net.blocks)):
        ways.insert(0, ways[0] @ (torch.eye(4, dtype=torch.float64) + block.weight.detach()))  # type: ignore[union-attr, operator]
    for learner, way in zip(state.learners, ways[:-1], strict=True):
        learner.net.weight.data.copy_(torch.linalg.inv(way))
    for _ in range(2):
        assert rule.update(state, signal)["ddtp_inverse_error"] < 1e-18, "the inverse undoes every step"
    for learner in state.learners:
        learner.net.weight.data.mul_(0.5)
    for step in range(1200):
        for learner in state.learners:
            learner.optimiser.param_groups[0]["lr"] = 0.02 * 0.99 ** (step / 2)
        rule.update(state, signal)
    for learner, way in zip(state.learners, ways[:-1], strict=True):
        inverse = torch.linalg.inv(way)
        assert (learner.net.weight - inverse).norm() < 0.01 * inverse.norm()


def test_ddtp_sends_the_step_to_the_target_back_through_its_inverses() -> None:
    net, (x, y) = net_of("residual_mlp"), batch()
    rule = DirectTargets(step=0.25)
    state: Any = CreditAssignment(net, rule, sample=x).state
    signal = signal_of(net, x, y)
    target = signal.states[-1] - 0.25 * signal.gradients[-1]
    credits = rule.credits(state, signal)
    for learner, h, a in zip(state.learners, signal.states, credits, strict=False):
        theirs = h + (target - signal.states[-1]) @ learner.net.weight.T
        torch.testing.assert_close(a, h - theirs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(credits[-1], signal.states[-1] - target, rtol=1e-10, atol=1e-12)
