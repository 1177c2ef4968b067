"""Where a rule is known to equal backpropagation, and what its step costs.  All in float64."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sonde.core.generators import generator
from sonde.models import Model, PlainMLP, ResidualMLP, ResMLP, StudentNet, VitMini
from sonde.network import Network, Signature
from sonde.network.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR
from sonde.rules import Backprop, CreditBridge, DirectFeedback, FeedbackAlignment, Frozen, Signal, StateBridge
from sonde.training.credit_assignment import CreditAssignment
from sonde.training.step import exact_gradients, scaled

IMAGES = Signature(shape=(1, 8, 8), outputs=10, classifies=True)
MODELS: list[Model] = [
    PlainMLP(d=16, L=3),
    ResMLP(d=16, L=3, weight_scale="1/sqrt(L)"),
    ResidualMLP(d=16, L=3),
    ResidualMLP(d=16, L=3, out_ln=False, residual=False, w2_std=0.3),
    VitMini(d=16, L=2),
    StudentNet(d=16, L=3),
]


def network(model: Model, signature: Signature = IMAGES) -> Network:
    return model.build(signature, generator(5, "init")).double()


def batch(samples: int = 7) -> tuple[Tensor, Tensor]:
    rng = generator(6, "batch")
    return torch.randn(samples, 1, 8, 8, generator=rng, dtype=torch.float64), torch.randint(
        10, (samples,), generator=rng
    )


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def autograd_gradients(net: Network, x: Tensor, y: Tensor, penalty: float = 0.0) -> dict[str, Tensor]:
    """Plain PyTorch: forward as the module says, `loss.backward()`."""
    net.zero_grad()
    h = net.embed(x)
    extra = torch.zeros((), dtype=torch.float64)
    for block in net.blocks:
        f = block(h)
        extra = extra + f.pow(2).sum(-1).mean()
        h = h + f if net.residual else f
    (nn.functional.cross_entropy(net.readout(h), y) + penalty * extra).backward()
    found = gradients(net)
    net.zero_grad()
    return found


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], rtol: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert (ours[name] - value).norm() <= rtol * value.norm(), name


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.label)
@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_bp_through_the_common_step_equals_loss_backward(model: Model, penalty: float) -> None:
    net, (x, y) = network(model), batch()
    expected = autograd_gradients(net, x, y, penalty)
    step = CreditAssignment(net, Backprop(penalty=penalty), sample=x).backward(x, y)
    assert_same(gradients(net), expected, 1e-12)
    assert step.loss == nn.functional.cross_entropy(net(x), y)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.label)
def test_the_local_route_with_exact_credit_equals_loss_backward(model: Model) -> None:
    """FA's route, delivering the true gradient instead: cuts, delivery and local products lose nothing."""

    class Exact:
        label, route, reads_top_gradient, credit_scale, penalty = "exact", "local", True, "none", 0.0
        init, update = Backprop().init, Backprop().update
        credits = Backprop().credits

    net, (x, y) = network(model), batch()
    expected = autograd_gradients(net, x, y)
    CreditAssignment(net, Exact(), sample=x).backward(x, y)  # type: ignore[arg-type]
    assert_same(gradients(net), expected, 1e-12)


def test_dfa_equals_backprop_when_feedback_is_the_forward_weight() -> None:
    net = Network(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh()), [], nn.Linear(16, 10), residual=False
    ).double()
    x, y = batch()
    expected = autograd_gradients(net, x, y)
    assignment = CreditAssignment(net, DirectFeedback(credit_scale="none"), sample=x)
    assignment.state.matrices[0].copy_(net.readout.weight.T)  # type: ignore[attr-defined, operator]
    assignment.backward(x, y)
    assert_same(gradients(net), expected, 1e-12)


