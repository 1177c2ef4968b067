"""The programs of the fault suite, where it is at hand: watched, they train the same bits, and no watch gives up."""

from typing import Any

import pytest
import torch

import sonde
from fault_suite import CASES, NEEDS_SUITE, load

STEPS = 30

pytestmark = NEEDS_SUITE


def train(name: str, variant: str, *, watched: bool) -> tuple[list[torch.Tensor], Any]:
    program = load(name).build(variant, 0)
    watch = sonde.watch(program.model, program.optimizer, loss=program.loss_fn, runs=None) if watched else None
    for x, y in program.batches[:STEPS]:
        if program.zero_grad:
            program.optimizer.zero_grad()
        loss = program.loss_fn(program.model(x), y)
        loss.backward()
        program.optimizer.step()
        if watch is not None:
            watch.log(loss)
    return [parameter.detach().clone() for parameter in program.model.parameters()], watch


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["faulty", "fixed"])
@pytest.mark.parametrize("name", CASES or ["none"])
def test_a_program_of_the_suite_trains_the_same_bits(name: str, variant: str) -> None:
    without, _ = train(name, variant, watched=False)
    with_watch, watch = train(name, variant, watched=True)
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(without, with_watch, strict=True))
    assert not watch._recorder.closed, "the watch gave up"
    losses = watch.rows.filter(metric="loss")["step"].to_list()
    assert losses == list(range(len(losses)))
    assert watch.facts["modules"]
