"""A step of many passes against one recomputation in float64 over everything that a gradient came back to."""

import gc
from collections.abc import Callable
from typing import Any

import naive_watch as naive
import polars as pl
import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.observe import step_record
from sonde.observe.step_record import Pass

PASSES = 150  # more than twice what is kept side by side


class Net(nn.Module):
    """Every metric that is pooled: activations with bounds, a normalisation layer, input and output of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu = nn.Linear(6, 6), nn.ReLU()
        self.norm, self.tanh, self.head = nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 2)
        with torch.no_grad():
            self.first.weight *= 3
            self.first.bias[:2] = torch.tensor([-50.0, -8.0])  # never and seldom alive

    def forward(self, x: Tensor, trace: dict[str, list[tuple[Tensor, Tensor]]] | None = None) -> Tensor:
        for name in ("first", "relu", "norm", "tanh", "head"):
            out: Tensor = getattr(self, name)(x)
            if trace is not None:
                out.retain_grad()
                trace.setdefault(name, []).append((x, out))
            x = out
        return x


def inputs(many: int = PASSES) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(1 + place % 3, 6, generator=rng, dtype=torch.float64) for place in range(many)]


def one_backward(model: nn.Module, xs: list[Tensor], trace: Any = None) -> None:
    """As over an episode; a pass without a gradient in between does not count."""
    losses = []
    for place, x in enumerate(xs):
        losses.append(model(x, trace).square().mean())
        if place % 10 == 0:
            model(1000 * x)
    torch.stack(losses).sum().backward()


def micro_batches(model: nn.Module, xs: list[Tensor], trace: Any = None) -> None:
    for x in xs:
        model(x, trace).square().mean().backward()


@pytest.mark.parametrize("loop", [one_backward, micro_batches])
@pytest.mark.parametrize("many", [3, PASSES, 300])
def test_every_pass_of_a_step_is_in_its_rows(loop: Callable[..., None], many: int) -> None:
    torch.manual_seed(0)
    model = Net().double()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    trace: dict[str, list[tuple[Tensor, Tensor]]] = {}
    loop(model, inputs(many), trace)
    optimiser.zero_grad()
    watch = sonde.watch(model, optimiser, runs=None)
    loop(model, inputs(many))
    optimiser.step()
    rows = watch.rows.filter(step=0)
    watch.close()
    for name, calls in trace.items():
        ins, outs = (torch.cat([pair[side] for pair in calls]) for side in (0, 1))
        grads = torch.cat([out.grad for _, out in calls if out.grad is not None])
        wanted = naive.of_output(outs) | {"grad_rms": naive.grad_rms(grads)}
        if name == "relu":
            wanted["dead_share"] = naive.dead_share(outs, -1)
        if name == "tanh":
            wanted["saturated_share"] = naive.saturated_share(outs, -1, 1)
        if name == "norm":
            wanted["norm_in_rms"] = naive.of_output(ins)["out_rms"]
        if name != "head":
            given = (ins != 0).any(1)  # ratios to an input of zero are left out
            wanted |= naive.stream(ins[given], outs[given])
        for metric, value in wanted.items():
            found = rows.filter(module=name, metric=metric).row(0, named=True)
            assert found["value"] == pytest.approx(value, rel=1e-9, abs=1e-12), (name, metric)
        of_all = rows.filter(module=name).filter(pl.col("metric").is_in(["out_rms", "grad_rms"]))
        assert of_all["samples"].to_list() == [len(outs)] * 2


def test_what_is_pooled_does_not_grow_with_the_number_of_passes() -> None:
    model = Net()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    micro_batches(model, [x.float() for x in inputs(500)])
    calls = watch._recorder._passes._pooled.values()
    assert max(len(call.outputs) for call in calls) <= step_record._SIDE_BY_SIDE
    assert max(len(call.streams) for call in calls) <= step_record._SIDE_BY_SIDE
    watch.close()


def test_passes_whose_graph_is_gone_are_let_go() -> None:
    """As of a policy that plays with gradients switched on, and whose outputs are detached."""
    model = Net()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    for x in inputs(500):
        model(x.float()).detach()
    gc.collect()
    assert sum(type(known) is Pass for known in gc.get_objects()) <= 70
    out = model(torch.ones(4, 6))
    out.square().mean().backward()
    optimiser.step()
    found = watch.rows.filter(module="head", metric="out_rms", step=0)
    assert found["value"].item() == pytest.approx(naive.of_output(out)["out_rms"], rel=1e-5)
    watch.close()


def test_a_median_of_more_samples_than_are_kept_is_undefined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_record, "_SAMPLES", 100)
    model = Net()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    micro_batches(model, [x.float() for x in inputs()])
    optimiser.step()
    found = watch.rows.filter(module="norm", metric="stream_cosine", step=0)
    assert not found["defined"].item()
    assert "median" in found["reason"].item()
    assert watch.rows.filter(module="norm", metric="out_rms", step=0)["defined"].item()
    watch.close()


@pytest.mark.parametrize("many", [64, 65])
def test_without_any_gradient_too_many_passes_are_undefined(many: int) -> None:
    model = Net()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # by another way than backward
    for x in inputs(many):
        model(x.float())
    optimiser.step()
    found = watch.rows.filter(module="head", metric="out_rms", step=0)
    assert found["defined"].item() == (many == 64)
    watch.close()
