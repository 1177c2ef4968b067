"""Sonde's training loop against the loop a researcher would write."""

from pathlib import Path

import pytest
import torch

import sonde
from conftest import tiny_config
from sonde.config import Optimiser, RunConfig
from sonde.generators import generator
from sonde.models import PlainMLP, ResMLP
from sonde.training.program import Program, learning_rate


def bare_loop(config: RunConfig) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.set_num_threads(1)
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
    import safetensors.torch

    trained = safetensors.torch.load_file(tmp_path / config.id / "weights.safetensors")
    for name, value in weights.items():
        torch.testing.assert_close(trained[name], value, rtol=1e-11, atol=1e-13)


def test_probes_leave_the_weights_bit_identical(tmp_path: Path) -> None:
    torch.set_num_threads(1)
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