@pytest.mark.parametrize("residual", [False, True])
def test_fa_equals_backprop_on_a_linear_network_with_the_true_jacobians(residual: bool) -> None:
    blocks = [nn.Linear(16, 16) for _ in range(3)]
    net = Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 16)), blocks, nn.Linear(16, 10), residual=residual).double()
    x, y = batch()
    expected = autograd_gradients(net, x, y)
    assignment = CreditAssignment(net, FeedbackAlignment(credit_scale="none"), sample=x)
    for b_dd, block in zip(assignment.state.matrices, blocks, strict=True):  # type: ignore[attr-defined]
        b_dd.copy_((block.weight + torch.eye(16) * residual).T.detach())
    assignment.backward(x, y)
    assert_same(gradients(net), expected, 1e-12)


def linear_student(L: int = 3) -> Network:
    return network(StudentNet(d=16, L=L, alpha=0.0))


def signal_of(net: Network, x: Tensor, y: Tensor) -> Signal:
    with torch.no_grad():
        states, output = net.states(x)
    exact = exact_gradients(net, states, y, CROSS_ENTROPY)
    return Signal(
        states=states,
        output_NC=output,
        y=y,
        loss=CROSS_ENTROPY,
        readout=net.readout,
        gradients=lambda: exact,
    )


def test_state_bridge_with_an_exact_predictor_gives_the_exact_credit() -> None:
    net, (x, y) = linear_student(), batch()
    jacobians = [torch.eye(16, dtype=torch.float64) + b.w2.weight @ b.w1.weight for b in net.blocks]  # type: ignore[union-attr, operator]

    class ExactPredictor(nn.Module):
        def forward(self, h_lNd: Tensor, t_lN1: Tensor, s_lNS: Tensor) -> Tensor:
            out = []
            for layer, h_Nd in enumerate(h_lNd):
                assert t_lN1[layer, 0, 0].item() == pytest.approx(layer / 3)
                for jacobian in jacobians[layer:]:
                    h_Nd = h_Nd @ jacobian.T
                out.append(h_Nd)
            return torch.stack(out)

    rule = StateBridge(input_norm="none", credit_scale="none")
    assignment = CreditAssignment(net, rule, sample=x)
    assignment.state.learner.net = ExactPredictor()  # type: ignore[attr-defined]
    signal = signal_of(net, x, y)
    for credit, exact in zip(rule.credits(assignment.state, signal), signal.gradients, strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(credit, exact, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("input_norm", ["layer", "none"])
def test_credit_bridge_sends_the_gradient_of_its_value(input_norm: str) -> None:
    net, (x, y) = network(ResidualMLP(d=16, L=3)), batch(3)
    rule = CreditBridge(input_norm=input_norm, warmup=0.0, credit_scale="none")  # type: ignore[arg-type]
    state = CreditAssignment(net, rule, sample=x).state
    signal = signal_of(net, x, y)
    credits = rule.credits(state, signal)  # type: ignore[arg-type]

    def value(h_Nd: Tensor, layer: int) -> Tensor:
        if input_norm == "layer":
            h_Nd = nn.functional.layer_norm(h_Nd, (16,))
        t_N1 = torch.full((len(h_Nd), 1), layer / 3, dtype=torch.float64)
        return state.learner.net(h_Nd, t_N1, signal.error_NC)[:, 0]  # type: ignore[attr-defined, no-any-return]

    for layer, h_Nd in enumerate(signal.states):
        for unit in (0, 7, 15):
            step = torch.zeros(16, dtype=torch.float64)
            step[unit] = 1e-6
            slope_N = (value(h_Nd + step, layer) - value(h_Nd - step, layer)) / 2e-6
            torch.testing.assert_close(credits[layer][:, unit], slope_N, rtol=1e-6, atol=1e-10)


def test_credit_bridge_learns_the_terminal_value_and_gradient() -> None:
    net, (x, y) = network(ResidualMLP(d=16, L=3)), batch(16)
    rule = CreditBridge()
    state = CreditAssignment(net, rule, sample=x).state
    signal = signal_of(net, x, y)
    terms = [rule.update(state, signal) for _ in range(200)]  # type: ignore[arg-type]
    for name in ("credit_terminal_value", "credit_terminal_gradient"):
        assert terms[-1][name] < 0.2 * terms[0][name]


def test_the_average_of_credit_bridge_follows_its_value_at_the_set_rate() -> None:
    net, (x, y) = network(ResidualMLP(d=16, L=3)), batch()
    rule = CreditBridge(average=0.9)
    state = CreditAssignment(net, rule, sample=x).state
    before = [p.clone() for p in state.average.parameters()]  # type: ignore[attr-defined]
    rule.update(state, signal_of(net, x, y))  # type: ignore[arg-type]
    for old, new, v in zip(before, state.average.parameters(), state.learner.net.parameters(), strict=True):  # type: ignore[attr-defined]
        torch.testing.assert_close(new, 0.9 * old + 0.1 * v)


def test_credit_bridge_is_driven_by_dfa_for_the_first_fifth_of_the_steps() -> None:
    net, (x, y) = network(ResidualMLP(d=16, L=3)), batch()
    rule = CreditBridge()
    state = CreditAssignment(net, rule, sample=x, steps=10).state
    signal = signal_of(net, x, y)
    for step in range(4):
        dfa = signal.error_NC @ state.feedback.matrices[1].T  # type: ignore[attr-defined]
        assert torch.equal(rule.credits(state, signal)[1], dfa) == (step < 2)  # type: ignore[arg-type]
        rule.update(state, signal)  # type: ignore[arg-type]


def test_state_bridge_learns_to_predict_the_final_state() -> None:
    net, (x, y) = network(ResidualMLP(d=16, L=3)), batch(64)
    rule = StateBridge()
    state = CreditAssignment(net, rule, sample=x).state
    signal = signal_of(net, x, y)
    errors = []
    for _ in range(100):
        rule.credits(state, signal)  # type: ignore[arg-type]
        errors.append(rule.update(state, signal)["state_pred_error"])  # type: ignore[arg-type]
    assert errors[-1] < 0.1 * errors[0]


def test_credit_is_normalised_over_the_whole_tensor() -> None:
    a = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(scaled(a, "rms"), a / (2.5 + 1e-6), rtol=1e-15, atol=0)
    assert torch.equal(scaled(a, "none"), a)
    assert scaled(a, "none") is not a


def test_bp_with_normalised_credit_descends_along_each_units_normalised_gradient() -> None:
    net, (x, y) = network(ResidualMLP(d=16, L=3)), batch()
    signal = signal_of(net, x, y)
    CreditAssignment(net, Backprop(credit_scale="rms"), sample=x).backward(x, y)
    ours = gradients(net)
    h = signal.states[1]
    out = h + net.blocks[1](h)
    goal = (out * scaled(signal.gradients[2], "rms")).sum() / len(x)
    (expected,) = torch.autograd.grad(goal, [net.blocks[1].w1.weight])  # type: ignore[union-attr, list-item]
    torch.testing.assert_close(ours["blocks.1.w1.weight"], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("rms", [False, True])
def test_frozen_gives_embedding_and_readout_the_exact_gradient_and_blocks_none(rms: bool) -> None:
    net, (x, y) = network(ResidualMLP(d=16, L=3)), batch()
    expected = autograd_gradients(net, x, y)
    CreditAssignment(net, Frozen(credit_scale="rms" if rms else "none"), sample=x).backward(x, y)
    ours = gradients(net)
    assert not any(name.startswith("blocks") for name in ours)
    for name, value in ours.items():
        if rms and name.startswith("embed"):
            angle = nn.functional.cosine_similarity(value.flatten(), expected[name].flatten(), dim=0, eps=0)
            assert angle == pytest.approx(1, abs=1e-12)
        else:
            torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-15)


def test_under_dfa_every_token_gets_the_same_credit_divided_by_root_T() -> None:
    net, (x, y) = network(VitMini(d=16, L=2)), batch()
    rule = DirectFeedback()
    state = CreditAssignment(net, rule, sample=x).state
    signal = signal_of(net, x, y)
    credit = rule.credits(state, signal)[1]
    assert credit.shape == (7, 5, 16)
    for token in range(5):
        torch.testing.assert_close(credit[:, token], signal.error_NC @ state.matrices[1].T / 5**0.5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("rule", [Backprop(), FeedbackAlignment(), DirectFeedback()], ids=lambda r: r.label)
def test_a_step_calls_the_autograd_engine_once(rule: object, monkeypatch: pytest.MonkeyPatch) -> None:
    net, (x, y) = network(ResidualMLP(d=16, L=3)), batch()
    assignment = CreditAssignment(net, rule, sample=x)  # type: ignore[arg-type]
    calls = []
    import torch.autograd.graph as graph

    run = graph._engine_run_backward

    def counted(*args: object, **kwargs: object) -> object:
        calls.append(1)
        return run(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", counted)
    assignment.backward(x, y)
    assert len(calls) == 1


def flops(net: Network, rule: object, x: Tensor, y: Tensor) -> int:
    assignment = CreditAssignment(net, rule, sample=x)  # type: ignore[arg-type]
    with FlopCounterMode(display=False) as counter:
        assignment.backward(x, y)
    return int(counter.get_total_flops())


def test_no_gradient_is_computed_that_nobody_reads() -> None:
    """Matrix products of a plain MLP, counted: DFA needs no input gradients at all."""
    N, d, C, L, inputs = 7, 16, 10, 3, 64
    net, (x, y) = network(PlainMLP(d=d, L=L)), batch(N)
    forward = 2 * N * (inputs * d + L * d * d + d * C)
    input_gradients = 2 * N * (L * d * d + d * C)
    assert flops(net, Backprop(), x, y) == 2 * forward + input_gradients
    assert flops(net, DirectFeedback(), x, y) == 2 * forward + 2 * N * C * d * (L + 1)
    assert flops(net, FeedbackAlignment(), x, y) == 2 * forward + input_gradients
    frozen = 2 * N * (inputs * d + d * C)
    assert flops(net, Frozen(), x, y) == forward + frozen + input_gradients


@pytest.mark.parametrize(
    "rule",
    [
        Backprop(),
        Backprop(credit_scale="rms"),
        FeedbackAlignment(),
        DirectFeedback(),
        StateBridge(),
        CreditBridge(),
    ],
    ids=lambda r: f"{r.label}-{r.credit_scale}",
)
def test_a_step_leaves_no_graph_behind(rule: object) -> None:
    """Memory must not wait for the garbage collector."""
    net, (x, y) = network(ResidualMLP(d=16, L=3)), batch()
    assignment = CreditAssignment(net, rule, sample=x)  # type: ignore[arg-type]
    kept: list[weakref.ref[Tensor]] = []
    handle = net.blocks[1].register_forward_hook(lambda _m, _i, out: kept.append(weakref.ref(out)))
    gc.collect()
    gc.disable()
    try:
        assignment.backward(x, y)
        assert kept
        assert all(reference() is None for reference in kept)
    finally:
        gc.enable()
        handle.remove()


def test_the_error_is_the_gradient_of_the_loss_at_the_output() -> None:
    for loss, target in (
        (CROSS_ENTROPY, torch.tensor([1, 3])),
        (MEAN_SQUARED_ERROR, torch.randn(2, 5, dtype=torch.float64)),
    ):
        z = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
        (expected,) = torch.autograd.grad(loss.per_sample(z, target).sum(), z)
        torch.testing.assert_close(loss.error(z.detach(), target), expected)


def test_a_model_of_ones_own_needs_embed_blocks_and_readout() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(2))
            self.readout = nn.Linear(12, 10)

    mine = Mine().double()
    x, y = batch(32)
    assignment = CreditAssignment(mine, DirectFeedback(), sample=x)
    optimiser = torch.optim.Adam(mine.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        losses.append(assignment.backward(x, y).loss.item())
        optimiser.step()
    assert losses[-1] < 0.8 * losses[0]
    from sonde.core.errors import SondeError

    with pytest.raises(SondeError, match="Linear has no embed and no blocks and no readout"):
        CreditAssignment(nn.Linear(2, 2), DirectFeedback(), sample=x)
