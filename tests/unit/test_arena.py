"""The arena's programs run, their faults have names that diagnoses know, and its intervals are Wilson's."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from sonde.analysis.diagnosis import DIAGNOSES

GROUPS = (
    "faults",
    "held_out",
    "judged_2026_11",
    "fresh_2026_11",
    "judged_2026_11_18",
    "judged_2026_11_19",
    "judged_2026_11_19_evening",
)
ARENA = Path(__file__).parents[2] / "benchmarks" / "arena"


@pytest.fixture(scope="module")
def arena() -> Any:
    sys.path.insert(0, str(ARENA))
    yield importlib.import_module
    sys.path.remove(str(ARENA))


@pytest.mark.parametrize("group", GROUPS)
def test_every_fault_is_planted_in_a_recipe_and_named_as_diagnoses_are(arena: Any, group: str) -> None:
    module = arena(group)
    for fault in module.FAULTS.values():
        assert fault.faults
        assert {*fault.faults, *fault.also} <= DIAGNOSES.keys()
        assert {*fault.recipes} <= module.HEALTHY.keys()


@pytest.mark.filterwarnings("ignore:Using a target size")  # a planted fault, which PyTorch warns of
@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step")  # a schedule whose optimiser a fault replaces
@pytest.mark.parametrize("group", GROUPS)
def test_every_fault_can_take_a_step(arena: Any, group: str) -> None:
    module = arena(group)
    for name, fault in module.FAULTS.items():
        program = module.GROUP.build(fault.recipes[0], name, 0)
        program.step(*program.batches[0])


def test_intervals_are_those_of_wilson(arena: Any) -> None:
    score = arena("score")
    for hits, of in ((0, 30), (36, 46), (20, 20)):
        exact = binomtest(hits, of).proportion_ci(method="wilson")
        assert score.wilson(hits, of) == pytest.approx((exact.low, exact.high), abs=1e-4)


def test_a_fault_harms_where_its_loss_ends_above_that_of_its_twin(arena: Any) -> None:
    harms = arena("score").harms
    assert harms([2.0, 1.5], [2.0, 1.0])
    assert harms([2.0, None], [2.0, 1.0])
    assert not harms([2.0, 1.05], [2.0, 1.0])
    assert not harms([9.0, 0.2], [2.0, 1.0])
