"""Compiled models: rows from inside the graph are those of eager mode, and what taps do to the weights."""

import shutil
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import sonde

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor")
KEYS = ["step", "module", "metric"]


class Block(nn.Module):
    """Modules that work in place, return a tuple, take keywords, and a function for attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.scale = nn.Linear(8, 12), nn.RMSNorm(12)
        self.act, self.down = nn.ReLU(inplace=True), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        h = x + self.attention(h, h, value=h, need_weights=False)[0]
        h = nn.functional.scaled_dot_product_attention(h[:, None], h[:, None], x[:, None], is_causal=True)[:, 0]
        out: Tensor = x + self.down(self.act(self.scale(self.up(h))))
        return out


def made(dtype: torch.dtype, many: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *(Block() for _ in range(many)), nn.Linear(8, 3), nn.Tanh()).to(dtype)


def batch(step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(step)
    return tuple(torch.randn(6, 5, n, generator=rng, dtype=torch.float64).to(dtype) for n in (4, 3))  # type: ignore[return-value]


Wrap = Callable[[nn.Sequential, str], tuple[nn.Module, nn.Module]]


def eager(model: nn.Sequential, backend: str) -> tuple[nn.Module, nn.Module]:
    return model, model


def wrapper(model: nn.Sequential, backend: str) -> tuple[nn.Module, nn.Module]:
    """What is called, and what is watched."""
    compiled: Any = torch.compile(model, backend=backend, fullgraph=True)
    return compiled, compiled


def inside(model: nn.Sequential, backend: str) -> tuple[nn.Module, nn.Module]:
    compiled: Any = torch.compile(model, backend=backend, fullgraph=True)
    return compiled, model


def in_place(model: nn.Sequential, backend: str) -> tuple[nn.Module, nn.Module]:
    model.compile(backend=backend, fullgraph=True)
    return model, model


class Net(nn.Sequential):
    """A model with a forward method of its own."""

    def forward(self, x: Tensor) -> Tensor:
        for module in self:
            x = module(x)
        return x


def whole(model: nn.Sequential, backend: str) -> tuple[nn.Module, nn.Module]:
    """PyTorch compiles it as a whole; a bare `nn.Sequential`, module by module."""
    return in_place(Net(*model), backend)


def blocks(model: nn.Sequential, backend: str) -> tuple[nn.Module, nn.Module]:
    for part in model:
        if isinstance(part, Block):
            part.compile(backend=backend, fullgraph=True)
    return model, model


def step(model: nn.Module, optimiser: torch.optim.Optimizer, number: int, dtype: torch.dtype) -> None:
    """Two passes before one backward pass, one pass with its own, and an evaluation."""
    optimiser.zero_grad()
    parts = [model(batch(place, dtype)[0]) for place in (3 * number, 3 * number + 1)]
    (mse_loss(parts[0], batch(number, dtype)[1]) + 3 * parts[1].square().mean()).backward()
    model(batch(3 * number + 2, dtype)[0]).mean().backward()
    optimiser.step()
    with torch.no_grad():
        model(batch(0, dtype)[0])


def run(
    wrap: Wrap,
    backend: str = "aot_eager",
    dtype: torch.dtype = torch.float64,
    *,
    watched: bool = True,
    alone: bool = False,
) -> tuple[list[Tensor], pl.DataFrame, int]:
    """Weights, rows, and the number of graphs.  Of inductor, whose compiler takes long, a model of one block."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = made(dtype, 1 if backend == "inductor" else 2)
    called, given = wrap(model, backend)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    watch = sonde.watch(given, *([] if alone else [optimiser]), runs=None, every=12) if watched else None
    for number in range(14):
        step(called, optimiser, number, dtype)
    rows = pl.DataFrame() if watch is None else watch.rows
    if watch is not None:
        watch.close()
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        assert type(model._compiled_call_impl).__module__ != "sonde.observe.hooks"
    return (
        [p.detach().clone() for p in model.parameters()],
        rows,
        torch._dynamo.utils.counters["stats"]["unique_graphs"],
    )


def assert_close(rows: pl.DataFrame, truth: pl.DataFrame, tolerance: float) -> None:
    """The same rows, defined or undefined for the same reason; `grad_left` is not read of compiled models."""
    truth = truth.filter(pl.col("metric") != "grad_left")
    both = truth.join(rows, on=KEYS, how="full", suffix="_compiled", nulls_equal=True, validate="1:1")
    assert both.height == truth.height == rows.height
    assert both["reason"].to_list() == both["reason_compiled"].to_list()
    assert both["samples"].to_list() == both["samples_compiled"].to_list()
    known = both.filter(pl.col("defined"))
    assert known.height > 0.8 * rows.height > 1000
    apart = (known["value_compiled"] - known["value"]).abs() / known["value"].abs().clip(1e-3)
    assert not (apart > tolerance).any(), known.filter(apart > tolerance)


