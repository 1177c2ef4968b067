"""Each probe against a loop over samples in double precision, written without the package's own helpers."""

import math
import statistics

import pytest
import torch
from torch import nn

from conftest import regression
from sonde.generators import generator
from sonde.losses import MEAN_SQUARED_ERROR
from sonde.models import PlainMLP, ResMLP
from sonde.network import Network
from sonde.probes import PROBES, take

N, D, L = 6, 8, 3


@pytest.fixture(params=[PlainMLP, ResMLP])
def net(request: pytest.FixtureRequest) -> Network:
    net = request.param(d=D, L=L).build(regression(D), generator(3, "init"))
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape, generator=generator(4, "noise")) * 0.05)
    return net


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(N, D, generator=generator(5, "x")) * 2 - 1


def naive(net: Network, x_N: torch.Tensor) -> dict[tuple[str, int | None], float]:
    """Per-sample loops: states, linear outputs and their gradients one sample at a time."""
    per_sample = []
    for x in x_N.double():
        h = x.clone().requires_grad_()
        states, linears = [h], []
        for block in net.blocks:
            weight, bias = block.linear.weight.double(), block.linear.bias.double()  # type: ignore[union-attr, operator]
            z = weight @ h + bias  # type: ignore[operator]
            linears.append(z)
            h = h + z.clamp(min=0) if net.residual else z.clamp(min=0)
            states.append(h)
        loss = ((h - x) ** 2).sum() / D
        gradients = torch.autograd.grad(loss, [*states, *linears])
        per_sample.append((states, linears, loss.item(), gradients[: L + 1], gradients[L + 1 :]))

    def norm(v: torch.Tensor) -> float:
        return math.sqrt(math.fsum(value * value for value in v.tolist()))

    found: dict[tuple[str, int | None], float] = {}
    found["loss", None] = statistics.fmean(s[2] for s in per_sample)
    for l in range(L + 1):
        found["hidden_norm", l] = statistics.median(norm(s[0][l]) for s in per_sample)
        found["grad_norm", l] = statistics.median(norm(s[3][l]) for s in per_sample)
        for unit in range(D):
            found[f"state[{unit}]", l] = per_sample[0][0][l][unit].item()
    for l in range(L):
        found["growth", l] = found["hidden_norm", l + 1] / found["hidden_norm", l]
        values = [value for s in per_sample for value in s[1][l].tolist()]
        found["activation_mean", l + 1] = statistics.fmean(values)
        found["activation_std", l + 1] = statistics.stdev(values)
        found["preact_grad_norm", l + 1] = norm(torch.cat([s[4][l] for s in per_sample]) / N)
    return found


def test_every_probe_equals_its_naive_twin(net: Network, x: torch.Tensor) -> None:
    snapshot = take(net, x, x, MEAN_SQUARED_ERROR)
    readings = {(r.metric, r.layer): r for probe in PROBES.values() for r in probe(snapshot)}
    expected = naive(net, x)
    assert readings.keys() == expected.keys()
    for key, value in expected.items():
        assert readings[key].value == pytest.approx(value, rel=1e-10, abs=1e-300), key
        assert readings[key].samples == (1 if key[0].startswith("state") else N)


def test_a_probe_changes_nothing(net: Network, x: torch.Tensor) -> None:
    net.train()
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.get_rng_state()
    for probe in PROBES.values():
        list(probe(take(net, x, x, MEAN_SQUARED_ERROR)))
    assert all(torch.equal(weights[name], value) for name, value in net.state_dict().items())
    assert net.training
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks for m in net.modules())


def test_hooks_are_gone_after_an_exception(x: torch.Tensor) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(D, D)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("broken on purpose")

    net = Network(nn.Identity(), [Broken()], nn.Identity(), residual=True)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        take(net, x, x, MEAN_SQUARED_ERROR)
    assert not any(m._forward_hooks for m in net.modules())


def test_growth_of_a_dead_stream_is_undefined_not_zero() -> None:
    net = PlainMLP(d=D, L=2, weight_scale=0.0).build(regression(D), generator(0, "init"))
    growth = list(PROBES["growth"](take(net, torch.ones(2, D), torch.ones(2, D), MEAN_SQUARED_ERROR)))
    assert [reading.defined for reading in growth] == [True, False]
    assert growth[1].reason == "the state before the block is zero"


def test_a_gradient_of_1e_30_keeps_its_norm() -> None:
    net = PlainMLP(d=D, L=2, weight_scale=1e-15).build(regression(D), generator(0, "init"))
    norms = [
        r.value
        for r in PROBES["preact_grad_norm"](
            take(net, torch.ones(4, D), -torch.ones(4, D), MEAN_SQUARED_ERROR)
        )
    ]
    assert 0 < norms[0] < 1e-14
    assert all(math.isfinite(norm) for norm in norms)
