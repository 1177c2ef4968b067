"""Runs that differ in the seed trained as one stack: against bare loops, and against themselves one by one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from sonde.config import Optimiser, RunConfig
from sonde.models import PlainMLP, ResidualMLP, ResMLP
from sonde.rules import Backprop
from sonde.studies.residual import configs
from sonde.tasks import Digits
from sonde.tasks.synthetic import Identity
from sonde.training.program import Program
from sonde.training.train import Stack
from sonde_bench.arithmetic import Products
from sonde_bench.jax_loops import JaxEpoch
from sonde_bench.loops import BATCH, CPU, CompiledByTorch, bare_identity, fresh
from sonde_bench.measure import Options, Row, Variant, measure, operators
from sonde_bench.peers import COMPILED, JAX, Peers


@dataclass(frozen=True, kw_only=True)
class Stacking:
    """The measurement behind the widest network that is stacked; both sides are Sonde."""

    widths: tuple[int, ...]
    runs: tuple[int, ...]
    rounds: int

    @property
    def about(self) -> str:
        widths = ", ".join(map(str, self.widths))
        return f"runs in one stack ÷ one after the other: residual_mlp L=4 on digits, widths {widths}"

    def __call__(self, options: Options) -> Iterator[Row]:
        for d in self.widths:
            for runs in self.runs:
                alone, together = _programs(d, runs), Stack(_programs(d, runs))
                steps = alone[0].steps_per_epoch
                variants = {
                    "alone": Variant(partial(_each, alone), steps),
                    "together": Variant(partial(together.train_epoch, 1), steps),
                    "products": Variant(partial(Products(alone[0].net, BATCH, networks=runs), steps), steps),
                }
                times = measure(variants, options.rounds(self.rounds), on_round=options.on_round)
                name = f"{runs} runs in a stack ÷ one by one, residual_mlp d={d} L=4"
                yield times.row(name, "together", "alone", limit=times.median("products"))


def _programs(d: int, runs: int) -> list[Program]:
    configs = [
        RunConfig(model=ResidualMLP(d=d), rule=Backprop(), task=Digits(), batch_size=BATCH, seed=seed)
        for seed in range(runs)
    ]
    return [Program(config, config.task.load(config.seed, None, CPU, torch.float32), CPU) for config in configs]


def _each(programs: list[Program]) -> None:
    for program in programs:
        program.train_epoch(1)


@dataclass(frozen=True, kw_only=True)
class Stacked:
    """Steps of all seeds at once; the process time of one step of all of them."""

    seeds: int
    bar: float
    jax_bar: float | None = None
    rounds: int

    @property
    def about(self) -> str:
        return f"{self._seeds} of the residual study, stacked ÷ bare loops, {JAX} and {COMPILED}"

    @property
    def _seeds(self) -> str:
        return "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"

    def __call__(self, options: Options) -> Iterator[Row]:
        for kind in (PlainMLP, ResMLP):
            chosen = [config for config in configs("full", range(self.seeds)) if _is(config, kind)]
            yield from self._rows(chosen, options)

    def _rows(self, chosen: list[RunConfig], options: Options) -> Iterator[Row]:
        programs = [Program(config, config.task.load(config.seed, None, CPU, torch.float32), CPU) for config in chosen]
        steps = programs[0].steps_per_epoch
        products = Products(programs[0].net, chosen[0].batch_size, networks=self.seeds)
        loops = [_bare(fresh(config), config, steps) for config in chosen]
        peers = Peers(
            {
                JAX: partial(StudyInJax, chosen, steps),
                COMPILED: lambda: CompiledByTorch(
                    fresh(chosen[0]),
                    lambda net: partial(_times, self.seeds, _bare(net, chosen[0], steps)),
                ),
            },
            options,
            steps,
        )
        variants = {
            "products": Variant(partial(products, steps), steps),
            "stacked": Variant(partial(Stack(programs).train_epoch, 1), steps),
            "bare": Variant(lambda: [loop() for loop in loops], steps),
            **peers.variants,
        }
        times = measure(variants, options.rounds(self.rounds), on_round=options.on_round)
        name = f"{self._seeds} of the residual study stacked, {chosen[0].model.label}, a step"
        row = times.row(
            name if self.seeds == 1 else f"{name} of all",
            "stacked",
            "bare",
            limit=times.median("products"),
            bar=self.bar,
        )
        profile = partial(operators, variants["stacked"].run, steps)
        yield row.explained(profile)
        bars = {} if self.jax_bar is None else {JAX: self.jax_bar}
        for beside in peers.rows(times, row, "stacked", bars):
            yield beside.explained(profile)


class StudyInJax:
    """An epoch of all seeds of the study, on batches drawn anew."""

    def __init__(self, chosen: list[RunConfig], steps: int) -> None:
        config = chosen[0]
        assert isinstance(config.task, Identity)
        assert isinstance(config.optimiser, Optimiser)
        x = np.stack([_samples(config.task).numpy() for _ in chosen])
        nets = [fresh(config) for config in chosen]
        self.epoch = JaxEpoch(config.model, nets, config.optimiser, x, x, classifies=False)
        self.rng, self.samples = np.random.default_rng(0), config.task.samples
        self.shape = len(chosen), steps, config.batch_size

    @property
    def seconds_to_compile(self) -> float | None:
        return self.epoch.seconds_to_compile

    def __call__(self) -> None:
        self.epoch(self.rng.integers(0, self.samples, self.shape, dtype=np.int32))


def _times(count: int, loop: Callable[[], None]) -> None:
    for _ in range(count):
        loop()


def _is(config: RunConfig, kind: type[PlainMLP] | type[ResMLP]) -> bool:
    return isinstance(config.model, kind) and config.model.variant == "scaled"


def _samples(task: Identity) -> Tensor:
    return torch.rand(task.samples, task.d) * 2 - 1


def _bare(net: nn.Module, config: RunConfig, steps: int) -> Callable[[], None]:
    assert isinstance(config.task, Identity)
    assert isinstance(config.optimiser, Optimiser)
    return bare_identity(net, _samples(config.task), config.optimiser, steps=steps, batch=config.batch_size)
