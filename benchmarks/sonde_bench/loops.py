"""The loops that a step of Sonde is held against, and batches that lie ready for all of them.

A bare loop is the one that is written without Sonde: the same network, batches and optimiser, nothing logged.  `fused`
is the implementation of Adam that Sonde uses; PyTorch's default is another, slower on a processor.
"""

import contextlib
import copy
import importlib
import importlib.util
import io
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sonde.config import Optimiser, RunConfig
from sonde.core.generators import generator
from sonde.models import Model
from sonde.network import Network
from sonde.network.losses import CROSS_ENTROPY, Loss
from sonde.rules import Rule
from sonde.store.files import Place
from sonde.tasks import Data
from sonde.training.program import Program

BATCH = 128
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Normal inputs of some shape with labels at random; every epoch is the same batches in the same order."""

    shape: tuple[int, ...] = (3, 32, 32)
    steps: int = 1
    outputs: int = 10

    label: ClassVar[str] = "noise"
    classifies: ClassVar[bool] = True

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        """Nothing to do: the samples are generated."""

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        rng = generator(seed, "noise")
        x = torch.randn(self.steps, BATCH, *self.shape, generator=rng).to(device, dtype)
        y = torch.randint(self.outputs, (self.steps, BATCH), generator=rng).to(device)
        return Prepared(list(zip(x, y, strict=True)))


class Prepared:
    """The batches of an epoch, held as they are."""

    loss: Loss = CROSS_ENTROPY
    source: dict[str, str] | None = None

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.ready = batches
        self.train_samples = sum(len(y) for _, y in batches)
        self.test_samples = len(batches[0][1])

    def steps(self, batch_size: int) -> int:
        return len(self.ready)

    def batches(self, batch_size: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.ready)

    def test(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        x, y = self.ready[0]
        return x[first:last], y[first:last]


def program(model: Model, rule: Rule, noise: Noise) -> Program:
    """A run over noise."""
    config = RunConfig(model=model, rule=rule, task=noise, batch_size=BATCH)
    return Program(config, noise.load(config.seed, None, CPU, torch.float32), CPU)


Batches = Iterable[tuple[Tensor, Tensor]]


def optimiser(parameters: Iterable[nn.Parameter], config: Optimiser, *, fused: bool) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    implementation: dict[str, Any] = {"fused": True} if fused else {}
    return kind(parameters, lr=config.lr, weight_decay=config.weight_decay, **implementation)


def bare_backprop(net: nn.Module, batches: Batches, *, fused: bool = True) -> Callable[[], None]:
    """Cross entropy by backprop, over all batches at every call."""
    adam = optimiser(net.parameters(), Optimiser(), fused=fused)

    def epoch() -> None:
        for x, y in batches:
            loss = nn.functional.cross_entropy(net(x), y)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()

    return epoch


def bare_identity(net: nn.Module, x_all: Tensor, config: Optimiser, *, steps: int, batch: int) -> Callable[[], None]:
    """The residual study: draw a batch, reproduce it, keep the loss of every step."""
    adam = optimiser(net.parameters(), config, fused=True)

    def epoch() -> None:
        losses = []
        for _ in range(steps):
            x = x_all[torch.randint(len(x_all), (batch,))]
            loss = nn.functional.mse_loss(net(x), x)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            losses.append(loss.detach())
        torch.stack(losses).tolist()

    return epoch


NO_COMPILER = "torch.compile needs a C++ compiler; apt install g++, or name it in CXX"
NOT_QUICK = "torch.compile takes a minute; leave out --quick"


def has_compiler() -> bool:
    return shutil.which(os.environ.get("CXX", "g++")) is not None


class CompiledByTorch:
    """A loop over a network that goes through `torch.compile`; the first call compiles, or finds it in a cache."""

    def __init__(self, net: Network, loop_of: Callable[[nn.Module], Callable[[], None]]) -> None:
        self._loop = loop_of(torch.compile(net))  # type: ignore[arg-type]
        self.seconds_to_compile: float | None = None

    def __call__(self) -> None:
        begin = time.perf_counter()
        self._loop()
        if self.seconds_to_compile is None:
            self.seconds_to_compile = time.perf_counter() - begin


NO_BIOTORCH = "BioTorch is not installed, its column stays empty: pip install --no-deps biotorch"


BIOTORCH_RULES = ("fa", "dfa", "usf", "frsf", "brsf")
"""Its rules that are ours, too."""


def has_biotorch() -> bool:
    return importlib.util.find_spec("biotorch") is not None


def biotorch_loop(net: Network, rule: str, batches: Batches, outputs: int) -> Callable[[], None]:
    """Cross entropy by one of BioTorch's rules, its layers in place of the network's own.

    Over all batches at every call.  Sanfiz & Akrout (2021), arXiv:2108.13446.  Its own requirements (torchvision,
    jupyter, …) are not needed for this.
    """
    kind: Any = importlib.import_module("biotorch.module.biomodule").BioModule
    with contextlib.redirect_stdout(io.StringIO()):  # it tells what it converts
        model: nn.Module = kind(copy.deepcopy(net), mode=rule, output_dim=outputs)
    adam = optimiser([p for p in model.parameters() if p.requires_grad], Optimiser(), fused=True)
    loss_of = nn.functional.cross_entropy
    broadcast = {"loss_function": loss_of} if rule == "dfa" else None

    def epoch() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its hooks are of a kind PyTorch means to drop
            for x, y in batches:
                output = model(x) if broadcast is None else model(x, targets=y, **broadcast)
                loss = loss_of(output, y)
                adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                adam.step()

    return epoch


def fresh(config: RunConfig) -> Network:
    """The network of a run as it is before training."""
    return config.model.build(config.signature, generator(config.seed, "init"))
