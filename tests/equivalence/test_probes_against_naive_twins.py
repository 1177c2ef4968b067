"""Each probe against its plain definition: a loop over samples in double precision, without the probes' helpers."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import regression
from networks import NETWORKS, D, loss_of, moved, read, samples
from sonde.analysis.recompute.credits import CREDITS, REDRAWN
from sonde.analysis.recompute.definitions import DEFINITIONS
from sonde.analysis.recompute.sample import Sample, SnapshotInputs, cross_entropy, squared_error
from sonde.core.generators import generator
from sonde.metrics.probes import PROBES, Context, take
from sonde.models import MODELS, ConvNet, PlainMLP, ResNet
from sonde.network import Network
from sonde.network.losses import MEAN_SQUARED_ERROR
from sonde.rules import DirectFeedback
from sonde.training.credit_assignment import CreditAssignment

N = 5
EQUATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "ReluLayer": lambda block, h: block.linear(h),
    "PreNormBlock": lambda block, h: block.w1(block.ln(h)),
    "StudentBlock": lambda block, h: block.w1(h),
    "TransformerBlock": lambda block, h: block.qkv(block.ln1(h)),
}


def test_every_model_is_among_the_cases() -> None:
    of_runs = {
        ConvNet,
        ResNet,
    }  # tests/contract compares their probes with the same definitions, on stored runs
    assert {type(model) for model, _ in NETWORKS.values()} | of_runs == set(MODELS.values())


@pytest.mark.parametrize("case", NETWORKS)
def test_every_probe_equals_its_naive_twin(case: str) -> None:
    model, signature = NETWORKS[case]
    net, initial = moved(model, signature)
    x, y = samples(signature, 3 * 128)
    loss = loss_of(signature)
    assignment = CreditAssignment(net, DirectFeedback(), sample=x, loss=loss, seed=7)
    context = Context(
        credits=assignment.credits,
        redrawn=assignment.redrawn,
        initial=initial,
        test=lambda first, last: (x[first:last], y[first:last]),
        test_samples=len(x),
        seed=8,
        epoch=2,
        directions=6,
        draws=5,
    )
    snapshot = take(net, x[:N], y[:N], loss, context)
    readings = read(snapshot)
    setting = SnapshotInputs(
        net=copy.deepcopy(net).double().eval(),
        as_trained=lambda net: copy.deepcopy(net).float(),
        classifies=signature.classifies,
        test=lambda first, last: (x[first:last], y[first:last]),
        test_samples=len(x),
        size=N,
        seed=8,
        epoch=2,
        directions=6,
        draws=5,
        epsilon=None,
        etas=(0.001, 0.01, 0.1),
        credit=lambda sample: CREDITS["dfa"](sample, assignment.state_dict(), {}, 1),
        redrawn=lambda rng: partial(
            CREDITS["dfa"], state=REDRAWN["dfa"](assignment.state_dict(), rng, {})[1], options={}, steps=1
        ),
        initial=initial,
    )
    expected = {key: value for name in PROBES for key, value in DEFINITIONS[name](setting)}
    expected |= dict(DEFINITIONS["grad_resolution"](setting))
    assert readings.keys() == expected.keys()
    for key, value in expected.items():
        reading = readings[key]
        if value.number is None:
            assert not reading.defined, key
            assert reading.reason, key
        else:
            assert reading.value == pytest.approx(value.number, rel=1e-10, abs=1e-11 * value.terms), key
            assert reading.samples == value.samples, key


@pytest.mark.parametrize("case", NETWORKS)
def test_the_linear_output_of_a_definition_is_that_of_the_models_equation(case: str) -> None:
    model, signature = NETWORKS[case]
    net = moved(model, signature)[0].double()
    x, y = samples(signature, 1)
    sample = Sample(net, x[0].double(), y[0], cross_entropy if signature.classifies else squared_error)
    for block, h, (z, _) in zip(net.blocks, sample.states[:-1], sample.linear(), strict=True):
        assert torch.equal(z, EQUATIONS[type(block).__name__](block, h))


@pytest.mark.parametrize("case", NETWORKS)
def test_a_probe_changes_nothing(case: str) -> None:
    model, signature = NETWORKS[case]
    net, _ = moved(model, signature)
    x, y = samples(signature, N)
    net.train()
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.get_rng_state()
    for probe in PROBES.values():
        list(probe(take(net, x, y, loss_of(signature))))
    assert all(torch.equal(weights[name], value) for name, value in net.state_dict().items())
    assert all(module.training for module in net.modules())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert not x.requires_grad
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks for m in net.modules())


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("broken on purpose")


def test_mode_generators_grads_and_hooks_are_restored_after_an_exception() -> None:
    net = Network(nn.Identity(), [Broken()], nn.Identity(), residual=True)
    random, grad = torch.get_rng_state(), torch.is_grad_enabled()
    x = torch.ones(2, D)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        take(net, x, x, MEAN_SQUARED_ERROR)
    assert not any(m._forward_hooks for m in net.modules())
    assert all(module.training for module in net.modules())
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.is_grad_enabled() == grad


def test_growth_of_a_dead_stream_is_undefined_not_zero() -> None:
    net = PlainMLP(d=D, L=2, weight_scale=0.0).build(regression(D), generator(0, "init"))
    growth = list(PROBES["growth"](take(net, torch.ones(2, D), torch.ones(2, D), MEAN_SQUARED_ERROR)))
    assert [reading.defined for reading in growth] == [True, False]
    assert growth[1].reason == "the state before the block is zero"


def test_a_gradient_of_1e_30_keeps_its_norm() -> None:
    net = PlainMLP(d=D, L=2, weight_scale=1e-15).build(regression(D), generator(0, "init"))
    norms = [
        r.value for r in PROBES["preact_grad_norm"](take(net, torch.ones(4, D), -torch.ones(4, D), MEAN_SQUARED_ERROR))
    ]
    assert 0 < norms[0] < 1e-14
    assert all(math.isfinite(norm) for norm in norms)
