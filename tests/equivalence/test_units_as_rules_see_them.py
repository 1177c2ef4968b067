"""Rules written outside the package on units they did not write: exact products, and other matrices on the way back.

All in float64, against plain PyTorch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from plain_modules import GUESTS, ConvNet, ViT, images
from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.metrics.probes import Context, take
from sonde.models import ResidualMLP, VitMini
from sonde.network import Signature
from sonde.rules import Backprop, Rule, Signal
from sonde.rules.rule import CreditScale, Facts, Matrix, Route, RuleState
from sonde.training.autograd import weights_in_backward
from sonde.training.credit_assignment import CreditAssignment

IMAGES = Signature(shape=(1, 8, 8), outputs=4, classifies=True)


@final
@dataclass(frozen=True)
class Carried(Rule):
    """Nothing is said but how credit is scaled: the exact gradient, carried from unit to unit."""

    credit_scale: CreditScale = "none"


@final
@dataclass(frozen=True)
class SignSymmetry(Rule):
    """Liao, Leibo & Poggio (2016): on the way back V = s·sign(W), s the size of W's initial entries."""

    credit_scale: CreditScale = "none"
    route: ClassVar[Route] = "layer"

    def init(self, facts: Facts, rng: torch.Generator) -> "Sizes":
        return Sizes({name: w.std().item() for unit in facts.units for name, w in unit.items()})

    def feedback(self, state: "Sizes", units: Sequence[Matrix]) -> Matrix:
        return {name: w.sign() * state.sizes[name] for unit in units for name, w in unit.items()}


class Sizes:
    def __init__(self, sizes: dict[str, float]) -> None:
        self.sizes = sizes

    def state_dict(self) -> dict[str, Any]:
        return dict(self.sizes)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sizes = dict(state)

    def double(self, device: torch.device) -> "RuleState":
        return self


@final
@dataclass(frozen=True)
class KolenPollack(Rule):
    """Akrout et al. (2019): V takes W's own step, and both decay, so that they meet."""

    lr: float = 0.1
    decay: float = 0.5
    start: Callable[[Tensor], Tensor] = torch.zeros_like
    credit_scale: CreditScale = "none"
    route: ClassVar[Route] = "layer"

    def init(self, facts: Facts, rng: torch.Generator) -> "Backward":
        return Backward({name: self.start(w) for unit in facts.units for name, w in unit.items()})

    def feedback(self, state: "Backward", units: Sequence[Matrix]) -> Matrix:
        return state.matrices

    def update(self, state: "Backward", signal: Signal) -> dict[str, Tensor]:
        for unit in signal.gradients_of_units:
            for name, gradient in unit.items():
                state.matrices[name].mul_(1 - self.lr * self.decay).sub_(gradient, alpha=self.lr)
        return {}


