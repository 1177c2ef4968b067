"""What a watch counts, hears and says: steps, backward passes, losses and facts, and findings that must not be made."""

import math
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.analysis.diagnosis import DIAGNOSES
from sonde.analysis.diagnosis.finding import Findings
from sonde.analysis.diagnosis.run_evidence import RunEvidence
from sonde.metrics.reductions import halves
from sonde.metrics.rows import WATCHED

STEPS = 60


def loud(found: Findings) -> list[str]:
    return [one.name for one in found if one.level != "note"]


# Steps


def test_with_two_optimisers_steps_that_are_not_watched_count_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    first, second = (torch.optim.SGD(part.parameters(), 0.01) for part in model)
    watch = sonde.watch(model, first, second, runs=None)
    for _ in range(STEPS):
        model(torch.randn(5, 4)).square().mean().backward()
        first.step()
        second.step()
    assert watch.step == STEPS


class TwoHeads(nn.Module):
    """Hands out what the loss does not use before what it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.aside, self.head = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x).tanh()
        return self.aside(h), self.head(h)


def test_without_an_optimiser_a_backward_pass_is_heard_from_every_output() -> None:
    model = TwoHeads()
    watch = sonde.watch(model, runs=None)
    for _ in range(STEPS):
        model(torch.randn(5, 4))[1].square().mean().backward()
    assert watch.step == STEPS - 1  # the last one is under way
    grads = watch.rows.filter(metric="weight_grad_norm", module="body.weight", defined=True)
    assert grads["step"].to_list() == [*range(10), 25, 50]


def test_a_forward_pass_alone_is_no_step_after_the_first_ten() -> None:
    model = nn.Linear(4, 2)
    watch = sonde.watch(model, runs=None)
    for _ in range(15):
        model(torch.randn(5, 4)).square().mean().backward()
    for _ in range(5):
        model(torch.randn(5, 4))
    assert watch.step == 15


def test_a_check_finds_the_gradients_of_a_loss_on_the_second_output() -> None:
    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return functional.cross_entropy(out[1], y)

    found = sonde.check(TwoHeads(), torch.randn(6, 4), torch.randint(3, (6,)), loss)
    assert [remark for remark in found.remarks if "no gradient" in remark] == [
        "no gradient reaches aside.weight, aside.bias"
    ]


class HandsOutItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), self.layer.weight


def test_a_parameter_that_is_handed_out_keeps_no_hook() -> None:
    model = HandsOutItsWeight()
    watch = sonde.watch(model, runs=None)
    for _ in range(3):
        model(torch.randn(5, 4))[0].square().mean().backward()
    watch.close()
    assert not model.layer.weight._backward_hooks


# Experiments leave the run alone


def made() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(32, 6)
    return model, torch.optim.Adam(model.parameters(), 1e-2), nn.CrossEntropyLoss(), x, x[:, :3].argmax(1)


def test_a_diagnosis_before_the_first_step_takes_no_facts_away() -> None:
    model, optimiser, loss, x, y = made()
    watch = sonde.watch(model, optimiser, loss=loss, runs=None)
    watch.diagnose(batch=(x, y))
    loss(model(x), y).backward()
    optimiser.step()
    assert {"experiments", "modules", "parameters", "optimisers", "inputs", "loss_ops"} <= set(watch.facts)


def test_a_diagnosis_in_a_watched_step_takes_no_loss_away() -> None:
    model, optimiser, loss, x, y = made()
    watch = sonde.watch(model, optimiser, loss=loss, runs=None)
    for step in range(4):
        if step == 2:
            watch.diagnose(batch=(x, y))
        value = functional.cross_entropy(model(x), y)
        value.backward()
        watch.log(value)
        optimiser.step()
    assert watch.rows.filter(metric="loss")["step"].to_list() == [0, 1, 2, 3]
    assert watch.facts["targets"] == []  # those of the experiments are not the run's


class Weighted(nn.Module):
    """A loss that has something to learn itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.scale * out, y)


@pytest.mark.parametrize("is_module", [True, False])
def test_experiments_leave_the_gradients_of_a_loss_alone(is_module: bool) -> None:
    model, optimiser, _, x, y = made()
    loss = Weighted()
    watch = sonde.watch(model, optimiser, loss=loss if is_module else lambda out, y: loss(out, y), runs=None)
    loss(model(x), y).backward()
    assert loss.scale.grad is not None
    before = loss.scale.grad.clone()
    watch.diagnose(batch=(x, y))
    assert loss.scale.grad.equal(before)


