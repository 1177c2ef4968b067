"""A run in memory: network, rule, optimiser, data and generators, trained one epoch at a time; its state as bytes.

N samples, C outputs, R replicas, S batches.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sonde.config import RunConfig, probe_of
from sonde.core.errors import SondeError
from sonde.core.generators import GlobalDraws, generator
from sonde.core.validated import Optimiser, PluginOptimiser
from sonde.metrics.probes import DRAWS, FEW_DRAWS, Context, Snapshot, take
from sonde.metrics.rows import Reading
from sonde.models.model import to_network
from sonde.network import vector_axis
from sonde.network.losses import CROSS_ENTROPY, Loss
from sonde.network.units import ProductsByOneDNN
from sonde.tasks import Data
from sonde.training.backward_by_hand import step_of
from sonde.training.credit_assignment import CreditAssignment
from sonde.training.kernels import make_optimiser
from sonde.training.step import Step, owns_prediction

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}
"""Precision → the type of the weights."""

TEST_BATCH = 1000
_LEAD = 1e-5  # of the largest output


@dataclass(frozen=True)
class Epoch:
    """The loss and the size of every batch, and the means over the epoch."""

    losses: Tensor
    sizes: list[int]
    readings: list[Reading]


_KEPT_OUTPUTS = 1 << 20  # entries of outputs that wait to be counted


class EpochLog:
    """Collects the results of steps without waiting for the device; `lead` axes come before the samples."""

    def __init__(self, loss: Loss, lead: int = 0) -> None:
        self.loss, self.lead = loss, lead
        self.sizes: list[int] = []  # of the batches
        self.losses: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.kept = 0  # entries of outputs
        self.right: Tensor | None = None  # correct labels of each replica, of outputs that are no longer kept
        self.counted = 0  # labels of each replica, of the same
        self.others: dict[str, list[Tensor]] = {}

    def add(self, step: Step, y: Tensor) -> None:
        """Add a step on a batch with targets y."""
        self.sizes.append(y.shape[self.lead])
        self.losses.append(step.loss)
        if self.loss.classifies:
            self.outputs.append(step.output_NC)
            self.labels.append(y)
            self.kept += step.output_NC.numel()
            if self.kept > _KEPT_OUTPUTS:
                self._count(step.loss.numel())
        for name, value in step.logs.items():
            self.others.setdefault(name, []).append(value)

    def read(self) -> list[Epoch]:
        """The means over all samples of the epoch, one `Epoch` per replica; a smaller last batch counts for less."""
        samples = sum(self.sizes)
        losses_RS = self._by_batch(self.losses)
        share_S = torch.tensor(self.sizes, dtype=torch.float64) / samples
        means = {"train_loss": (losses_RS * share_S).sum(-1).tolist()}
        for name, values in self.others.items():
            means[name] = (self._by_batch(values) * share_S).sum(-1).tolist()
        if self.loss.classifies:
            self._count(len(losses_RS))
            right = [] if self.right is None else self.right.tolist()
            means["train_acc"] = [count / self.counted if self.counted else math.nan for count in right]
        readings = [
            [Reading(metric=name, value=value, samples=samples) for name, value in zip(means, values, strict=True)]
            for values in zip(*means.values(), strict=True)
        ]
        return [Epoch(losses, self.sizes, found) for losses, found in zip(losses_RS, readings, strict=True)]

    def _count(self, replicas: int) -> None:
        """Count the correct labels of the outputs that are kept, and let these go."""
        if self.loss.hits is None or not self.outputs:
            return
        hits = self.loss.hits(torch.cat(self.outputs, self.lead), torch.cat(self.labels, self.lead))
        hits_RN = hits.view(replicas, -1)
        right = hits_RN.sum(-1)
        self.right = right if self.right is None else self.right + right
        self.counted += hits_RN.shape[1]
        self.outputs, self.labels, self.kept = [], [], 0

    def _by_batch(self, values: list[Tensor]) -> Tensor:
        """One value per batch, R×S in float64."""
        return torch.stack(values, -1).view(-1, len(values)).cpu().double()


class Program:
    """Everything that a run needs to go on; `state` and `restore` save and load all of it."""

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
        self.width = self._check_output(sample)
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

    def train_epoch(self, epoch: int, on_step: Callable[[], object] = lambda: None) -> Epoch:
        """Train one epoch; nothing is read from the device before its end.  `on_step` is called after every step."""
        config = self.config
        lr = learning_rate(config.optimiser, epoch, config.epochs)
        log = EpochLog(self.loss)
        self.net.train()
        with self.draws:
            for x, y in self.data.batches(config.batch_size, self.order):
                step = self.backward(x, y)
                self.optimiser.step(lr)
                log.add(step, y)
                on_step()
        return log.read()[0]

    @torch.no_grad()
    def evaluate(self) -> list[Reading]:
        """The mean loss and, for classification, the accuracy over the whole test set."""
        data, samples = self.data, self.data.test_samples
        total = torch.zeros((), device=self.device, dtype=torch.float32 if self.device.type == "mps" else torch.float64)
        correct, labels = torch.zeros((), device=self.device, dtype=torch.int64), 0
        self.net.eval()
        with self.draws:
            for first in range(0, samples, TEST_BATCH):
                x, y = data.test(first, min(first + TEST_BATCH, samples))
                output = self._predict(x)
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

    def _predict(self, x: Tensor) -> Tensor:
        """The output of a test batch; by oneDNN where that changes the cross entropy by rounding and no label."""
        if self.device.type == "cpu" and self.loss is CROSS_ENTROPY and not owns_prediction(self.config.rule):
            with ProductsByOneDNN():
                output = self.credit.predict(x)
            if not _decided_by_rounding(output):
                return output
        return self.credit.predict(x)

    def probe(self, epoch: int) -> list[Reading]:
        """The readings of the probes that are due after an epoch, on the first test samples."""
        names = self.config.probes.due(epoch, self.config.epochs)
        if not names:
            return []
        with self.draws:
            snapshot = self.snapshot(epoch)
            return [reading for name in names for reading in probe_of(name)(snapshot)]

    def snapshot(self, epoch: int) -> Snapshot:
        """The snapshot of the network after an epoch, which all probes share."""
        config, probing = self.config, self.config.probes
        names = probing.due(epoch, config.epochs)
        context = Context(
            credits=None if self.credit.undefined_credit else self.credit.credits,
            undefined_credit=self.credit.undefined_credit,
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
        """The `state_dict` of the network; shared tensors are cloned, because safetensors refuses them."""
        found: dict[str, Tensor] = {}
        addresses = set()
        for name, value in self.net.state_dict().items():
            value = value.contiguous()
            found[name] = value.clone() if value.data_ptr() in addresses else value
            addresses.add(value.data_ptr())
        return found

    def finite(self) -> bool:
        """Whether all parameters are finite."""
        return all(bool(torch.isfinite(p).all()) for p in self.net.parameters())

    def state(self) -> dict[str, Any]:
        """What training needs beside the weights, for `restore`."""
        return {
            "optimiser": self.optimiser.state_dict(),
            "order": self.order.get_state(),
            "rule": self.credit.state_dict(),
            "draws": self.draws.state,
        }

    def restore(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Load weights and a `state`."""
        self.net.load_state_dict(weights)
        self.optimiser.load_state_dict(state["optimiser"])
        self.order.set_state(state["order"])
        self.credit.load_state_dict(state["rule"])
        # stores of 0.1.0 have none, and another machine may have other generators
        drawn = state.get("draws", [])
        self.draws.state = [*drawn, *self.draws.state[len(drawn) :]][: len(self.draws.state)]

    @torch.no_grad()
    def _check_output(self, x: Tensor) -> int:
        """Raise unless the network has the outputs of the task; return the width of its first state."""
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


