"""Faults of how a run is set up, beside the same programs without them; what rows show of targets and inputs."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import sonde
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


def one_rare_class() -> Program:
    program = plain()
    y = torch.multinomial(torch.tensor([0.3, 0.3, 0.2, 0.195, 0.005]), 4000, replacement=True)
    centres = 6 * torch.randn(5, 10)
    program.x, program.y, program.batch = centres[y] + torch.randn(4000, 10), y, 128
    return program


def ordinal_targets() -> Program:
    """Of a class, as many ones as its rank, then zeros: no padding."""
    x = torch.randn(800, 2)
    rank = (1.5 * x[:, :1] + 3).round().clamp(0, 6)
    y = (torch.arange(6) < rank).float()
    model = layers(2, 32, 6)
    loss = functional.binary_cross_entropy_with_logits
    return Program(model, loss, torch.optim.Adam(model.parameters(), 1e-2), x, y)


class Adapted(nn.Module):
    """A frozen layer with two low-rank adapters, of which one is in use."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(inputs, 4, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(4, outputs, bias=False) for _ in range(2))
        for up in self.up:
            nn.init.zeros_(up.weight)
        self.down[1].requires_grad_(False)
        self.up[1].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x) + self.up[0](self.down[0](x))
        return out


def adapters() -> Program:
    program = plain()
    program.model = nn.Sequential(Adapted(10, 32), nn.ReLU(), Adapted(32, 5))
    learning = [p for p in program.model.parameters() if p.requires_grad]
    program.optimiser = torch.optim.Adam(learning, 1e-2)
    return program


class Answers(nn.Module):
    """Logits in train mode; in eval mode probabilities, or the answers alone."""

    def __init__(self, *, names: bool) -> None:
        super().__init__()
        self.net, self.names = layers(10, 32, 32, 5), names

    def forward(self, x: torch.Tensor) -> object:
        z = self.net(x)
        if self.training:
            return z
        return {"label": z.argmax(-1)} if self.names else z.softmax(-1)


def answering(*, names: bool) -> Program:
    program = plain()
    program.model = Answers(names=names)
    program.optimiser = torch.optim.Adam(program.model.parameters(), 1e-2)
    return program


@pytest.mark.parametrize(
    "make",
    [
        *(padding_left_out, tied, averaged, two_groups, gains_without_decay, usual_statistics, large_head),
        *(one_rare_class, ordinal_targets, adapters, FAULTY["stale_copy"]),
        functools.partial(answering, names=False),
        functools.partial(answering, names=True),
    ],
)
def test_without_the_fault_of_its_setup_a_program_has_no_finding(make: Callable[[], Program]) -> None:
    found = make().diagnosed()
    assert loud(found) == [], str(found)


@pytest.mark.filterwarnings("error")
def test_experiments_are_made_where_eval_mode_returns_something_else() -> None:
    program = answering(names=True)
    watch = program.watched()
    watch.diagnose(batch=program.batches()[0])
    assert watch.facts["experiments"]["loss_now"] < 0.5, "the other experiments were made"


def test_a_mask_of_minus_infinity_is_no_broken_input() -> None:
    """The loss breaks in its own logarithm; inputs are named only if they are broken."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = layers(10, 32, 5)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(x + torch.where(mask[:1, :10].isinf(), 0.0, 0.1))
            return out

    model = Masked()
    mask = torch.full((32, 32), -torch.inf).triu(1)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    watch = sonde.watch(model, optimiser, runs=None)
    for x, _ in plain().batches()[:20]:
        optimiser.zero_grad()
        loss = model(x, mask).log().mean()
        watch.log(loss)
        loss.backward()
        optimiser.step()
    found = watch.diagnose()
    watch.close()
    assert loud(found)[0] == "nan_origin"
    assert not any("inputs are NaN" in said for one in found for said in one.evidence), str(found)


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


def normalised() -> Program:
    """Batch normalisation between two layers."""
    program = plain()
    wide = program.model[0].out_features
    program.model.insert(1, nn.BatchNorm1d(wide))
    program.optimiser = torch.optim.Adam(program.model.parameters(), 3e-3)
    return program


@pytest.mark.parametrize("undone", [None, 0, 5], ids=["never", "before the first step", "later"])
def test_frozen_normalisation_that_is_put_in_train_mode_is_found(undone: int | None) -> None:
    program = normalised()
    norm = program.model[1].requires_grad_(False).eval()
    watch = sonde.watch(program.model, program.optimiser, runs=None)
    for step, (x, y) in enumerate(program.batches()):
        norm.train(undone is not None and step >= undone)
        program.optimiser.zero_grad()
        loss = program.loss(program.model(x), y)
        watch.log(loss)
        loss.backward()
        program.optimiser.step()
    found = watch.diagnose()
    watch.close()
    assert loud(found) == ([] if undone is None else ["wrong_mode"]), str(found)


class Code(nn.Module):
    """An autoencoder whose sparse code is a part of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Sequential(nn.Linear(10, 16), nn.Sigmoid()), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.code = self.down(x)
        out: torch.Tensor = self.up(self.code)
        return out


@pytest.mark.parametrize("logged", [True, False], ids=["sum logged beside a module", "one function"])
def test_a_loss_of_several_terms_is_judged_by_its_whole(logged: bool) -> None:
    model, part = Code(), nn.MSELoss()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)

    def whole(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        share = model.code.mean(0)
        return functional.mse_loss(out, x) - 0.3 * (0.05 * share.log() + 0.95 * (1 - share).log()).sum()

    watch = sonde.watch(model, optimiser, loss=part if logged else whole, runs=None)
    for x in 2 + torch.randn(150, 32, 2) @ torch.randn(2, 10):
        optimiser.zero_grad()
        out = model(x)
        part(out, x)
        loss = whole(out, x)
        loss.backward()
        optimiser.step()
        watch.log(loss)
    assert watch.facts["further_terms"]
    assert loud(watch.diagnose()) == []
    assert "not_learning" not in loud(watch.diagnose(batch=(x, x)))
    watch.close()


def test_targets_that_the_loss_ignores_are_no_class() -> None:
    program = plain()
    hidden = torch.rand(len(program.y)) < 0.8
    program.y = torch.where(hidden, -100, program.y)
    watch = sonde.watch(program.model, program.optimiser, loss=(loss := nn.CrossEntropyLoss()), runs=None)
    for x, y in program.batches():
        program.optimiser.zero_grad()
        loss(program.model(x), y).backward()
        program.optimiser.step()
    watch.diagnose(batch=program.batches()[0])
    (target,) = watch.facts["targets"]
    assert target["top_share"] < 0.8
    assert watch.facts["experiments"]["targets"]["top_share"] < 0.8
    watch.close()
