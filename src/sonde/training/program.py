"""A run in memory: network, rule, optimiser, data and generators, advanced one epoch at a time."""

from typing import Any

import torch
from torch import Tensor

from sonde.config import Optimiser, RunConfig
from sonde.generators import generator
from sonde.probes import PROBES, take
from sonde.rows import Reading
from sonde.tasks import Data

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Program:
    """Everything a run needs to go on; `state` and `restore` carry all of it across a crash."""

    def __init__(self, config: RunConfig, data: Data, device: torch.device) -> None:
        self.config = config
        self.data = data
        self.device = device
        net = config.model.build(config.task.shape, config.task.outputs, generator(config.seed, "init"))
        self.net = net.to(device, DTYPES[config.precision])
        self.optimiser = _optimiser(config.optimiser, list(self.net.parameters()))
        self.order = generator(config.seed, "order")
        self.steps_per_epoch = data.steps(config.batch_size)

    def train_epoch(self, epoch: int) -> Tensor:
        """One epoch of optimiser steps; returns the loss of every batch, still on the device."""
        config, loss = self.config, self.data.loss
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(config.optimiser, epoch, config.epochs)
        losses = torch.empty(self.steps_per_epoch, device=self.device, dtype=DTYPES[config.precision])
        self.net.train()
        for step, (x, y) in enumerate(self.data.batches(config.batch_size, self.order)):
            self.optimiser.zero_grad(set_to_none=True)
            losses[step] = config.rule.gradients(self.net, x, y, loss)
            self.optimiser.step()
        return losses

    def probe(self) -> list[Reading]:
        """What the configured probes read on the first test samples."""
        size = self.config.probes.size
        snapshot = take(self.net, *self.data.test(0, size), self.data.loss)
        return [reading for name in self.config.probes.names for reading in PROBES[name](snapshot)]

    def weights(self) -> dict[str, Tensor]:
        return dict(self.net.state_dict())

    def finite(self) -> bool:
        return all(bool(torch.isfinite(p).all()) for p in self.net.parameters())

    def state(self) -> dict[str, Any]:
        """What training needs beside the weights."""
        return {"optimiser": self.optimiser.state_dict(), "order": self.order.get_state()}

    def restore(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        self.net.load_state_dict(weights)
        self.optimiser.load_state_dict(state["optimiser"])
        self.order.set_state(state["order"])


def learning_rate(optimiser: Optimiser, epoch: int, epochs: int) -> float:
    """The rate of an epoch (counted from 1): constant, or lr·(1 + cos(π·(epoch−1)/epochs))/2."""
    if optimiser.schedule == "constant":
        return optimiser.lr
    return (
        optimiser.lr
        * (1 + torch.cos(torch.tensor(torch.pi * (epoch - 1) / epochs, dtype=torch.float64)).item())
        / 2
    )


def _optimiser(config: Optimiser, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True)