# What is not finite


class Masked(nn.Module):
    """Class 0 is never the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.tensor([True, False, False, False])
        return self.layer(x).masked_fill(mask, -math.inf)


def masked_run(y: Tensor) -> Any:
    torch.manual_seed(0)
    model, x = Masked(), torch.randn(len(y), 6)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    for _ in range(3):
        optimiser.zero_grad()
        value = functional.cross_entropy(model(x), y)
        value.backward()
        optimiser.step()
        watch.log(value)
    return watch


def test_outputs_that_are_masked_are_not_broken() -> None:
    watch = masked_run(torch.randint(1, 4, (20,)))
    assert watch.rows.filter(metric="nonfinite").is_empty()
    assert "nan_origin" not in loud(watch.diagnose())


def test_a_mask_over_the_right_answer_is_where_an_infinite_loss_begins() -> None:
    found = masked_run(torch.randint(0, 4, (20,))).rows.filter(metric="nonfinite")
    assert found.select("step", "module", "value").rows() == [(0, "(model)", 1.0)]


# Gradients that are there and not read


def test_a_parameter_that_is_not_read_is_not_one_without_gradient() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.turn = nn.Parameter(torch.randn(3, dtype=torch.complex64))
            self.unused = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return (self.layer(x) * self.turn).abs()

    model = Turned()
    optimiser = torch.optim.SGD(model.parameters(), 0.01)
    watch = sonde.watch(model, optimiser, runs=None)
    for _ in range(3):
        optimiser.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimiser.step()
    assert watch.signs().without_gradient == {"unused"}


def test_a_check_reads_sparse_gradients() -> None:
    model = nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    found = sonde.check(model, torch.randint(7, (8, 3)), torch.randint(3, (8,)))
    assert not [remark for remark in found.remarks if "no gradient" in remark]
    assert found.rows.filter(metric="weight_grad_norm", module="0.weight")["defined"].item()


# Chance


@pytest.mark.parametrize("places", [5, 3, 40])
@pytest.mark.parametrize("kind", ["maps", "tokens", "tokens turned", "tokens made flat", "images", "grids"])
def test_the_loss_of_chance_is_that_of_as_many_classes_as_the_loss_tells_apart(kind: str, places: int) -> None:
    torch.manual_seed(0)
    make: dict[str, tuple[nn.Module, Tensor]] = {
        "maps": (nn.Conv1d(2, 3, 1), torch.randn(4, 2, places)),
        "images": (nn.Conv2d(2, 3, 1), torch.randn(4, 2, places, 6)),
        "grids": (nn.Linear(2, 3), torch.randn(4, places, 6, 2)),
    }
    model, x = make.get(kind, (nn.Linear(2, 3), torch.randn(4, places, 2)))
    shape = [4, places, 6] if kind in ("images", "grids") else [4, places]
    y = torch.randint(3, shape)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        if kind == "tokens turned":
            return functional.cross_entropy(out.transpose(1, 2), y)
        if kind in ("tokens made flat", "tokens", "grids"):
            return functional.cross_entropy(out.reshape(-1, 3), y.flatten())
        return functional.cross_entropy(out, y)

    optimiser = torch.optim.SGD(model.parameters(), 0.0)
    watch = sonde.watch(model, optimiser, runs=None)
    for _ in range(3):
        value = loss(model(x), y)
        value.backward()
        optimiser.step()
        watch.log(value)
    assert watch.signs().loss_of_chance == pytest.approx(math.log(3))


def signs(rows: list[dict[str, Any]], facts: dict[str, Any], steps: int = 200) -> RunEvidence:
    known = [{"defined": True, "samples": 1} | row for row in rows]
    return RunEvidence(rows=pl.DataFrame(known, schema=WATCHED), facts=facts, steps=steps)


@pytest.mark.parametrize(("targets", "classes"), [([4, 200], 3), ([4, 3], 200), ([800], None), (None, None)])
def test_where_the_loss_does_not_show_its_classes_the_targets_do(
    targets: list[int] | None, classes: int | None
) -> None:
    losses = [{"step": step, "metric": "loss", "value": 1.0} for step in range(3)]
    facts: dict[str, Any] = {"output_shape": [4, 200, 3], "loss_ops": ["NllLoss", "LogSoftmax", "View"]}
    facts["targets"] = [] if targets is None else [{"shape": targets}]
    expected = None if classes is None else pytest.approx(math.log(classes))
    assert signs(losses, facts).loss_of_chance == expected


# Weight decay


def decayed(optimiser: dict[str, Any], *, told: bool) -> Any:
    """A run whose updates are as small as what weight decay takes away at the first rate."""
    rows = [
        {"step": step, "module": "layer.weight", "metric": "update_ratio", "value": 1e-4}
        for step in (0, 25, 50, 75, 100)
    ]
    if told:
        rows += [{"step": step, "metric": "loss", "value": 1.0} for step in range(100)]
    facts = {
        "modules": [{"name": "layer", "calls": 1, "kind": "linear", "shape": [8, 4]}],
        "parameters": [{"name": "layer.weight", "shape": [4, 4], "requires_grad": True}],
        "optimisers": [optimiser],
    }
    return DIAGNOSES["over_regularised"].find(signs(rows, facts))


def group(**more: Any) -> list[dict[str, Any]]:
    return [{"lr": 1e-2, "weight_decay": 1e-2} | more]


def test_weight_decay_is_blamed_only_where_the_run_is_known_not_to_learn() -> None:
    adam = {"type": "AdamW", "groups": group()}
    assert decayed(adam, told=False) is None
    assert decayed(adam, told=True).name == "over_regularised"


@pytest.mark.parametrize("kind", ["NAdam", "RAdam"])
def test_weight_decay_pulls_by_itself_only_where_it_is_decoupled(kind: str) -> None:
    assert decayed({"type": kind, "groups": group(decoupled_weight_decay=False)}, told=True) is None
    assert decayed({"type": kind, "groups": group(decoupled_weight_decay=True)}, told=True) is not None


# Bands over initialisations


class Plain(nn.Module):
    """Parameters that no module knows how to draw; with a layer that does."""

    def __init__(self, *, layer: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.layer = nn.Linear(4, 3) if layer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x @ self.weight)


def test_where_nothing_is_drawn_anew_there_is_no_band() -> None:
    found = sonde.check(Plain(layer=False), torch.randn(8, 4), torch.randint(4, (8,)), inits=5)
    assert found.band is None
    assert any("no band" in remark for remark in found.remarks)
    assert "fresh initialisations." not in str(found)


def test_where_some_parameters_are_not_drawn_anew_a_note_says_how_many() -> None:
    found = sonde.check(Plain(layer=True), torch.randn(8, 4), torch.randint(3, (8,)), inits=5)
    assert found.band is not None
    assert any(remark.startswith("1 of 3 parameters are the same") for remark in found.remarks)


# An encoder


@pytest.mark.parametrize("with_batch", [True, False])
def test_the_activation_of_an_encoder_is_not_that_of_the_output(with_batch: bool) -> None:
    torch.manual_seed(0)
    encoder, head = nn.Sequential(nn.Linear(6, 16), nn.Tanh()), nn.Linear(16, 3)
    x = torch.randn(64, 6)
    y = x[:, :3].argmax(1)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(head(out), y)

    optimiser = torch.optim.Adam([*encoder.parameters(), *head.parameters()], 1e-2)
    watch = sonde.watch(encoder, optimiser, loss=loss, runs=None)
    for _ in range(3 if with_batch else 40):
        optimiser.zero_grad()
        value = loss(encoder(x), y)
        value.backward()
        optimiser.step()
        if not with_batch:
            watch.log(value)
    found = watch.diagnose(batch=(x, y)) if with_batch else watch.diagnose()
    assert "wrong_output_activation" not in loud(found)


def test_an_odd_sample_belongs_to_neither_half_of_grad_noise() -> None:
    """Halves of different size would disagree by their size alone."""
    grad = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    first, second = grad[:2].sum(0).double(), grad[2:4].sum(0).double()
    expected = torch.stack([first @ second, first @ first, second @ second])
    assert torch.allclose(halves(grad), expected, rtol=1e-6)
    assert torch.equal(halves(grad), halves(grad[:4]))
