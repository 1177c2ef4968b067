"""The loss of a step against what the loop differentiates, computed beside it in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde

Loop = Callable[[nn.Module, nn.Module], float]  # one step up to the gradients: the loss that belongs into the row


def batch(place: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(place)
    many = 3 + place
    return torch.randn(many, 4, generator=rng, dtype=torch.float64), torch.randint(3, (many,), generator=rng)


def losses(model: nn.Module, criterion: nn.Module, many: int) -> list[Tensor]:
    return [criterion(model(x), y) for x, y in map(batch, range(many))]


def one(model: nn.Module, criterion: nn.Module) -> float:
    (loss,) = losses(model, criterion, 1)
    loss.backward()
    return loss.item()


def summed(model: nn.Module, criterion: nn.Module) -> float:
    """As a discriminator's loss on real and on made samples."""
    real, fake = losses(model, criterion, 2)
    (real + fake).backward()
    return (real + fake).item()


def averaged(model: nn.Module, criterion: nn.Module) -> float:
    real, fake = losses(model, criterion, 2)
    loss = (real + fake) * 0.5
    loss.backward()
    return loss.item()


def weighted(model: nn.Module, criterion: nn.Module) -> float:
    main, aside = losses(model, criterion, 2)
    loss = main + 0.3 * aside
    loss.backward()
    return loss.item()


def scaled_beyond(model: nn.Module, criterion: nn.Module) -> float:
    """One call is recorded by itself, whatever is made of it."""
    (loss,) = losses(model, criterion, 1)
    (10 * loss + 5).backward()
    return loss.item()


def logged_beside(model: nn.Module, criterion: nn.Module) -> float:
    """What is only looked at is no part of the loss."""
    kept, looked_at = losses(model, criterion, 2)
    kept.backward()
    assert looked_at.requires_grad
    return kept.item()


def accumulated(model: nn.Module, criterion: nn.Module) -> float:
    seen = []
    for x, y in map(batch, range(4)):
        loss = criterion(model(x), y)
        seen.append(loss.item())
        loss /= 4  # in place
        loss.backward()
    return sum(seen) / 4


def undivided(model: nn.Module, criterion: nn.Module) -> float:
    seen = []
    for x, y in map(batch, range(4)):
        loss = criterion(model(x), y)
        loss.backward()
        seen.append(loss.item())
    return sum(seen) / 4


def by_samples(model: nn.Module, criterion: nn.Module) -> float:
    """Micro-batches of different sizes, each weighted by its share of the samples."""
    sizes = [len(batch(place)[1]) for place in range(4)]
    total = 0.0
    for place in range(4):
        x, y = batch(place)
        loss = criterion(model(x), y) * (sizes[place] / sum(sizes))
        loss.backward()
        total += loss.item()
    return total


def accumulated_sums(model: nn.Module, criterion: nn.Module) -> float:
    total = 0.0
    for _ in range(3):
        real, fake = losses(model, criterion, 2)
        loss = (real + fake) / 3
        loss.backward()
        total += loss.item()
    return total


def undivided_sums(model: nn.Module, criterion: nn.Module) -> float:
    seen = []
    for _ in range(3):
        real, fake = losses(model, criterion, 2)
        (real + fake).backward()
        seen.append((real + fake).item())
    return sum(seen) / 3


def cleared(model: nn.Module, criterion: nn.Module) -> float:
    """The loss of a pass whose gradients are thrown away, as of a generator trained through this network."""
    for loss in losses(model, criterion, 2):
        (7 * loss).backward()
    model.zero_grad()
    return summed(model, criterion)


LOOPS: list[Loop] = [
    *(one, summed, averaged, weighted, scaled_beyond, logged_beside, accumulated, undivided, by_samples),
    *(accumulated_sums, undivided_sums, cleared),
]


def recorded(loop: Loop, criterion: nn.Module, **more: Any) -> tuple[dict[str, Any], float]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with sonde.watch(model, optimiser, loss=criterion, runs=None, **more) as watch:
        wanted = loop(model, criterion)
        optimiser.step()
        return watch.rows.filter(metric="loss").row(0, named=True), wanted


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_loss_of_a_step_is_the_one_that_is_differentiated(loop: Loop) -> None:
    found, wanted = recorded(loop, nn.CrossEntropyLoss())
    assert found["value"] == pytest.approx(wanted, rel=1e-12), found["reason"]


def test_a_loss_for_each_sample_is_read_as_it_is_reduced() -> None:
    def loop(model: nn.Module, criterion: nn.Module) -> float:
        first, second = losses(model, criterion, 2)
        loss = first.mean() + 0.5 * second.mean()
        loss.backward()
        return loss.item()

    found, wanted = recorded(loop, nn.CrossEntropyLoss(reduction="none"))
    assert found["value"] == pytest.approx(wanted, rel=1e-12)


def test_the_scale_of_a_grad_scaler_is_not_part_of_the_loss() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def loop(model: nn.Module, criterion: nn.Module) -> float:
        real, fake = losses(model, criterion, 2)
        scaler.scale(real + fake).backward()
        return (real + fake).item()

    found, wanted = recorded(loop, nn.CrossEntropyLoss(), scaler=scaler)
    assert found["value"] == pytest.approx(wanted, rel=1e-12)


def test_weights_that_do_not_tell_the_loss_make_it_undefined() -> None:
    def loop(model: nn.Module, criterion: nn.Module) -> float:
        for _ in range(3):
            first, second = losses(model, criterion, 2)
            (0.7 * first + 0.2 * second).backward()
        return 0.0

    found, _ = recorded(loop, nn.CrossEntropyLoss())
    assert not found["defined"]
    assert "watch.log" in found["reason"]


def test_of_a_closure_the_first_evaluation_counts() -> None:
    """L-BFGS evaluates the closure several times to a step, of which the first is on the weights of the step."""
    torch.manual_seed(0)
    model, criterion = nn.Linear(4, 3).double(), nn.CrossEntropyLoss()
    optimiser = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4)
    seen, outputs, gradients = [], [], []

    def closure() -> Tensor:
        optimiser.zero_grad()
        x, y = batch(0)
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        seen.append(loss.item())
        outputs.append(out.detach())
        gradients.append(model.weight.grad.norm().item())  # type: ignore[union-attr]
        return loss

    start = model.weight.detach().clone()
    with sonde.watch(model, optimiser, loss=criterion, runs=None) as watch:
        optimiser.step(closure)
        moved = (model.weight.detach() - start).norm() / start.norm()
        optimiser.step(closure=closure)
        assert watch.step == 2
        rows = watch.rows
    assert len(seen) == 8
    for number, first in ((0, 0), (1, 4)):
        found = {row["metric"]: row["value"] for row in rows.filter(step=number).to_dicts() if row["module"] != "bias"}
        assert found["loss"] == pytest.approx(seen[first], rel=1e-12)
        assert found["out_rms"] == pytest.approx(float(outputs[first].square().mean().sqrt()), rel=1e-12)
        assert found["weight_grad_norm"] == pytest.approx(gradients[first], rel=1e-12)
    assert rows.filter(step=0, module="weight", metric="update_ratio")["value"].item() == pytest.approx(float(moved))
