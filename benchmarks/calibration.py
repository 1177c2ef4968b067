"""How often each question of the audit fires: on healthy runs, and on those it is made for.

python benchmarks/calibration.py STORE          train what is missing there, count, write docs/calibration.md: 20 minutes
python benchmarks/calibration.py --page         write the page anew from calibration.json
"""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sonde.config import Optimiser, Probing, RunConfig
from sonde.models import ResidualMLP
from sonde.rules import Backprop, DirectFeedback, FeedbackAlignment, Frozen, Rule
from sonde.tasks import Digits, Task, Teacher
from sonde.training.together import train_together

SEEDS = range(1, 8)
DEPTHS = (2, 6)
EPOCHS = (20, 200)
TASKS: tuple[Task, ...] = (Digits(), Teacher(inputs=32, d=32, samples=1500, test_samples=400))
SIZES = Probing(names=("growth", "grad_norm"), schedule="log_spaced", k=4, costly=())
CREDIT = replace(SIZES, names=("growth", "grad_norm", "credit_cosine"), costly=("rho",))


def recipe(
    task: Task, depth: int, out_ln: bool, epochs: int, rule: Rule, seed: int, probes: Probing
) -> RunConfig:
    """A residual MLP of width 32 that a stack trains in seconds; probes at a few epochs."""
    return RunConfig(
        model=ResidualMLP(d=32, L=depth, out_ln=out_ln),
        rule=rule,
        task=task,
        optimiser=Optimiser(name="adamw", lr=1e-3, weight_decay=0.01, schedule="cosine"),
        probes=probes,
        batch_size=64,
        epochs=epochs,
        seed=seed,
        scale="quick",
    )


def bundles() -> Iterator[list[RunConfig]]:
    """What is trained together: the seeds of one recipe and rule."""
    for epochs, task, depth, out_ln in itertools.product(EPOCHS, TASKS, DEPTHS, (True, False)):
        for rule in (Backprop(), Frozen()):
            yield [recipe(task, depth, out_ln, epochs, rule, seed, SIZES) for seed in SEEDS]
    for rule in (DirectFeedback(), FeedbackAlignment()):
        yield [recipe(TASKS[0], 4, True, 100, rule, seed, CREDIT) for seed in SEEDS]


def train(store: Path) -> None:
    for bundle in bundles():
        print(bundle[0].id, flush=True)
        train_together(bundle, runs=store)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
