"""Runs that differ in the seed trained as one stack: against bare loops, and against themselves one by one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from sonde.config import Optimiser, RunConfig
from sonde.models import PlainMLP, ResidualMLP, ResMLP
from sonde.rules import Backprop
from sonde.studies.residual import configs
from sonde.tasks import Digits
from sonde.tasks.identity import Identity
from sonde.training.program import Program
from sonde.training.stack import Stack
from sonde_bench.arithmetic import Products
from sonde_bench.loops import BATCH, CPU, bare_identity, fresh
from sonde_bench.measure import Options, Row, Variant, measure, operators


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
                }
                times = measure(variants, options.rounds(self.rounds), on_round=options.on_round)
                name = f"{runs} runs in a stack ÷ one by one, residual_mlp d={d} L=4"
                yield times.row(name, "together", "alone")


def _programs(d: int, runs: int) -> list[Program]:
    configs = [
        RunConfig(model=ResidualMLP(d=d), rule=Backprop(), task=Digits(), batch_size=BATCH, seed=seed)
        for seed in range(runs)
    ]
    return [
        Program(config, config.task.load(config.seed, None, CPU, torch.float32), CPU) for config in configs
    ]


def _each(programs: list[Program]) -> None:
    for program in programs:
        program.train_epoch(1)


@dataclass(frozen=True, kw_only=True)
class Stacked:
    """Steps of all seeds at once; the process time of one step of all of them."""

    seeds: int
    bar: float
    rounds: int

    @property
    def about(self) -> str:
        return f"{self.seeds} seeds of the residual study, stacked ÷ bare loops one after the other"

    def __call__(self, options: Options) -> Iterator[Row]:
        for kind in (PlainMLP, ResMLP):
            chosen = [config for config in configs("full", range(self.seeds)) if _is(config, kind)]
            yield self._row(chosen, options)

    def _row(self, chosen: list[RunConfig], options: Options) -> Row:
        programs = [
            Program(config, config.task.load(config.seed, None, CPU, torch.float32), CPU) for config in chosen
        ]
        steps = programs[0].steps_per_epoch
        products = Products(programs[0].net, chosen[0].batch_size, networks=self.seeds)
        loops = [_bare(config, steps) for config in chosen]
        variants = {
            "products": Variant(partial(products, steps), steps),
            "stacked": Variant(partial(Stack(programs).train_epoch, 1), steps),
            "bare": Variant(lambda: [loop() for loop in loops], steps),
        }
        times = measure(variants, options.rounds(self.rounds), on_round=options.on_round)
        name = f"{self.seeds} seeds of the residual study stacked, {chosen[0].model.label}, a step of all"
        row = times.row(name, "stacked", "bare", limit=times.median("products"), bar=self.bar)
        return row.explained(partial(operators, variants["stacked"].run, steps))


def _is(config: RunConfig, kind: type[PlainMLP] | type[ResMLP]) -> bool:
    return isinstance(config.model, kind) and config.model.variant == "scaled"


def _bare(config: RunConfig, steps: int) -> Callable[[], None]:
    assert isinstance(config.task, Identity)
    x_all = torch.rand(config.task.samples, config.task.d) * 2 - 1
    assert isinstance(config.optimiser, Optimiser)
    return bare_identity(fresh(config), x_all, config.optimiser, steps=steps, batch=config.batch_size)
