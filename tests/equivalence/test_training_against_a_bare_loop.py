"""Sonde's training loop against the loop a researcher would write."""

import math
from pathlib import Path

import pytest
import safetensors.torch
import torch

import sonde
from conftest import tiny_config
from sonde.config import Optimiser, Probing, RunConfig
from sonde.core.generators import generator
from sonde.models import PlainMLP, ResidualMLP, ResMLP
from sonde.rules import Backprop
from sonde.tasks import Teacher
from sonde.tasks.task import Samples
from sonde.training.program import Program, learning_rate


def bare_loop(config: RunConfig) -> tuple[list[float], dict[str, torch.Tensor]]:
    task = config.task
    x_all = torch.rand(task.samples, task.d, generator=generator(config.seed, "identity/train")) * 2 - 1  # type: ignore[attr-defined]
    x_all = x_all.double() if config.precision == "float64" else x_all
    net = config.model.build(config.signature, generator(config.seed, "init")).to(x_all.dtype)
    order = generator(config.seed, "order")
    optimiser = torch.optim.Adam(net.parameters(), lr=config.optimiser.lr, foreach=False)
    losses = []
    for _ in range(config.epochs):
        for chosen in torch.randint(task.samples, (task.steps_per_epoch, config.batch_size), generator=order):  # type: ignore[attr-defined]
            x = x_all[chosen]
            h = x
            for block in net.blocks:
                branch = torch.relu(block.linear(h))  # type: ignore[operator, union-attr]
                h = h + branch if isinstance(config.model, ResMLP) else branch
            loss = ((h - x) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return losses, net.state_dict()


@pytest.mark.parametrize("model", [PlainMLP, ResMLP])
def test_losses_and_weights_equal_the_bare_loop_in_float64(model: type, tmp_path: Path) -> None:
    config = tiny_config(model=model(d=8, L=3), precision="float64", epochs=4)
    losses, weights = bare_loop(config)
    sonde.train(config, runs=tmp_path)
    stored = sonde.load(tmp_path)
    assert stored.rows.filter(metric="batch_loss")["value"].to_list() == pytest.approx(losses, rel=1e-12)
    trained = safetensors.torch.load_file(tmp_path / config.id / "weights.safetensors")
    for name, value in weights.items():
        torch.testing.assert_close(trained[name], value, rtol=1e-11, atol=1e-13)


def bare_classification(config: RunConfig) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Cross entropy with AdamW and a cosine; what was measured in each epoch, and the weights."""
    data = config.task.load(config.seed, None, torch.device("cpu"), torch.float64)
    assert isinstance(data, Samples)
    net = config.model.build(config.signature, generator(config.seed, "init")).double()
    order = generator(config.seed, "order")
    decay = config.optimiser.weight_decay
    optimiser = torch.optim.AdamW(net.parameters(), lr=config.optimiser.lr, weight_decay=decay, foreach=False)
    measured = []
    for epoch in range(config.epochs):
        optimiser.param_groups[0]["lr"] = config.optimiser.lr * (1 + math.cos(math.pi * epoch / config.epochs)) / 2
        right, losses = 0, []
        for chosen in torch.randperm(data.train_samples, generator=order).split(config.batch_size):
            x, y = data.train_x[chosen], data.train_y[chosen]
            z = net(x)
            loss = torch.nn.functional.cross_entropy(z, y)
            right += sum(int(z[i].argmax()) == int(y[i]) for i in range(len(y)))
            losses.append(loss.item())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            z = net(data.test_x)
        known = {"train_acc": right / data.train_samples, "train_loss": sum(losses) / len(losses)}
        known["test_acc"] = sum(int(a.argmax()) == int(b) for a, b in zip(z, data.test_y, strict=True)) / len(z)
        known["test_loss"] = torch.nn.functional.cross_entropy(z, data.test_y).item()
        measured.append(known)
    return measured, net.state_dict()


@pytest.mark.parametrize("d", [12, 16], ids=["alone", "stacked"])
def test_accuracies_losses_and_weights_of_a_classification_equal_the_bare_loop_in_float64(
    d: int, tmp_path: Path
) -> None:
    config = RunConfig(
        model=ResidualMLP(d=d, L=2),
        rule=Backprop(),
        task=Teacher(inputs=16, samples=96, test_samples=50, d=8, classes=4),
        probes=Probing(names=("loss",), costly=(), size=8),
        optimiser=Optimiser(lr=1e-2, weight_decay=0.1),
        batch_size=32,
        epochs=4,
        precision="float64",
    )
    measured, weights = bare_classification(config)
    sonde.train(config, runs=tmp_path)
    rows = sonde.load(tmp_path).rows
    assert 0 < measured[0]["train_acc"] < measured[-1]["train_acc"]
    for epoch, known in enumerate(measured, start=1):
        for metric, value in known.items():
            stored = rows.filter(metric=metric, epoch=epoch)
            assert stored["value"].item() == pytest.approx(value, rel=1e-10), (metric, epoch)
            assert stored["samples"].item() == (96 if metric.startswith("train") else 50)
    trained = safetensors.torch.load_file(tmp_path / config.id / "weights.safetensors")
    for name, value in weights.items():
        torch.testing.assert_close(trained[name], value, rtol=1e-9, atol=1e-12)


def test_probes_leave_the_weights_bit_identical(tmp_path: Path) -> None:
    config = tiny_config()
    data = config.task.load(config.seed, None, torch.device("cpu"), torch.float32)
    with_probes, without = (Program(config, data, torch.device("cpu")) for _ in range(2))
    for epoch in range(1, 4):
        with_probes.train_epoch(epoch)
        with_probes.probe(epoch)
        without.train_epoch(epoch)
    for (name, a), b in zip(with_probes.weights().items(), without.weights().values(), strict=True):
        assert torch.equal(a, b), name


def test_the_cosine_schedule_starts_at_the_rate_and_falls_each_epoch() -> None:
    rates = [learning_rate(Optimiser(lr=0.1, schedule="cosine"), epoch, 10) for epoch in range(1, 11)]
    assert rates[0] == 0.1
    assert rates == sorted(rates, reverse=True)
    assert rates[5] == pytest.approx(0.05)
