"""A snapshot and a watched step measure the same numbers on the same network and batch.

N samples, d width.  The snapshot is a float64 copy; the watched network computes in float64 and in float32.
"""

import math

import polars as pl
import pytest
import torch
from torch import nn

import sonde
from networks import IMAGE, D, L, loss_of, moved, read, samples
from sonde.metrics.probes import Context, take
from sonde.metrics.rows import Reading
from sonde.models import PlainMLP, ResidualMLP
from sonde.network import Network

PRECISIONS = [pytest.param(torch.float64, 1e-12, id="float64"), pytest.param(torch.float32, 1e-5, id="float32")]
Readings = dict[tuple[str, int | None], Reading]


class Observed:
    """One training step of a network: the readings of a snapshot before it, and the rows of the watched step."""

    def __init__(self, model: PlainMLP | ResidualMLP, precision: torch.dtype, n: int, *probes: str) -> None:
        net, _ = moved(model, IMAGE)
        self.net: Network = net.to(precision)
        self.x, self.y = samples(IMAGE, n)
        self.x = self.x.to(precision)
        self.loss = loss_of(IMAGE)
        context = Context(test=lambda first, last: (self.x[first:last], self.y[first:last]), test_samples=n)
        self.readings: Readings = read(take(self.net, self.x, self.y, self.loss, context), *probes)
        self.before = {name: p.detach().clone() for name, p in self.net.named_parameters()}
        optimiser = torch.optim.SGD(self.net.parameters(), lr=0.1)
        with sonde.watch(self.net, optimiser, runs=None, layers="*") as watch:
            nn.functional.cross_entropy(self.net(self.x), self.y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            rows = watch.rows.filter(pl.col("defined"))
        self.rows = {(m, metric): v for m, metric, v in rows.select("module", "metric", "value").iter_rows()}

    def of_snapshot(self, metric: str, layer: int | None = None) -> float:
        reading = self.readings[metric, layer]
        assert reading.defined, reading.reason
        return reading.value


@pytest.mark.parametrize(("precision", "tolerance"), PRECISIONS)
def test_sizes_of_one_sample_are_those_of_the_states_and_their_gradients(
    precision: torch.dtype, tolerance: float
) -> None:
    """Of one sample, the median over samples and the RMS over everything are of the same vector."""
    seen = Observed(PlainMLP(d=D, L=L), precision, 1, "hidden_norm", "grad_norm")
    for layer, module in enumerate(["embed", *(f"blocks.{block}" for block in range(L))]):
        for probe, metric in (("hidden_norm", "out_rms"), ("grad_norm", "grad_rms")):
            expected = seen.of_snapshot(probe, layer) / math.sqrt(D)
            assert seen.rows[module, metric] == pytest.approx(expected, rel=tolerance)
            assert expected > 0


@pytest.mark.parametrize(("precision", "tolerance"), PRECISIONS)
def test_linear_outputs_have_one_mean_and_one_gradient(precision: torch.dtype, tolerance: float) -> None:
    n = 33
    seen = Observed(PlainMLP(d=D, L=L), precision, n, "activation_mean", "preact_grad_norm")
    linear = [
        next(f"blocks.{block}.{name}" for name, module in unit.named_modules() if isinstance(module, nn.Linear))
        for block, unit in enumerate(seen.net.blocks)
    ]
    for layer, module in enumerate(linear, start=1):
        mean = seen.of_snapshot("activation_mean", layer)
        assert seen.rows[module, "out_mean"] == pytest.approx(mean, rel=100 * tolerance, abs=tolerance)
        norm = seen.of_snapshot("preact_grad_norm", layer)
        assert seen.rows[module, "grad_rms"] * math.sqrt(n * D) == pytest.approx(norm, rel=tolerance)


@pytest.mark.parametrize(("precision", "tolerance"), PRECISIONS)
def test_a_branch_is_as_large_as_the_output_of_its_module(precision: torch.dtype, tolerance: float) -> None:
    seen = Observed(ResidualMLP(d=D, L=L, w2_std=0.3), precision, 1, "hidden_norm", "branch_ratio")
    for block in range(L):
        ratio = seen.rows[f"blocks.{block}", "out_rms"] * math.sqrt(D) / seen.of_snapshot("hidden_norm", block)
        assert ratio == pytest.approx(seen.of_snapshot("branch_ratio", block), rel=tolerance)


@pytest.mark.parametrize(("precision", "tolerance"), PRECISIONS)
def test_two_halves_of_a_batch_agree_as_much_as_two_batches(precision: torch.dtype, tolerance: float) -> None:
    seen = Observed(PlainMLP(d=D, L=L), precision, 256, "cross_batch_cosine")
    layer = L // 2
    cosine = seen.of_snapshot("cross_batch_cosine", layer)
    assert 1 - seen.rows[f"blocks.{layer - 1}", "grad_noise"] == pytest.approx(cosine, rel=10 * tolerance)
    assert -1 < cosine < 1


@pytest.mark.parametrize(("precision", "tolerance"), PRECISIONS)
def test_the_update_of_the_first_step_is_the_drift_after_it(precision: torch.dtype, tolerance: float) -> None:
    seen = Observed(PlainMLP(d=D, L=L), precision, 33, "loss")
    after = read(take(seen.net, seen.x, seen.y, seen.loss, Context(initial=seen.before)), "drift")
    drifts = {metric: reading.value for (metric, _), reading in after.items() if reading.defined}
    assert len(drifts) > L
    for name in seen.before:
        if f"drift[{name}]" in drifts:
            assert seen.rows[name, "update_ratio"] == pytest.approx(drifts[f"drift[{name}]"], rel=100 * tolerance)
