"""ρ and nudge: their ceiling, their null, and where arithmetic has nothing to say."""

import copy
import math
from functools import cache

import pytest
import torch

from networks import NETWORKS, loss_of, moved, read, samples
from sonde.config import Optimiser, RunConfig
from sonde.metrics.probes import Context, Snapshot, take
from sonde.metrics.reductions import pearson, sample_median, sample_norms
from sonde.models import PlainMLP, ResidualMLP, ResMLP, StudentNet, VitMini
from sonde.network import Network
from sonde.network.losses import CROSS_ENTROPY
from sonde.rules import Backprop
from sonde.tasks import Digits
from sonde.training.program import Program
from sonde.training.step import scaled

MODELS = {
    "residual_mlp": ResidualMLP(d=32, L=3),
    "residual_mlp, no terminal LN": ResidualMLP(d=32, L=3, out_ln=False),
    "vit_mini": VitMini(d=16, L=2, heads=2),
    "vit_mini, no terminal LN": VitMini(d=16, L=2, heads=2, out_ln=False),
    "student_net": StudentNet(d=32, L=3),
    "plain_mlp": PlainMLP(d=32, L=3),
    "res_mlp": ResMLP(d=32, L=3),
}


@cache
def trained(model: str) -> Program:
    config = RunConfig(model=MODELS[model], rule=Backprop(), task=Digits(), epochs=3, optimiser=Optimiser(lr=3e-3))
    cpu = torch.device("cpu")
    program = Program(config, config.task.load(0, None, cpu, torch.float32), cpu)
    for epoch in range(1, 4):
        program.train_epoch(epoch)
    return program


def at_norm(model: str, norm: float, context: Context | None = None) -> Snapshot:
    """The trained network with its embedding scaled so that ‖h_0‖ is `norm`."""
    program = trained(model)
    x, y = program.data.test(0, 64)
    net: Network = copy.deepcopy(program.net)
    with torch.no_grad():
        factor = norm / sample_median(sample_norms(program.net.pooling.read(net.embed(x))))  # type: ignore[union-attr]
        for p in net.embed.parameters():
            p.mul_(factor)
    return take(net, x, y, CROSS_ENTROPY, context)


@pytest.mark.parametrize("norm", [1, 1e4, 1e8])
@pytest.mark.parametrize("model", MODELS)
def test_rho_of_bp_is_near_one_on_a_trained_network_at_any_scale(model: str, norm: float) -> None:
    snapshot = at_norm(model, norm)
    found = read(snapshot, "rho")
    for layer in range(snapshot.depth + 1):
        assert found["rho/bp", layer].value > 0.99
        assert abs(found["rho/null", layer].value) < 0.3
        assert found["rho/bp", layer].samples == 64


@pytest.mark.parametrize("model", MODELS)
def test_a_nudge_against_the_gradient_lowers_the_loss(model: str) -> None:
    snapshot = at_norm(model, 1)
    found = read(snapshot, "nudge")
    for layer in range(snapshot.depth + 1):
        assert found["nudge[0.001]/bp", layer].value < -abs(found["nudge[0.001]/null", layer].value)


def test_where_no_loss_can_change_rho_and_nudge_are_undefined_with_the_reason() -> None:
    net = copy.deepcopy(trained("residual_mlp, no terminal LN").net)
    x, _ = trained("residual_mlp").data.test(0, 64)
    with torch.no_grad():
        for p in net.readout.parameters():
            p.mul_(1e6)  # so sure of every label that all losses are 0
    found = read(take(net, x, net(x).argmax(-1), CROSS_ENTROPY), "rho", "nudge")
    for (metric, _), reading in found.items():
        if metric.startswith("rho") or metric.endswith("/bp"):
            assert math.isnan(reading.value), metric
    assert "below what float64 resolves" in str(found["rho/bp", 0].reason)
    assert found["rho/bp", 0].samples == 64


def test_an_absolute_step_that_vanishes_beside_the_state_is_undefined_not_noise() -> None:
    found = read(at_norm("residual_mlp", 1e16, Context(epsilon=1e-3)), "rho")
    assert all(not reading.defined for reading in found.values())
    found = read(at_norm("residual_mlp", 1, Context(epsilon=1e-6)), "rho")
    assert found["rho/bp", 1].value > 0.99


def test_rounding_is_recognised_before_it_passes_for_a_correlation() -> None:
    """Wherever ρ of BP is defined it is near 1: no absolute step yields a mixture of signal and rounding."""
    for exponent in range(-16, -2):
        for reading in read(at_norm("residual_mlp", 1e4, Context(epsilon=10.0**exponent)), "rho").values():
            if reading.metric == "rho/bp" and reading.defined:
                assert reading.value > 0.95, exponent


def test_a_state_of_zero_has_no_relative_step() -> None:
    net = PlainMLP(d=8, L=2).build(NETWORKS["plain_mlp"][1], torch.Generator().manual_seed(0))
    x = torch.ones(4, 8)
    x[:3] = 0
    found = read(take(net, x, torch.ones(4, 8), loss_of(NETWORKS["plain_mlp"][1])), "rho")
    assert found["rho/bp", 0].samples == 1


def test_chunks_do_not_change_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model, signature = NETWORKS["vit_mini"]
    net, _ = moved(model, signature)
    snapshot = take(net, *samples(signature, 5), loss_of(signature))
    before = [r.value for r in read(snapshot, "rho", "nudge").values() if r.defined]
    for rows in (1, 60, 10**6):
        monkeypatch.setattr("sonde.metrics.probes.credit._VECTORS", rows)
        after = [r.value for r in read(snapshot, "rho", "nudge").values() if r.defined]
        assert after == pytest.approx(before, rel=1e-9, abs=1e-13)


def test_directions_and_null_are_fresh_in_every_snapshot_and_the_same_again_for_seed_and_epoch() -> None:
    def values(seed: int, epoch: int) -> list[float]:
        found = read(at_norm("residual_mlp", 1, Context(seed=seed, epoch=epoch)), "rho", "credit_cosine")
        return [r.value for (metric, _), r in found.items() if metric.endswith("/null")]

    assert values(1, 1) == values(1, 1)
    assert len({tuple(values(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_the_credit_of_a_nudge_is_normalised_as_in_training() -> None:
    snapshot = at_norm("residual_mlp", 1)
    g = snapshot.gradients[1]
    h = snapshot.states[1] - 0.01 * scaled(g, "rms")
    for block in list(snapshot.net.blocks)[1:]:
        h = h + block(h)
    change = CROSS_ENTROPY.per_sample(snapshot.net.readout(h), snapshot.y) - snapshot.losses_N
    assert read(snapshot, "nudge")["nudge[0.01]/bp", 1].value == pytest.approx(change.mean().item(), rel=1e-9)


def test_a_correlation_needs_spread_on_both_sides() -> None:
    x = torch.arange(5, dtype=torch.float64)
    rows = torch.stack([x, x * 1e-200, torch.zeros_like(x), torch.full_like(x, 0.1)])
    assert pearson(rows, 2 * x + 1) == pytest.approx([1, 1, math.nan, math.nan], nan_ok=True)
    assert pearson(rows[:1], -x * 1e200) == pytest.approx([-1])
    assert all(math.isnan(value) for value in pearson(rows, torch.full_like(x, 0.1)))
