"""Four CIFAR-10 runs through the engine, two at a time against one at a time.  Wall time: several processes."""

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sonde.bench import images
from sonde.bench.measure import Times, Variant, measure
from sonde.bench.rows import Options, Row
from sonde.config import Probing, RunConfig
from sonde.engine.local import run_all, warm_up
from sonde.errors import SondeError
from sonde.models import ResidualMLP
from sonde.rules import Backprop
from sonde.store.run import RunFolder
from sonde.tasks import Cifar10

RUNS, IMAGES, EPOCHS = 4, 6_400, 2


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Seconds until all runs are in the store."""

    bar: float
    rounds: int

    @property
    def about(self) -> str:
        return (
            f"--jobs 2 ÷ --jobs 1, {RUNS} CIFAR-10 runs of {IMAGES:,} images and {EPOCHS} epochs, wall time"
        )

    def __call__(self, options: Options) -> Iterator[Row]:
        name = f"--jobs 2 ÷ --jobs 1, {RUNS} CIFAR-10 runs, all of them"
        if not images.there(options.data_root):
            yield Row(name=name, bar=self.bar, skipped=images.SKIPPED)
            return
        warm_up()
        task = Cifar10(subset=IMAGES, test_subset=1_000)
        task.prepare(options.data_root, lambda done, total: None)
        configs = [
            RunConfig(
                model=ResidualMLP(),
                rule=Backprop(),
                task=task,
                probes=Probing(names=("loss",), costly=()),
                epochs=EPOCHS,
                seed=seed,
            )
            for seed in range(RUNS)
        ]
        spent: dict[int, list[float]] = defaultdict(list)  # in training, all runs of a round together

        def run(jobs: int) -> None:
            trained = 0.0
            with tempfile.TemporaryDirectory() as folder:
                runs = Path(folder)
                for outcome in run_all(
                    configs, runs=runs, jobs=jobs, data_root=options.data_root, device="cpu"
                ):
                    if outcome.state != "complete":
                        raise SondeError(f"run {outcome.run} {outcome.state}: {outcome.message}")
                    trained += RunFolder(runs / outcome.run).manifest().seconds["train"]
            spent[jobs].append(trained)

        variants = {str(jobs): Variant(partial(run, jobs)) for jobs in (1, 2)}
        rounds = options.rounds(self.rounds)
        times = measure(variants, rounds, clock=time.perf_counter, on_round=options.on_round)
        yield times.row(name, "2", "1", bar=self.bar).explained(partial(_parts, times, spent))


def _parts(times: Times, spent: dict[int, list[float]]) -> list[str]:
    """Training of a run as its own process saw it, and what is left of the wall time; medians over the rounds."""
    lines = []
    for jobs in (1, 2):
        walls, trained = times.seconds[str(jobs)], spent[jobs][1:]  # the first is the warm-up's
        rest = statistics.median(
            wall - all_runs / jobs for wall, all_runs in zip(walls, trained, strict=True)
        )
        wall, train = statistics.median(walls), statistics.median(trained) / RUNS
        lines.append(
            f"--jobs {jobs}: {wall:.2f} s in all; training {train:.2f} s a run; the rest {rest:.2f} s"
        )
    return lines
