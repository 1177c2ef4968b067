"""Faults of how a run is set up, beside the same programs without them; what rows show of targets and inputs."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from faulty_programs import FAULTY, Program, layers, of_numbers, plain
from sonde.analysis.diagnosis.finding import Findings


def loud(found: Findings) -> list[str]:
    return [one.name for one in found if one.level != "note"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def padding_left_out() -> Program:
    program = FAULTY["loss_over_padding"]()
    program.loss = lambda out, y: functional.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=0)
    return program


def tied() -> Program:
    program = FAULTY["untied_weights"]()
    program.model.head.weight = program.model.table.weight
    program.optimiser = torch.optim.Adam(program.model.parameters(), 1e-2)
    return program


def averaged() -> Program:
    program = FAULTY["stale_copy"]()
    pairs = [*zip(program.model.slow.parameters(), program.model.fast.parameters(), strict=True)]

    @torch.no_grad()
    def average(*_: object) -> None:
        for slow, fast in pairs:
            slow.lerp_(fast, 0.1)

    program.optimiser.register_step_post_hook(average)
    return program


def two_groups() -> Program:
    program = plain()
    first, last = program.model[:-1], program.model[-1]
    program.optimiser = torch.optim.Adam(first.parameters(), 3e-3)
    program.other = torch.optim.SGD(last.parameters(), 0.1)
    return program


def gains_without_decay() -> Program:
    program = FAULTY["decayed_gains"]()
    for group in program.optimiser.param_groups:
        group["weight_decay"] = 0.0
    return program


def usual_statistics() -> Program:
    program = FAULTY["eval_mismatch"]()
    program.model[1].momentum = 0.1
    return program


def large_head() -> Program:
    program = plain()
    program.model = layers(10, 32, 32, 12)
    program.optimiser, program.batch = torch.optim.Adam(program.model.parameters(), 3e-3), 128
    return program


@pytest.mark.parametrize(
    "make", [padding_left_out, tied, averaged, two_groups, gains_without_decay, usual_statistics, large_head]
)
def test_without_the_fault_of_its_setup_a_program_has_no_finding(make: Callable[[], Program]) -> None:
    found = make().diagnosed()
    assert loud(found) == [], str(found)


def test_a_remedy_that_is_mechanical_is_code() -> None:
    (finding,) = [one for one in FAULTY["loss_over_padding"]().diagnosed() if one.level != "note"]
    assert "ignore_index=0" in finding.remedy


def test_sorted_batches_are_seen_where_the_loss_is_a_function() -> None:
    program = FAULTY["data_order"]()
    program.loss = functional.cross_entropy
    assert loud(program.diagnosed())[0] == "data_order"


def test_a_negative_distance_has_the_wrong_sign() -> None:
    program = of_numbers(layers(2, 16, 1))
    program.loss = lambda out, y: -functional.smooth_l1_loss(out, y)
    watch = program.watched()
    assert loud(watch.diagnose()) == ["wrong_loss"]
    assert loud(watch.diagnose(batch=program.batches()[0])) == ["wrong_loss"]


def test_inputs_that_are_not_numbers_are_named_before_the_operation_that_meets_them() -> None:
    program = plain()
    program.x = program.x.log()
    found = program.diagnosed()
    assert loud(found) == ["nan_origin"]
    assert "inputs" in found[0].evidence[0]


def test_labels_are_not_blamed_for_weights_that_did_not_move() -> None:
    program = plain()
    program.optimiser = torch.optim.SGD(program.model.parameters(), 0.1)
    program.optimiser.register_step_pre_hook(
        lambda *_: [p.grad.mul_(1e-6) for p in program.model.parameters() if p.grad is not None] and None
    )
    assert "wrong_labels" not in loud(program.diagnosed())


def test_a_hard_batch_is_no_measure_of_a_constant_answer_to_all_samples() -> None:
    program = of_numbers(layers(2, 32, 1))
    program.loss = nn.MSELoss()
    batches = [(x, y[torch.randperm(len(y))]) for x, y in program.batches()]
    program.batches = lambda: batches  # type: ignore[method-assign]
    found = program.diagnosed()
    assert {"not_learning", "wrong_labels"} & {*loud(found)}, str(found)