class Backward:
    def __init__(self, matrices: dict[str, Tensor]) -> None:
        self.matrices = matrices

    def state_dict(self) -> dict[str, Any]:
        return dict(self.matrices)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.matrices = dict(state)

    def double(self, device: torch.device) -> "Backward":
        return Backward({name: v.to(device).double() for name, v in self.matrices.items()})


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def plain(module: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What `loss.backward()` gives, with the random numbers and statistics that are there."""
    before = {name: value.clone() for name, value in module.named_buffers()}
    with torch.random.fork_rng(devices=[]):
        output = module(x)
    module.zero_grad()
    F.cross_entropy(output.flatten(0, -2), y.flatten()).backward()
    found = gradients(module)
    module.zero_grad()
    for name, value in module.named_buffers():
        value.copy_(before[name])
    return found


def assert_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], rtol: float = 1e-12) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert (ours[name] - value).norm() <= rtol * value.norm() + 1e-15, name  # a bias before BatchNorm has none


def double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


EXACT = [name for name in GUESTS if name != "gpt_passes_on"]  # where a state is all that units hand on


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", GUESTS)
def test_bp_of_a_chain_is_loss_backward(name: str, mode: str) -> None:
    net, (x, y) = GUESTS[name].chain().double().train(mode == "train"), GUESTS[name].batch()
    expected = plain(net.module, double(x), y)
    CreditAssignment(net, Backprop(), sample=double(x)).backward(double(x), y)
    assert_same(gradients(net.module), expected)


@pytest.mark.parametrize("name", EXACT)
def test_units_that_carry_the_exact_gradient_one_by_one_are_backprop(name: str) -> None:
    """Cuts, replays and local products lose nothing: with BatchNorm, tied weights, masks and tuples."""
    net, (x, y) = GUESTS[name].chain().double().train(), GUESTS[name].batch()
    expected = plain(net.module, double(x), y)
    CreditAssignment(net, Carried(), sample=double(x)).backward(double(x), y)
    assert_same(gradients(net.module), expected)


def test_dropout_is_the_same_when_a_unit_runs_again() -> None:
    torch.manual_seed(3)
    module, (x, y) = ViT("mean", dropout=0.3).double(), images()
    import sonde

    net = sonde.chain(module, ["encoder.layers.*"], sample=x.double()).train()
    assignment = CreditAssignment(net, Carried(), sample=x.double())
    before = torch.get_rng_state()
    expected = plain(module, x.double(), y)
    assert torch.equal(before, torch.get_rng_state())
    assignment.backward(x.double(), y)
    assert_same(gradients(module), expected)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    module(x.double())
    assert torch.equal(after, torch.get_rng_state()), "running units again must draw nothing"


def test_the_product_of_a_unit_is_its_jacobian_s() -> None:
    net, (x, y) = GUESTS["vit_mean"].chain().double().eval(), GUESTS["vit_mean"].batch()
    seen: list[Signal] = []

    class Looking(Rule):
        def credits(self, state: Any, signal: Signal) -> list[Tensor]:
            seen.append(signal)
            return [torch.zeros_like(h) for h in signal.states]

    CreditAssignment(net, Looking(), sample=x.double()).backward(x.double(), y)
    signal = seen[0]
    a = torch.randn_like(signal.states[1])
    h = signal.states[0][:1].requires_grad_()
    jacobian = torch.autograd.functional.jacobian(lambda h: net.module.encoder.layers[0](h), h)  # type: ignore[no-untyped-call, union-attr, index]
    expected = torch.einsum("ntd,ntdmsc->msc", a[:1], jacobian)
    torch.testing.assert_close(signal.vjp(0, a)[:1], expected, rtol=1e-10, atol=1e-12)
    assert [sorted(unit) for unit in signal.units] == [
        sorted(
            f"encoder.layers.{layer}.{name}"
            for name in (
                "self_attn.in_proj_weight",
                "self_attn.out_proj.weight",
                "linear1.weight",
                "linear2.weight",
            )
        )
        for layer in (0, 1)
    ]


NETS: dict[str, Callable[[], nn.Module]] = {
    "residual_mlp": lambda: ResidualMLP(d=8, L=3, w2_std=0.3).build(IMAGES, generator(1, "init")),
    "vit_mini": lambda: VitMini(d=8, L=2, heads=2).build(IMAGES, generator(1, "init")),
    "convnet": lambda: GUESTS["convnet"].chain(),
    "vit of torch.nn": lambda: GUESTS["vit_cls"].chain(),
}


@pytest.mark.parametrize("name", NETS)
def test_layer_feedback_with_the_weights_themselves_is_backprop(name: str) -> None:
    net, (x, y) = NETS[name]().double().train(), images()
    expected = plain(net, x.double(), y)
    rule = KolenPollack(start=torch.clone)
    assignment = CreditAssignment(net, rule, sample=x.double())
    assignment.backward(x.double(), y)
    assert_same(gradients(net), expected)
    snapshot = take(net, x, y, assignment.loss, Context(credits=CreditAssignment(net, rule, sample=x.double()).credits))
    for a, g in zip(snapshot.credits or [], snapshot.gradients, strict=True):
        torch.testing.assert_close(a, g, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("name", NETS)
def test_sign_symmetry_of_weights_that_are_signs_is_backprop(name: str) -> None:
    net, (x, y) = NETS[name]().double().train(), images()
    with torch.no_grad():
        for unit in net.matrices():  # type: ignore[operator, union-attr]
            for w in unit.values():
                w.copy_(w.sign() * 0.2)
    expected = plain(net, x.double(), y)
    assignment = CreditAssignment(net, SignSymmetry(), sample=x.double())
    assignment.state.sizes = dict.fromkeys(assignment.state.sizes, 0.2)  # type: ignore[attr-defined]
    assignment.backward(x.double(), y)
    assert_same(gradients(net), expected)


def test_layer_feedback_replaces_the_matrix_in_the_input_s_gradient_and_nowhere_else() -> None:
    """By hand, for a block of two layers: h + w2(GELU(w1(LN(h))))."""
    net, (x, y) = NETS["residual_mlp"]().double(), images()
    rule = SignSymmetry()
    assignment = CreditAssignment(net, rule, sample=x.double())
    assignment.backward(x.double(), y)
    ours, sizes = gradients(net), assignment.state.sizes  # type: ignore[attr-defined]
    blocks: Any = net.blocks
    with torch.no_grad():
        states, _ = net.states(x.double())  # type: ignore[operator]
    h_L = states[-1].requires_grad_()
    (g,) = torch.autograd.grad(F.cross_entropy(net.readout(h_L), y), h_L)  # type: ignore[operator]
    for layer in (2, 1, 0):
        block, h = blocks[layer], states[layer].detach().requires_grad_()
        v1, v2 = (getattr(block, w).weight.sign() * sizes[f"blocks.{layer}.{w}.weight"] for w in ("w1", "w2"))
        normed = block.ln(h)
        z = block.w1(normed).detach().requires_grad_()
        hidden = F.gelu(z)
        torch.testing.assert_close(ours[f"blocks.{layer}.w2.weight"], g.T @ hidden, rtol=1e-12, atol=1e-16)
        (at_z,) = torch.autograd.grad(hidden, z, g @ v2)
        torch.testing.assert_close(ours[f"blocks.{layer}.w1.weight"], at_z.T @ normed, rtol=1e-12, atol=1e-16)
        (through,) = torch.autograd.grad(normed, h, at_z @ v1)
        g = g + through
    torch.testing.assert_close(ours["embed.linear.weight"], g.T @ x.double().flatten(1), rtol=1e-12, atol=1e-16)


def test_kolen_pollack_brings_backward_and_forward_weights_together() -> None:
    net, (x, y) = NETS["convnet"]().double().train(), images()
    rule = KolenPollack(start=lambda w: torch.randn(w.shape, dtype=w.dtype, generator=torch.Generator().manual_seed(1)))
    assignment = CreditAssignment(net, rule, sample=x.double())
    optimiser = torch.optim.SGD(net.parameters(), lr=rule.lr, weight_decay=rule.decay)
    for _ in range(400):
        optimiser.zero_grad()
        assignment.backward(x.double(), y)
        optimiser.step()
    for unit in net.matrices():  # type: ignore[operator, union-attr]
        for name, w in unit.items():
            v = assignment.state.matrices[name]  # type: ignore[attr-defined]
            assert (w - v).norm() < 1e-6 * max(w.norm(), 1), name


def test_normalised_credit_reaches_every_unit_with_the_same_size() -> None:
    net, (x, y) = NETS["residual_mlp"]().double(), images()
    for scale in (1.0, 1e3):
        with torch.no_grad():
            net.readout.out_head.weight.mul_(scale)  # type: ignore[union-attr, operator]
        assignment = CreditAssignment(net, KolenPollack(start=torch.clone, credit_scale="rms"), sample=x.double())
        net.zero_grad()
        assignment.backward(x.double(), y)
        assert 0.1 < gradients(net)["blocks.2.w2.bias"].norm() < 10


def test_a_step_with_other_matrices_calls_the_autograd_engine_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net, (x, y) = NETS["residual_mlp"]().double(), images()
    assignment, calls = CreditAssignment(net, SignSymmetry(), sample=x.double()), []
    import torch.autograd.graph as graph

    run = graph._engine_run_backward

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return run(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", counted)
    assignment.backward(x.double(), y)
    assert len(calls) == 1


class Normed(nn.Module):
    """A unit that uses a matrix computed from its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(h, self.weight / self.weight.norm(dim=1, keepdim=True))


def test_a_matrix_that_is_not_used_as_it_is_cannot_be_replaced_in_silence() -> None:
    module = nn.Sequential(nn.Linear(8, 8), Normed(), nn.Linear(8, 4))
    import sonde

    x = torch.randn(6, 8)
    with pytest.raises(SondeError, match=r"unit '1' does not use 1\.weight in one plain product.*leave it out"):
        CreditAssignment(sonde.chain(module, sample=x), SignSymmetry(), sample=x)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"blocks.7.w1.weight": torch.zeros(8, 8)}, r"no unit has a matrix 'blocks\.7\.w1\.weight'"),
        ({"w": torch.zeros(3, 8)}, r"the backward matrix of w is \(3, 8\), the weight \(8, 8\)"),
    ],
)
def test_a_backward_matrix_that_fits_nothing_is_refused(weights: dict[str, Tensor], message: str) -> None:
    with pytest.raises(SondeError, match=message), weights_in_backward({"w": nn.Parameter(torch.zeros(8, 8))}, weights):
        pass


def test_a_rule_that_says_nothing_has_a_label_and_owns_nothing() -> None:
    class Mine(Rule):
        pass

    rule = Mine()
    assert (rule.label, rule.route, rule.credit_scale, rule.penalty) == ("Mine", "local", "rms", 0.0)
    net = ConvNet()
    import sonde

    x, y = images()
    assignment = CreditAssignment(sonde.chain(net, ["stages.*"], sample=x), rule, sample=x)
    assert assignment.state_dict() == {}
    assert assignment.backward(x, y).logs == {}
