"""What needs the images of CIFAR-10: a whole epoch against its bare steps, and four runs two at a time against one."""

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from sonde.config import Probing, RunConfig
from sonde.core.errors import SondeError
from sonde.engine import run_locally, warm_up
from sonde.models import ResidualMLP
from sonde.rules import Backprop
from sonde.store.datasets import Absent, data_folder, find_or_mirror_cifar10
from sonde.store.files import Place
from sonde.store.folder import read_manifest
from sonde.tasks import Cifar10, Data
from sonde.training.program import Program
from sonde_bench.arithmetic import Products, forward_flops
from sonde_bench.loops import BATCH, CPU, Prepared, bare_backprop, fresh
from sonde_bench.measure import Options, Row, Times, Variant, measure

NO_IMAGES = "no images; --data-root or SONDE_DATA"


def images_there(data_root: Place | None) -> bool:
    try:
        find_or_mirror_cifar10(data_folder(data_root))
    except Absent:
        return False
    return True


EPOCH_MODEL = ResidualMLP(d=256, L=4)
PLANNED_EPOCHS = 100
MEASURED_EPOCH = 3  # of these, one after which only the probes of every epoch look
QUICK_IMAGES = 12_800
READY_BATCHES = 20  # that the bare loop goes over again and again


@dataclass(frozen=True, kw_only=True)
class WholeEpoch:
    """Seconds a step, whatever is not a step spread over all steps of the epoch."""

    bar: float
    rounds: int

    @property
    def about(self) -> str:
        return "a CIFAR-10 epoch with data, augmentation, logging and snapshot ÷ bare steps on prepared batches"

    def __call__(self, options: Options) -> Iterator[Row]:
        name = f"CIFAR-10 epoch, residual_mlp d={EPOCH_MODEL.d} L={EPOCH_MODEL.L}, a step"
        if not images_there(options.data_root):
            yield Row(name=name, bar=self.bar, skipped=NO_IMAGES)
            return
        config = RunConfig(
            model=EPOCH_MODEL,
            rule=Backprop(),
            task=Cifar10(subset=QUICK_IMAGES if options.quick else None),
            batch_size=BATCH,
            epochs=PLANNED_EPOCHS,
        )
        config.task.prepare(options.data_root, lambda done, total: None)
        data = config.task.load(config.seed, options.data_root, CPU, torch.float32)
        variants, products = _variants(config, data), Products(fresh(config), BATCH)
        variants["products"] = Variant(partial(products, READY_BATCHES), READY_BATCHES)
        times = measure(variants, options.rounds(self.rounds), on_round=options.on_round)
        row = times.row(name, "whole", "bare", limit=times.median("products"), bar=self.bar)
        yield row.explained(partial(_parts_of_epoch, times))
        forward = forward_flops(fresh(config), data.test_samples) / data.steps(BATCH)
        limit = times.median("products") * forward / products.flops
        yield times.row(f"{name}: the test set, not in the epoch", "evaluation", "bare", limit=limit)


def _variants(config: RunConfig, data: Data) -> dict[str, Variant]:
    program = Program(config, data, CPU)
    steps = program.steps_per_epoch
    drawn = program.data.batches(BATCH, torch.Generator())
    ready = [next(drawn) for _ in range(READY_BATCHES)]
    bare_epoch = bare_backprop(fresh(config), [ready[step % READY_BATCHES] for step in range(steps)])
    prepared = Program(config, Prepared(ready), CPU)
    order = torch.Generator()

    def whole() -> None:
        program.train_epoch(MEASURED_EPOCH)
        program.probe(MEASURED_EPOCH)

    return {
        "whole": Variant(whole, steps),
        "bare": Variant(bare_epoch, steps),
        "data": Variant(lambda: [None for _ in data.batches(BATCH, order)], steps),
        "steps": Variant(partial(prepared.train_epoch, MEASURED_EPOCH), READY_BATCHES),
        "snapshot": Variant(partial(program.probe, MEASURED_EPOCH), steps),
        "evaluation": Variant(program.evaluate, steps),
    }


def _parts_of_epoch(times: Times) -> list[str]:
    whole = times.median("whole")
    return [
        f"{1e3 * times.median(part):8.3f} ms {times.median(part) / whole:6.1%}  {words}"
        for part, words in {
            "steps": "steps and logging, on prepared batches",
            "data": "data and augmentation, alone",
            "snapshot": "snapshot",
        }.items()
    ]


JOB_RUNS, JOB_IMAGES, JOB_EPOCHS = 4, 6_400, 2


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Seconds until all runs are in the store."""

    bar: float
    rounds: int

    @property
    def about(self) -> str:
        of = f"{JOB_RUNS} CIFAR-10 runs of {JOB_IMAGES:,} images and {JOB_EPOCHS} epochs"
        return f"--jobs 2 ÷ --jobs 1, {of}, wall time"

    def __call__(self, options: Options) -> Iterator[Row]:
        name = f"--jobs 2 ÷ --jobs 1, {JOB_RUNS} CIFAR-10 runs, all of them"
        if not images_there(options.data_root):
            yield Row(name=name, bar=self.bar, skipped=NO_IMAGES)
            return
        warm_up()
        task = Cifar10(subset=JOB_IMAGES, test_subset=1_000)
        task.prepare(options.data_root, lambda done, total: None)
        configs = [
            RunConfig(
                model=ResidualMLP(),
                rule=Backprop(),
                task=task,
                probes=Probing(names=("loss",), costly=()),
                epochs=JOB_EPOCHS,
                seed=seed,
            )
            for seed in range(JOB_RUNS)
        ]
        spent: dict[int, list[float]] = defaultdict(list)  # in training, all runs of a round together

        def run(jobs: int) -> None:
            trained = 0.0
            with tempfile.TemporaryDirectory() as folder:
                runs = Path(folder)
                for outcome in run_locally(configs, runs=runs, jobs=jobs, data_root=options.data_root, device="cpu"):
                    if outcome.state != "complete":
                        raise SondeError(f"run {outcome.run} {outcome.state}: {outcome.message}")
                    trained += read_manifest(runs / outcome.run).seconds["train"]
            spent[jobs].append(trained)

        products, steps = Products(fresh(configs[0]), configs[0].batch_size), JOB_IMAGES // configs[0].batch_size
        variants = {str(jobs): Variant(partial(run, jobs)) for jobs in (1, 2)}
        variants["products"] = Variant(partial(products, steps), steps)
        rounds = options.rounds(self.rounds)
        times = measure(variants, rounds, clock=time.perf_counter, on_round=options.on_round)
        limit = times.median("products") * steps * JOB_EPOCHS * JOB_RUNS / 2  # in two processes
        yield times.row(name, "2", "1", limit=limit, bar=self.bar).explained(partial(_parts_of_wall_time, times, spent))


def _parts_of_wall_time(times: Times, spent: dict[int, list[float]]) -> list[str]:
    """Training of a run as its own process saw it, and what is left of the wall time; medians over the rounds."""
    lines = []
    for jobs in (1, 2):
        walls, trained = times.seconds[str(jobs)], spent[jobs][1:]  # the first is the warm-up's
        rest = statistics.median(wall - all_runs / jobs for wall, all_runs in zip(walls, trained, strict=True))
        wall, train = statistics.median(walls), statistics.median(trained) / JOB_RUNS
        lines.append(f"--jobs {jobs}: {wall:.2f} s in all; training {train:.2f} s a run; the rest {rest:.2f} s")
    return lines
