"""A whole CIFAR-10 epoch — data, augmentation, steps, logging, snapshot — against its bare steps alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from sonde.bench import bare, images
from sonde.bench.arithmetic import Products
from sonde.bench.measure import Times, Variant, measure
from sonde.bench.prepared import BATCH, CPU, Prepared
from sonde.bench.rows import Options, Row
from sonde.bench.steps import fresh
from sonde.config import RunConfig
from sonde.models import ResidualMLP
from sonde.rules import Backprop
from sonde.tasks import Cifar10
from sonde.training.program import Program

MODEL = ResidualMLP(d=256, L=4)
EPOCHS = 100
EPOCH = 3  # of these, one after which only the probes of every epoch look
QUICK = 12_800  # images
READY = 20  # batches that the bare loop goes over again and again


@dataclass(frozen=True, kw_only=True)
class WholeEpoch:
    """Seconds a step, whatever is not a step spread over all steps of the epoch."""

    bar: float
    rounds: int

    @property
    def about(self) -> str:
        return (
            "a CIFAR-10 epoch with data, augmentation, logging and snapshot ÷ bare steps on prepared batches"
        )

    def __call__(self, options: Options) -> Iterator[Row]:
        name = f"CIFAR-10 epoch, residual_mlp d={MODEL.d} L={MODEL.L}, a step"
        if not images.there(options.data_root):
            yield Row(name=name, bar=self.bar, skipped=images.SKIPPED)
            return
        config = RunConfig(
            model=MODEL,
            rule=Backprop(),
            task=Cifar10(subset=QUICK if options.quick else None),
            batch_size=BATCH,
            epochs=EPOCHS,
        )
        config.task.prepare(options.data_root, lambda done, total: None)
        variants = _variants(config, options)
        times = measure(variants, options.rounds(self.rounds), on_round=options.on_round)
        row = times.row(name, "whole", "bare", limit=times.median("products"), bar=self.bar)
        yield row.explained(partial(_parts, times))
        yield times.row(f"{name}: the test set, not in the epoch", "evaluation", "bare")


def _variants(config: RunConfig, options: Options) -> dict[str, Variant]:
    data = config.task.load(config.seed, options.data_root, CPU, torch.float32)
    program = Program(config, data, CPU)
    steps = program.steps_per_epoch
    drawn = program.data.batches(BATCH, torch.Generator())
    ready = [next(drawn) for _ in range(READY)]
    bare_epoch = bare.backprop(fresh(config), [ready[step % READY] for step in range(steps)])
    prepared = Program(config, Prepared(ready), CPU)
    order = torch.Generator()

    def whole() -> None:
        program.train_epoch(EPOCH)
        program.probe(EPOCH)

    return {
        "whole": Variant(whole, steps),
        "bare": Variant(bare_epoch, steps),
        "products": Variant(partial(Products(program.net, BATCH), READY), READY),
        "data": Variant(lambda: [None for _ in data.batches(BATCH, order)], steps),
        "steps": Variant(partial(prepared.train_epoch, EPOCH), READY),
        "snapshot": Variant(partial(program.probe, EPOCH), steps),
        "evaluation": Variant(program.evaluate, steps),
    }


def _parts(times: Times) -> list[str]:
    whole = times.median("whole")
    return [
        f"{1e3 * times.median(part):8.3f} ms {times.median(part) / whole:6.1%}  {words}"
        for part, words in {
            "steps": "steps and logging, on prepared batches",
            "data": "data and augmentation, alone",
            "snapshot": "snapshot",
        }.items()
    ]
