"""The programs of the fault suite, where it is at hand: healthy ones are silent, and most faults are found."""

from collections import Counter
from typing import Any

import pytest

import sonde
from fault_suite import CASES, NEEDS_SUITE, load

pytestmark = [pytest.mark.slow, NEEDS_SUITE]


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
