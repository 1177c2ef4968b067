"""Runs for tests of pages, without a store."""

from pathlib import Path
from typing import Any

from sonde.show.report.runs import LabelledRun
from sonde.store.run import Run
from sonde.store.schemas import Manifest


def labelled_run(
    id: str = "run",
    *,
    model: str = "residual_mlp",
    rule: str = "bp",
    label: str = "BP",
    seed: int = 0,
    state: Any = "complete",
) -> LabelledRun:
    """A ResMLP on digits, trained for one epoch."""
    config = {
        "model": {"name": model},
        "rule": {"name": rule},
        "task": {"name": "digits"},
        "seed": seed,
        "epochs": 1,
    }
    about = {"label": "ResMLP", "variant": None, "rule_label": label, "task_label": "digits", "depth": 1}
    run = Run(Path("runs") / id, {"config": config, "about": about}, Manifest(state=state, epoch=1))
    return LabelledRun(run=run, network="ResMLP", rule=label, family="digits")