def _decided_by_rounding(output_NC: Tensor) -> bool:
    """Whether the two largest outputs of a sample are so close that rounding in float32 may decide between them."""
    if output_NC.shape[-1] < 2:
        return False
    first_N, second_N = output_NC.topk(2).values.unbind(-1)
    return bool((first_N - second_N < _LEAD * output_NC.abs().amax(-1)).any())


def learning_rate(optimiser: Optimiser | PluginOptimiser, epoch: int, epochs: int) -> float:
    """The rate of an epoch (counted from 1): constant, or lr·(1 + cos(π·(epoch−1)/epochs))/2."""
    if optimiser.schedule == "constant":
        return optimiser.lr
    return optimiser.lr * (1 + math.cos(math.pi * (epoch - 1) / epochs)) / 2


class Bf16Linear(nn.Linear):
    """x Wᵀ in bfloat16 while training, + b in float32; evaluation and probes use float32.

    Weights stay in float32 and are rounded for the product only, forward and backward; biases, normalisation, the
    residual stream, losses and the optimiser use float32.  Faster only where the CPU multiplies bfloat16 matrices.
    """

    rounds = False  # True: round in eval mode too, for the probe `grad_resolution`

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b."""
        if not (self.training or self.rounds) or x.dtype != torch.float32:
            return super().forward(x)
        product = F.linear(x.bfloat16(), self.weight.bfloat16()).float()
        return product if self.bias is None else product + self.bias


def use_bf16(net: nn.Module) -> None:
    """Make every `nn.Linear` of a network a `Bf16Linear`, in place; parameters stay unchanged."""
    for module in net.modules():
        if type(module) is nn.Linear:
            module.__class__ = Bf16Linear


# ── state as safetensors ────────────────────────────────────────────────────────────────────────────
# Tensors are stored as tensors, everything else as JSON; nothing is pickled.
_TENSOR = "__tensor__"


def pack(tree: Any) -> bytes:
    """Write any nesting of dicts, lists, plain values and tensors as one safetensors file."""
    tensors: dict[str, Tensor] = {}

    def strip(node: Any, name: str) -> Any:
        if isinstance(node, Tensor):
            tensors[name] = node.detach().cpu().contiguous().clone()
            return {_TENSOR: name}
        if isinstance(node, dict):
            return {"dict": [[key, strip(value, f"{name}/{key}")] for key, value in node.items()]}
        if isinstance(node, list | tuple):
            return {"list": [strip(value, f"{name}/{i}") for i, value in enumerate(node)]}
        return node

    skeleton = json.dumps(strip(tree, ""))
    return safetensors.torch.save(tensors or {"": torch.zeros(0)}, metadata={"skeleton": skeleton})


def unpack(content: bytes) -> Any:
    """Read what `pack` wrote; tuples come back as lists."""
    tensors = safetensors.torch.load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])

    def fill(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if _TENSOR in node:
            return tensors[node[_TENSOR]]
        if "list" in node:
            return [fill(value) for value in node["list"]]
        return {key: fill(value) for key, value in node["dict"]}

    return fill(json.loads(header["__metadata__"]["skeleton"]))
