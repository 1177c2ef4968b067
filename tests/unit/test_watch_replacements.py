"""A layer or parameter that is replaced during training is watched from then on, and it is said."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.observe import WatchWarning
from watch_programs import plain_mlp, vectors


def trained(model: nn.Module, optimiser: torch.optim.Optimizer) -> Tensor:
    optimiser.zero_grad()
    out: Tensor = model(vectors(0)[0])
    out.square().mean().backward()
    optimiser.step()
    return out.detach()


def rms(x: Tensor) -> float:
    return math.sqrt(float(x.double().square().mean()))


@pytest.mark.parametrize("later", [False, True], ids=["in the first steps", "between watched steps"])
@pytest.mark.parametrize("held", [True, False], ids=["in the optimiser", "in none"])
def test_a_layer_in_place_of_another_is_watched_under_its_name(later: bool, held: bool) -> None:
    torch.manual_seed(0)
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None, every=5)
    for _ in range(12 if later else 3):
        trained(model, optimiser)
    model[4] = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 4))
    if held:
        optimiser.add_param_group({"params": model[4].parameters()})
    begun, step = (12, 15) if later else (3, 3)
    with pytest.warns(WatchWarning, match=r"4\.0.*" if held else "in no optimiser") as said:
        outputs = [trained(model, optimiser) for _ in range(20)]
    rows = watch.rows
    watch.close()
    assert len(said) == 1
    assert [known["step"] for known in watch.facts["replaced"]] == [step]
    assert watch.facts["replaced"][0]["modules"] == ["4", "4.0", "4.1"]
    assert watch.facts["replaced"][0]["not_in_optimiser"] == (
        [] if held else ["4.0.weight", "4.0.bias", "4.1.weight", "4.1.bias"]
    )
    found = rows.filter(module="4.1", metric="out_rms").sort("step")
    assert found["step"].to_list() == [s for s in (*range(10), 10, 15, 20, 25, 30) if step <= s < begun + 20]
    for at, value in zip(found["step"], found["value"], strict=True):
        assert value == pytest.approx(rms(outputs[at - begun]), rel=1e-5)
    moved = rows.filter(module="4.1.weight", metric="update_ratio", step=step)
    assert moved["defined"].item() == held


def test_a_layer_that_is_taken_away_leaves_a_row_with_the_reason() -> None:
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    trained(model, optimiser)
    del model[4]
    with pytest.warns(WatchWarning, match="gone: 4"):
        trained(model, optimiser)
    trained(model, optimiser)
    found = watch.rows.filter(module="4", metric="out_rms").sort("step")
    watch.close()
    assert found["step"].to_list() == [0, 1], "and nothing more of it"
    assert found["defined"].to_list() == [True, False]
    assert "no longer part" in found["reason"][1]


def test_a_parameter_in_place_of_another_is_read() -> None:
    """As after `load_state_dict(assign=True)`."""
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    trained(model, optimiser)
    model[0].weight = nn.Parameter(torch.full((12, 12), 3.0))
    with pytest.warns(WatchWarning, match=r"0\.weight"):
        trained(model, optimiser)
    found: Any = watch.rows.filter(module="0.weight", metric="weight_norm", step=1)
    watch.close()
    assert found["value"].item() == pytest.approx(36.0)
    assert watch.facts["replaced"] == [
        {
            "step": 1,
            "modules": [],
            "removed": [],
            "parameters": ["0.weight"],
            "not_in_optimiser": ["0.weight"],
        }
    ]


def test_a_model_that_stays_as_it_is_has_no_such_fact() -> None:
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with sonde.watch(model, optimiser, runs=None) as watch:
        for _ in range(4):
            trained(model, optimiser)
        assert "replaced" not in watch.facts


def test_a_layer_that_is_replaced_before_the_first_step_is_watched() -> None:
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    model[4] = nn.Linear(12, 2)
    with pytest.warns(WatchWarning, match="in no optimiser"):
        trained(model, optimiser)
    modules = {known["name"]: known for known in watch.facts["modules"]}
    assert modules["4"]["shape"] == [10, 2]
    held = {known["name"]: known["in_optimiser"] for known in watch.facts["parameters"]}
    assert held["0.weight"]
    assert not held["4.weight"]
    watch.close()


def test_tensors_in_the_place_of_parameters_for_one_call_are_no_replacement() -> None:
    """As in the inner loop of meta-learning."""
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with sonde.watch(model, optimiser, runs=None) as watch:
        for _ in range(3):
            fast = {name: parameter * 0.9 for name, parameter in model.named_parameters()}
            optimiser.zero_grad()
            torch.func.functional_call(model, fast, (vectors(0)[0],)).square().mean().backward()
            optimiser.step()
        assert "replaced" not in watch.facts
        assert watch.rows.filter(metric="weight_norm")["defined"].all()
