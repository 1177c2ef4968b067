"""The programs of the fault suite, where it is at hand: healthy ones are silent, and most faults are found."""

import importlib.util
import os
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sonde

SUITE = Path(os.environ.get("SONDE_SUITE", Path(__file__).parents[3] / "shared" / "suite"))
CASES = sorted(path.stem for path in (SUITE / "cases").glob("*.py")) if SUITE.is_dir() else []

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CASES, reason=f"no suite of programs in {SUITE}: set SONDE_SUITE"),
]


def load(name: str) -> ModuleType:
    if str(SUITE) not in sys.path:
        sys.path.insert(0, str(SUITE))
    spec = importlib.util.spec_from_file_location(name, SUITE / "cases" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    return case


def said(program: Any) -> list[str]:
    watch = sonde.watch(program.model, program.optimizer, loss=program.loss_fn, runs=None)
    for x, y in program.batches:
        if program.zero_grad:
            program.optimizer.zero_grad()
        loss = program.loss_fn(program.model(x), y)
        loss.backward()
        program.optimizer.step()
        watch.log(loss)
    found = watch.diagnose(batch=program.batches[0])
    watch.close()
    return [finding.name for finding in found if finding.level != "note"]


def test_healthy_programs_are_silent_and_faults_are_found() -> None:
    count: Counter[str] = Counter()
    for name in CASES:
        case = load(name)
        found = said(case.build("faulty" if case.FAULTS else "fixed", 0))
        if not case.FAULTS:
            assert found == [], name
            continue
        right = {*case.FAULTS, *case.ALSO}
        count["programs"] += 1
        count["first"] += bool(found) and found[0] in right
        count["said"] += len(found)
        count["right"] += sum(one in right for one in found)
        count["faults"] += len(case.FAULTS)
        count["found"] += sum(fault in found for fault in case.FAULTS)
    assert count["first"] >= 0.85 * count["programs"]
    assert count["right"] >= 0.8 * count["said"]
    assert count["found"] >= 0.7 * count["faults"]
