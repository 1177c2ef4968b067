"""What an epoch leaves: means over samples, whatever the size of the batches."""

import math

import pytest
import torch
from torch import nn

from sonde.network.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR, as_loss
from sonde.training.program import EpochLog
from sonde.training.step import Step


def test_a_smaller_last_batch_counts_for_less() -> None:
    log = EpochLog(MEAN_SQUARED_ERROR)
    for loss, size in ((1.0, 8), (2.0, 8), (10.0, 2)):
        out_NC = torch.zeros(size, 3)
        log.add(Step(loss=torch.tensor(loss), output_NC=out_NC, logs={"own": torch.tensor(loss + 1)}), out_NC)
    (epoch,) = log.read()
    found = {reading.metric: (reading.value, reading.samples) for reading in epoch.readings}
    assert found["train_loss"] == (pytest.approx((8 * 1 + 8 * 2 + 2 * 10) / 18), 18)
    assert found["own"] == (pytest.approx((8 * 2 + 8 * 3 + 2 * 11) / 18), 18)
    assert epoch.losses.tolist() == [1.0, 2.0, 10.0]
    assert epoch.sizes == [8, 8, 2]


@pytest.mark.parametrize(("labels", "right"), [([0, 1, -100, -100], 0.5), ([-100] * 4, math.nan)])
def test_ignored_labels_are_neither_right_nor_wrong(labels: list[int], right: float) -> None:
    log, y = EpochLog(as_loss(nn.CrossEntropyLoss(), (3,))), torch.tensor(labels)
    output = torch.tensor([[1.0, 0.0, 0.0]] * 4)
    log.add(Step(loss=torch.tensor(1.0), output_NC=output, logs={}), y)
    (found,) = [reading for reading in log.read()[0].readings if reading.metric == "train_acc"]
    assert found.value == pytest.approx(right, nan_ok=True)
    assert found.defined is math.isfinite(right)


def test_replicas_are_averaged_each_for_itself() -> None:
    log = EpochLog(CROSS_ENTROPY, lead=1)
    y = {4: torch.zeros(2, 4, dtype=torch.long), 1: torch.zeros(2, 1, dtype=torch.long)}
    for losses, size in (([1.0, 3.0], 4), ([6.0, 8.0], 1)):
        output = torch.zeros(2, size, 2)
        output[1, :, 1] = 1  # the second replica is always wrong
        log.add(Step(loss=torch.tensor(losses), output_NC=output, logs={}), y[size])
    first, second = ({r.metric: r.value for r in epoch.readings} for epoch in log.read())
    assert (first["train_loss"], second["train_loss"]) == pytest.approx((2.0, 4.0))
    assert (first["train_acc"], second["train_acc"]) == (1.0, 0.0)


@pytest.mark.parametrize("lead", [0, 1])
def test_outputs_of_an_epoch_are_counted_and_let_go(lead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.training.program._KEPT_OUTPUTS", 50)
    rng = torch.Generator().manual_seed(0)
    log, hits, labels = EpochLog(CROSS_ENTROPY, lead=lead), 0, 0
    for _ in range(20):
        output = torch.randn(*[1] * lead, 7, 3, generator=rng)
        y = torch.randint(3, (*[1] * lead, 7), generator=rng)
        log.add(Step(loss=torch.ones([1] * lead), output_NC=output, logs={}), y)
        assert sum(kept.numel() for kept in log.outputs) <= 50
        hits, labels = hits + int((output.argmax(-1) == y).sum()), labels + 7
    (epoch,) = log.read()
    assert {reading.metric: reading.value for reading in epoch.readings}["train_acc"] == hits / labels
