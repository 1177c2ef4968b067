"""A run in memory: network, rule, optimiser, data and generators, advanced one epoch at a time."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sonde.config import RunConfig, probe_of
from sonde.core.errors import SondeError
from sonde.core.generators import GlobalDraws, generator
from sonde.core.optimisers import Optimiser, PluginOptimiser
from sonde.metrics.probes import DRAWS, FEW_DRAWS, Context, Snapshot, take
from sonde.metrics.rows import Reading
from sonde.models.model import to_network
from sonde.network import vector_axis
from sonde.tasks import Data
from sonde.training.assign import CreditAssignment
from sonde.training.backward_by_hand import step_of
from sonde.training.bf16 import use_bf16
from sonde.training.epoch import Epoch, EpochLog
from sonde.training.optimise import make_optimiser

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}  # of weights
TEST_BATCH = 1000


class Program:
    """Everything a run needs to go on; `state` and `restore` carry all of it across a crash."""

    def __init__(self, config: RunConfig, data: Data, device: torch.device) -> None:
        self.config = config
        self.data = data
        self.device = device
        self.dtype = DTYPES[config.precision]
        self.draws = GlobalDraws(generator(config.seed, "draws"), device)
        with self.draws:
            net = to_network(config.model.build(config.signature, generator(config.seed, "init")))
        self.net = net.to(device, self.dtype)
        if config.precision == "bf16":
            use_bf16(self.net)
        self.initial = {name: p.detach().clone() for name, p in self.net.named_parameters()}
        self.order = generator(config.seed, "order")
        self.steps_per_epoch = data.steps(config.batch_size)
        sample, _ = data.test(0, 2)
        self.width = self._fits(sample)
        with self.draws:
            self.credit = CreditAssignment(
                self.net,
                config.rule,
                sample=sample,
                loss=data.loss,
                steps=config.epochs * self.steps_per_epoch,
                seed=config.seed,
            )
        self.optimiser = make_optimiser(config.optimiser, self.credit.parameters())
        self.loss = self.credit.loss
        self.backward = step_of(config, self.net, self.credit.state, self.loss)

    def train_epoch(self, epoch: int, beat: Callable[[], object] = lambda: None) -> Epoch:
        """One epoch of optimiser steps; nothing is read from the device before its end.

        `beat` is called after every step.
        """
        config = self.config
        lr = learning_rate(config.optimiser, epoch, config.epochs)
        log = EpochLog(self.loss)
        self.net.train()
        with self.draws:
            for x, y in self.data.batches(config.batch_size, self.order):
                step = self.backward(x, y)
                self.optimiser.step(lr)
                log.add(step, y)
                beat()
        return log.read()[0]

    @torch.no_grad()
    def evaluate(self) -> list[Reading]:
        """Mean loss and, for classification, accuracy over the whole test set."""
        data, samples = self.data, self.data.test_samples
        total = torch.zeros((), device=self.device, dtype=torch.float32 if self.device.type == "mps" else torch.float64)
        correct, labels = torch.zeros((), device=self.device, dtype=torch.int64), 0
        self.net.eval()
        with self.draws:
            for first in range(0, samples, TEST_BATCH):
                x, y = data.test(first, min(first + TEST_BATCH, samples))
                output = self.net(x)
                total += self.loss.per_sample(output, y).sum()
                if self.loss.hits is not None:
                    hits = self.loss.hits(output, y)
                    correct, labels = correct + hits.sum(), labels + hits.numel()
        self.net.train()
        readings = [Reading(metric="test_loss", value=total.item() / samples, samples=samples)]
        if self.loss.classifies:
            right = correct.item() / labels if labels else math.nan
            readings.append(Reading(metric="test_acc", value=right, samples=samples))
        return readings

    def probe(self, epoch: int) -> list[Reading]:
        """What the probes that are due after an epoch read on the first test samples."""
        names = self.config.probes.due(epoch, self.config.epochs)
        if not names:
            return []
        with self.draws:
            snapshot = self.snapshot(epoch)
            return [reading for name in names for reading in probe_of(name)(snapshot)]

    def snapshot(self, epoch: int) -> Snapshot:
        """The network after an epoch, as all probes see it."""
        config, probing = self.config, self.config.probes
        names = probing.due(epoch, config.epochs)
        context = Context(
            credits=self.credit.credits,
            feedback=self.credit.feedback,
            redrawn=self.credit.redrawn,
            initial=self.initial,
            test=self.data.test,
            test_samples=self.data.test_samples,
            seed=config.seed,
            epoch=epoch,
            directions=probing.directions,
            draws=DRAWS if "rho" in names else FEW_DRAWS,
            etas=probing.etas,
            epsilon=probing.epsilon,
        )
        return take(self.net, *self.data.test(0, probing.size), self.loss, context)

    def weights(self) -> dict[str, Tensor]:
        """Everything the network is made of; weights that stand in two places are stored twice."""
        found: dict[str, Tensor] = {}
        places = set()
        for name, value in self.net.state_dict().items():
            value = value.contiguous()
            found[name] = value.clone() if value.data_ptr() in places else value
            places.add(value.data_ptr())
        return found

    def finite(self) -> bool:
        return all(bool(torch.isfinite(p).all()) for p in self.net.parameters())

    def state(self) -> dict[str, Any]:
        """What training needs beside the weights."""
        return {
            "optimiser": self.optimiser.state_dict(),
            "order": self.order.get_state(),
            "rule": self.credit.state_dict(),
            "draws": self.draws.state,
        }

    def restore(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        self.net.load_state_dict(weights)
        self.optimiser.load_state_dict(state["optimiser"])
        self.order.set_state(state["order"])
        self.credit.load_state_dict(state["rule"])
        # 0.1.0 had nothing that drew from them, and a run may go on where there are other generators
        drawn = state.get("draws", [])
        self.draws.state = [*drawn, *self.draws.state[len(drawn) :]][: len(self.draws.state)]

    @torch.no_grad()
    def _fits(self, x: Tensor) -> int:
        """The width of the network's first state, where the network fits the task."""
        outputs = self.config.signature.outputs
        self.net.eval()
        states, output = self.net.states(x)
        self.net.train()
        if output.shape[0] != len(x) or output.shape[-1] != outputs:
            raise SondeError(
                f"the network turns {tuple(x.shape)} into {tuple(output.shape)}, but the task asks for {outputs} "
                "outputs for each sample: let the function that makes it take `outputs`, which the task fills in"
            )
        return states[0].shape[vector_axis(states[0])]


def learning_rate(optimiser: Optimiser | PluginOptimiser, epoch: int, epochs: int) -> float:
    """The rate of an epoch (counted from 1): constant, or lr·(1 + cos(π·(epoch−1)/epochs))/2."""
    if optimiser.schedule == "constant":
        return optimiser.lr
    return optimiser.lr * (1 + math.cos(math.pi * (epoch - 1) / epochs)) / 2