@pytest.fixture(scope="module")
def truth() -> pl.DataFrame:
    return run(eager)[1]


@pytest.mark.parametrize(
    "wrap", [wrapper, blocks, *(pytest.param(w, marks=pytest.mark.slow) for w in (inside, in_place, whole))]
)
def test_rows_from_inside_a_graph_are_those_of_eager_mode_and_weights_do_not_change(
    wrap: Wrap, truth: pl.DataFrame
) -> None:
    without, _, alone = run(wrap, watched=False)
    weights, rows, graphs = run(wrap)
    if wrap is inside:  # it is known after the first step that the model is compiled: then the function is read
        later, of_modules = pl.col("step") > 0, ~pl.col("metric").str.starts_with("attention")
        truth = truth.filter(later | of_modules | pl.col("module").str.ends_with(".attention"))
    assert_close(rows, truth, 1e-9)
    assert all(torch.equal(a, b) for a, b in zip(without, weights, strict=True))
    if wrap is not in_place:  # a bare nn.Sequential, whose modules are compiled one by one if they have hooks
        assert graphs <= 2 * alone + (wrap is inside), "a graph with taps and one without"


def test_without_an_optimiser_steps_of_a_compiled_model_are_counted() -> None:
    _, rows, _ = run(in_place, alone=True)
    assert_close(rows, run(eager, alone=True)[1], 1e-9)


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.parametrize("wrap", [wrapper, whole, in_place, blocks])
def test_the_same_holds_for_inductor(wrap: Wrap) -> None:
    without, _, _ = run(wrap, "inductor", watched=False)
    weights, rows, _ = run(wrap, "inductor")
    truth = run(eager, "inductor")[1]
    rounding = (pl.col("metric") == "adam_ratio") & pl.col("module").str.ends_with("in_proj_bias")
    assert_close(rows.filter(~rounding), truth.filter(~rounding), 1e-6)  # keys' biases have a gradient of 0
    if wrap is in_place:  # hooks change which modules of a bare nn.Sequential form a graph, and so how it rounds
        torch.testing.assert_close(weights, without, rtol=1e-9, atol=1e-11)
    else:
        assert all(torch.equal(a, b) for a, b in zip(without, weights, strict=True))


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.parametrize("rounds", [False, True])
def test_half_precision_is_read_where_the_compiler_rounds_as_eager_mode_does(
    rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config, "emulate_precision_casts", rounds)
    without, _, _ = run(wrapper, "inductor", torch.bfloat16, watched=False)
    weights, rows, _ = run(wrapper, "inductor", torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(without, weights, strict=True))
    rows = rows.filter(metric="out_rms", module="1.up")
    assert rows["defined"].to_list() == [rounds] * 11
    assert rounds or all("emulate_precision_casts" in reason for reason in rows["reason"])


def test_a_model_compiled_before_the_watch_is_read_after_recompile() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    called: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimiser = torch.optim.SGD(model.parameters(), 1e-2)
    step(called, optimiser, 0, torch.float32)
    watch = sonde.watch(called, optimiser, runs=None, every=12)
    with pytest.warns(UserWarning, match="recompile"):
        step(called, optimiser, 0, torch.float32)
    step(called, optimiser, 1, torch.float32)  # nothing is said again
    rows = watch.rows.filter(metric="out_rms", module="1")
    assert [(row["step"], row["defined"]) for row in rows.to_dicts()] == [(0, False), (1, False)]
    assert all("watch.recompile()" in reason for reason in rows["reason"])
    watch.recompile()
    step(called, optimiser, 2, torch.float32)
    rows = watch.rows.filter(step=2, module="1")
    watch.close()
    assert rows.filter(pl.col("metric").is_in(("out_rms", "grad_rms")))["defined"].to_list() == [True, True]


def test_a_model_that_is_compiled_anew_under_a_watch_is_diagnosed() -> None:
    """The first step saw no module, so there is no order of modules."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    compiled: Any = torch.compile(model, backend="aot_eager")
    optimiser, loss = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
    x, y = torch.randn(32, 8), torch.randint(3, (32,))

    def train(steps: int) -> None:
        for _ in range(steps):
            optimiser.zero_grad()
            loss(compiled(x), y).backward()
            optimiser.step()

    train(3)
    watch = sonde.watch(compiled, optimiser, loss=loss, runs=None)
    with pytest.warns(UserWarning, match="recompile"):
        train(12)
    watch.recompile()
    train(30)
    assert watch.rows.filter(metric="dead_share").height
    assert all(one.name for one in watch.diagnose())
    watch.close()
