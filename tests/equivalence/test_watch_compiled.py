"""Compiled models: training is the same to the last bit, and what cannot be seen is said to be undefined."""

import shutil
import warnings
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

import sonde
from watch_programs import plain_mlp, vectors

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
BACKENDS = ["eager", pytest.param("inductor", marks=[NEEDS_COMPILER, pytest.mark.slow])]


def run(wrap: Callable[[nn.Module], tuple[nn.Module, nn.Module]], *, watched: bool) -> tuple[list[torch.Tensor], Any]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    called, given = wrap(plain_mlp())
    optimiser = torch.optim.Adam(given.parameters(), 1e-2)
    watch = sonde.watch(given, optimiser, runs=None, every=12) if watched else None
    losses = []
    for step in range(14):
        optimiser.zero_grad()
        loss = called(vectors(step)[0]).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return [*(parameter.detach().clone() for parameter in given.parameters()), *losses], watch


def compiled(backend: str) -> dict[str, Callable[[nn.Module], tuple[nn.Module, nn.Module]]]:
    def wrapper(model: nn.Module) -> tuple[nn.Module, nn.Module]:
        made: Any = torch.compile(model, backend=backend)
        return made, made

    def inside(model: nn.Module) -> tuple[nn.Module, nn.Module]:
        made: Any = torch.compile(model, backend=backend)
        return made, model

    def in_place(model: nn.Module) -> tuple[nn.Module, nn.Module]:
        model.compile(backend=backend)
        return model, model

    return {
        "the wrapper is watched": wrapper,
        "the model inside is watched": inside,
        "compiled in place": in_place,
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", compiled("eager"))
def test_a_compiled_model_trains_the_same_bits(how: str, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrap = compiled(backend)[how]
    without, _ = run(wrap, watched=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        watched, watch = run(wrap, watched=True)
    assert "compiled" in capsys.readouterr().err, "it is said"
    assert all(torch.equal(a, b) for a, b in zip(without, watched, strict=True))
    rows = watch.rows
    updates = rows.filter(metric="update_ratio")
    assert updates["defined"].all()
    assert updates["step"].unique().sort().to_list() == [*range(10), 12]
    outputs = rows.filter((pl.col("metric") == "out_rms") & (pl.col("step") == 0))
    seen = outputs.filter(pl.col("defined"))["module"].to_list()
    assert seen == (["(model)"] if how == "the wrapper is watched" else [])
    unseen = dict(outputs.filter(~pl.col("defined")).select("module", "reason").iter_rows())
    assert {"0", "1", "2", "3", "4"} <= set(unseen)
    assert all("compiled" in reason for reason in unseen.values())
