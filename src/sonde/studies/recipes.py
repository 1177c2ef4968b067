"""The recipe the classification studies share, so that equal runs are one run."""

from dataclasses import replace

from sonde.config import Optimiser, Probing, RunConfig
from sonde.models import Model
from sonde.rules import Rule
from sonde.tasks import Cifar10, Digits, Parity, Task, Teacher

SEEDS = (42, 123, 456)
QUICK_SEEDS = (42, 123)


def classification(model: Model, rule: Rule, *, scale: str, seed: int, epochs: int | None = None) -> RunConfig:
    """AdamW 1e-3, weight decay 0.01, cosine: CIFAR-10 with batch 128 for 100 epochs; quick: digits, 32, 20."""
    full = scale == "full"
    task: Task = Cifar10() if full else Digits()
    return _run(model, rule, task, scale=scale, seed=seed, epochs=epochs or (100 if full else 20))


def depth_matters(
    model: Model,
    rule: Rule,
    *,
    scale: str,
    seed: int,
    probes: Probing | None = None,
    epochs: int | None = None,
) -> RunConfig:
    """Where blocks must learn: CIFAR-10 for 12 epochs; quick: parity with batch 128 for 20."""
    full = scale == "full"
    task: Task = Cifar10() if full else Parity()
    config = _run(model, rule, task, scale=scale, seed=seed, epochs=epochs or (12 if full else 20))
    return replace(config, batch_size=128, probes=probes or config.probes)


def teacher_student(model: Model, rule: Rule, *, scale: str, seed: int) -> RunConfig:
    """Labels from a random teacher: 10,000 samples for 80 epochs; quick: 1,500 for 20."""
    full = scale == "full"
    task = Teacher() if full else Teacher(inputs=32, d=32, samples=1500, test_samples=400)
    return _run(model, rule, task, scale=scale, seed=seed, epochs=80 if full else 20)


def _run(model: Model, rule: Rule, task: Task, *, scale: str, seed: int, epochs: int) -> RunConfig:
    full = scale == "full"
    return RunConfig(
        model=model,
        rule=rule,
        task=task,
        optimiser=Optimiser(name="adamw", lr=1e-3, weight_decay=0.01, schedule="cosine"),
        probes=Probing(size=1024 if full else 128),
        batch_size=128 if full else 32,
        epochs=epochs,
        seed=seed,
        scale="full" if full else "quick",
    )
