"""Where stacking pays: runs in one stack against the same runs one after the other, width by width."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from sonde.bench.measure import Variant, measure
from sonde.bench.prepared import BATCH, CPU
from sonde.bench.rows import Options, Row
from sonde.config import RunConfig
from sonde.models import ResidualMLP
from sonde.rules import Backprop
from sonde.tasks import Digits
from sonde.training.program import Program
from sonde.training.stack import Stack


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
