"""`sonde.scaling`: exponents, groups, verdicts, effects against their definition, resuming, one-line errors."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import sonde
from sonde.analysis import scaling as analysis
from sonde.analysis.scaling import common_drift, exponent_of
from sonde.analysis.scaling_result import Exponent
from sonde.cli.diagnose import rates_of
from sonde.observe.scaling import SizeStudy, parameter_groups
from sonde.show.figures.scaling import group_line

SIZES = [32, 64, 128, 256]
MADE: list[int] = []  # the width of every model


def mup(width: int, lr: float = 2e-3, *, readout: float = 1.0, zero: bool = False) -> Any:
    """µP for Adam: hidden and readout rates ∝ 1/width; `readout` is a power that may be wrong."""
    MADE.append(width)
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))
    nn.init.normal_(model[2].weight, 0, width**-0.5)
    nn.init.normal_(model[4].weight, 0, 0 if zero else 4 / width)
    rates = {"2.weight": 32 / width, "4.weight": (32 / width) ** readout}
    groups = [{"params": [p], "lr": lr * rates.get(name, 1.0)} for name, p in model.named_parameters()]
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 8, generator=rng), torch.randint(4, (16,), generator=rng)
    return model, torch.optim.Adam(groups), x, y, nn.CrossEntropyLoss()


def study(make: Any, **options: Any) -> SizeStudy:
    return sonde.scaling(make, {"width": SIZES}, seeds=3, **{"runs": None, **options})["width"]


@pytest.fixture(scope="module")
def correct() -> SizeStudy:
    return study(mup)


def test_a_correct_parametrisation_is_stable_everywhere(correct: SizeStudy) -> None:
    assert [one.group for one in correct.deviating] == []
    assert {one.quantity for one in correct.exponents} == {
        "activation",
        "change",
        "gradient",
        "input",
        "update",
        "effect",
    }
    assert {one.step for one in correct.exponents} == {0, 1, 2, 5, 10}


def test_a_readout_whose_rate_is_not_scaled_is_named_alone() -> None:
    found = study(partial(mup, readout=0.0))
    assert [one.group for one in found.causes] == ["4.weight"]
    (cause,) = found.causes
    assert cause.verdict == "grows"
    assert cause.exponent is not None
    assert cause.exponent.value == pytest.approx(1, abs=0.15)
    assert "width^−1" in cause.remedy


def test_a_readout_that_starts_at_zero_is_judged_from_the_first_step_that_has_an_effect() -> None:
    found = study(partial(mup, zero=True))
    hidden = next(one for one in found.verdicts if one.group == "2.weight")
    assert hidden.exponent is not None
    assert hidden.exponent.step == 1
    assert not found.deviating


def test_the_standard_promise_is_about_step_0_alone() -> None:
    found = study(partial(mup, readout=0.0), promise="standard")
    assert {one.exponent.step for one in found.verdicts if one.exponent} == {0}


def test_effect_and_change_equal_their_definitions() -> None:
    """SGD in float64: the effect is lr ‖∂loss/∂W‖²/‖∂loss/∂out‖."""
    made: dict[str, Any] = {}

    def make(width: int) -> Any:
        model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 4)).double()
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)).double()
        made[str(width)] = [p.detach().clone() for p in model.parameters()]
        return model, torch.optim.SGD(model.parameters(), lr=0.1), x, x[:, :4]

    found = sonde.scaling(make, {"width": [4, 6, 8]}, seeds=2, runs=None)["width"]
    model, optimiser, x, y = make(8)
    with torch.no_grad():
        torch.manual_seed(1)
        fresh = make(8)[0]
        for own, other in zip(model.parameters(), fresh.parameters(), strict=True):
            own.copy_(other)
    first = model(x)
    first.retain_grad()
    nn.functional.mse_loss(first, y).backward()
    error = float(first.grad.norm())
    effect = 0.1 * float(model[2].weight.grad.square().sum()) / error
    optimiser.step()
    change = float((model(x) - first).detach().square().mean().sqrt())
    known = found.values.filter(size=8, seed=1)
    assert 2 ** known.filter(group="2.weight", quantity="effect", step=0)["value"].item() == pytest.approx(
        effect, rel=1e-9
    )
    assert 2 ** known.filter(group="(model)", quantity="change", step=1)["value"].item() == pytest.approx(
        change, rel=1e-9
    )


def test_an_exponent_is_the_slope_without_the_largest_size() -> None:
    lines = [
        (size, seed, 0.5 * math.log2(size) + seed + (1.0 if size == 256 else 0.0)) for size in SIZES for seed in (0, 1)
    ]
    found = exponent_of(pl.DataFrame(lines, schema=["size", "seed", "value"], orient="row"), SIZES)
    assert found is not None
    assert found["value"] == pytest.approx(0.5, abs=1e-12)
    assert found["left_out"] == pytest.approx(2, rel=1e-9)


def test_verdict_of_an_exponent_needs_size_and_certainty() -> None:
    def of(value: float, low: float, high: float) -> Exponent:
        return Exponent(group="", quantity="", step=0, value=value, low=low, high=high, seeds=3, left_out=1.0)

    assert of(0.5, 0.4, 0.6).verdict() == "grows"
    assert of(-0.5, -0.6, -0.4).verdict() == "vanishes"
    assert of(0.5, -0.1, 1.1).verdict() == "undecided"
    assert of(0.1, -2.0, 2.2).verdict() == "undecided"
    assert of(0.2, 0.1, 0.3).verdict() == "stable"
    assert of(0.0, -0.1, 0.1).verdict(-0.5) == "grows"


def test_the_common_drift_is_the_median_unless_it_is_a_fault() -> None:
    assert common_drift([0.1, 0.12, 0.14, 1.0]) == pytest.approx(0.13)
    assert common_drift([1.0, 1.0, 1.0, 0.0]) == 0.0
    assert common_drift([0.1, 0.1]) == 0.0


def test_the_best_rate_is_the_lowest_point_of_a_parabola() -> None:
    rates = np.arange(-10.0, -2.0)
    place, is_edge = analysis._lowest(rates, np.exp((rates + 5.3) ** 2))
    assert place == pytest.approx(-5.3, abs=1e-9)
    assert not is_edge
    assert analysis._lowest(rates, np.exp(rates))[1]


def test_rates_tell_whether_the_best_one_moves() -> None:
    result = study(mup, rates=[2.0**k for k in (-9, -6, -3)])
    found = result.transfer
    assert found is not None
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["transfer"]["words"] == found.words
    assert found.losses.height == len(SIZES) * 3 * 3
    assert found.words


def test_groups_are_parameters_of_one_pattern_whose_same_axes_grow() -> None:
    groups = parameter_groups(mup(32)[0], mup(64)[0])
    assert {label: group["role"] for label, group in groups.items()} == {
        "0.weight": "input",
        "*.bias (Linear, vector)": "vector",
        "2.weight": "hidden",
        "4.weight": "output",
        "4.bias": "fixed",
    }
    assert groups["*.bias (Linear, vector)"]["members"] == ["0.bias", "2.bias"]


class Residual(nn.Module):
    """Blocks that are added up, with a power of the depth in front."""

    def __init__(self, depth: int, power: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(32, 32, bias=False) for _ in range(depth)])
        for block in self.blocks:
            nn.init.normal_(block.weight, 0, 32**-0.5)
        self.scale = 0.7 * (depth / 4) ** power * 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + self.scale * block(x)
        return x


@pytest.mark.parametrize(("power", "named"), [(-0.5, []), (0.0, ["(output) after blocks.*"])])
def test_residual_branches_without_a_scale_are_named(power: float, named: list[str]) -> None:
    def make(depth: int) -> Any:
        model = Residual(depth, power)
        return model, torch.optim.SGD(model.parameters(), lr=1e-3)

    found = sonde.scaling(make, {"depth": [4, 8, 16, 32]}, shape=(16, 32), seeds=4, runs=None)["depth"]
    assert [one.group for one in found.causes] == named


def test_runs_are_watched_runs_and_are_not_trained_twice(tmp_path: Path) -> None:
    MADE.clear()
    first = study(mup, runs=str(tmp_path / "runs"))
    assert len(MADE) == 2 + len(SIZES) * 3  # two to see which axes grow
    MADE.clear()
    again = study(mup, runs=str(tmp_path / "runs"))
    assert len(MADE) == 2
    assert again.words() == first.words()
    stored = sonde.load(tmp_path / "runs")
    assert len(stored.watched) == len(SIZES) * 3
    page = stored.report(tmp_path / "report.html").read_text()
    assert "over width = 32, 64, 128, 256" in page
    assert first.words()[0].split("(")[0] in page


def test_the_figure_shows_every_group_relative_to_what_is_asked(correct: SizeStudy) -> None:
    figure = correct.figure()
    drawn = {line.get_gid() for ax in figure.axes for line in ax.lines} - {None}
    assert drawn == {one.group for one in correct.verdicts if one.exponent}
    readout = next(one for one in correct.verdicts if one.asked == -0.5)
    line = group_line(correct, readout)
    assert line["mean"][0] == 0
    assert abs(line["mean"][-1]) < 0.25 * math.log2(SIZES[-1] / SIZES[0])


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda depth: mup(depth), {}, "takes no argument 'width'"),
        (mup, {"over": {"width": [32, 64]}}, "three sizes"),
        (mup, {"over": {}}, "name the argument"),
        (mup, {"promise": "ntk"}, "choose mup or standard"),
        (mup, {"seeds": 1}, "two or more"),
        (lambda width: nn.Linear(8, width), {}, "no batch"),
        (lambda width: 3, {}, "return the model first"),
        (lambda width: mup(width), {"rates": [0.1, 0.2, 0.3]}, "takes no lr"),
    ],
)
def test_a_mistake_is_one_line(make: Any, options: dict[str, Any], words: str) -> None:
    known = {"over": {"width": [8, 16, 32]}, "seeds": 2, "runs": None, **options}
    with pytest.raises(sonde.SondeError, match=words) as error:
        sonde.scaling(make, **known)
    assert "\n" not in str(error.value)


def test_rates_are_powers_of_two_or_numbers() -> None:
    assert rates_of("2^-3..2^-1") == [0.125, 0.25, 0.5]
    assert rates_of("1e-3,1e-2,1e-1") == [1e-3, 1e-2, 1e-1]
    for wrong in ("1e-3", "2^-3", "a..b", "0,1,2"):
        with pytest.raises(sonde.SondeError, match="three rates"):
            rates_of(wrong)


def test_results_are_json(correct: SizeStudy) -> None:
    known = json.loads(json.dumps(correct.as_dict(), allow_nan=False))
    assert known["sizes"] == SIZES
    assert len(known["exponents"]) == len(correct.exponents)
