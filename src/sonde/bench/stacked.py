"""The seeds of the residual study trained in one stack, against a bare loop for one after the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from sonde.bench import bare
from sonde.bench.arithmetic import Products
from sonde.bench.measure import Variant, measure
from sonde.bench.prepared import CPU
from sonde.bench.profile import operators
from sonde.bench.rows import Options, Row
from sonde.bench.steps import fresh
from sonde.config import Optimiser, RunConfig
from sonde.models import PlainMLP, ResMLP
from sonde.studies.residual import configs
from sonde.tasks.identity import Identity
from sonde.training.program import Program
from sonde.training.stack import Stack


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
    return bare.identity(fresh(config), x_all, config.optimiser, steps=steps, batch=config.batch_size)
