"""Stores of made-up runs under real study configurations, for the report: written in a moment, no training."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sonde.config import RunConfig, to_tree
from sonde.core.run_ids import run_id
from sonde.metrics.rows import SCHEMA
from sonde.store import files
from sonde.store.files import Place
from sonde.store.folder import RunFolder
from sonde.store.schemas import Manifest, RunState
from sonde.studies import STUDIES
from stores import forge

NASTY = "<script>alert(1)</script><b>bold</b>&amp;"
NASTY_RULE = "<img src=x onerror=alert(1)><script>alert(1)<b>"  # a folder's name has no slash
STUDENT = STUDIES["snapshots"].configs("quick", [42])[3]
NASTY_TREE = to_tree(STUDENT) | {"rule": to_tree(STUDENT)["rule"] | {"name": NASTY_RULE}}
NASTY_ID = run_id(NASTY_TREE)
SESSION = {
    "from_epoch": None,
    "started": "2026-01-02T03:04:05+00:00",
    "environment": {
        "packages": {"sonde": "0.1.0", "torch": "2.0"},
        "machine": {"host": "somewhere", "processor": "a processor"},
        "threads": 1,
        "device": "cpu",
        "git": {"commit": "0123456789abcdef", "dirty": True},
    },
}
ACCURACY = {"bp": 0.95, "fa": 0.8, "dfa": 0.7, "state_bridge": 0.9, "credit_bridge": 0.3, "frozen": 0.85}


def write_run(
    root: Place,
    config: RunConfig,
    *,
    state: RunState = "complete",
    epoch: int | None = None,
    tree: dict[str, Any] | None = None,
) -> str:
    """A run of the configuration with made-up values, at its end or after `epoch`, maybe stored with another tree."""
    files.make_folder(root)
    last = config.epochs if epoch is None else epoch
    tree = tree or to_tree(config)
    folder = RunFolder(root / run_id(tree))
    folder.create(tree, about(config))
    resumed = {**SESSION, "from_epoch": last // 2}
    manifest = Manifest(
        state=state,
        epoch=last,
        step=last * 10,
        seconds={"train": 8.0, "probes": 2.0},
        sessions=[SESSION, resumed] if state == "unfinished" else [SESSION],
        message=f"loss is {NASTY}" if state == "diverged" else None,
    )
    folder.commit(manifest, rows(folder.id, config, last), {})
    return folder.id


def about(config: RunConfig) -> dict[str, Any]:
    """What training would have written beside the configuration."""
    return {
        "label": config.model.label,
        "variant": config.model.variant,
        "rule_label": config.rule.label,
        "task_label": config.task.label,
        "depth": config.model.L,
        "width": config.model.d,
        "alpha": config.model.init_scale,
        "steps": config.epochs * 10,
        "samples": 1437,
        "probe_size": config.probes.size,
        "data": None,
        "gradients": "per sample",
    }


def rows(id: str, config: RunConfig, last: int) -> pl.DataFrame:
    """Scalars of every epoch and profiles of every layer; the credit of frozen blocks is undefined."""
    rule = to_tree(config)["rule"]["name"]
    rng = np.random.default_rng([config.seed, len(rule)])
    depth, size = config.model.L, config.probes.size
    lines: list[tuple[object, ...]] = []

    def add(epoch: int, metric: str, value: float, layer: int | None = None, reason: str | None = None) -> None:
        number = math.nan if reason else float(value)
        lines.append((id, epoch, epoch * 10, layer, metric, number, reason is None, reason, size))

    for epoch in range(last + 1):
        done = epoch / max(config.epochs, 1)
        accuracy = 0.1 + (ACCURACY.get(rule, 0.6) - 0.1) * (1 - math.exp(-5 * done)) + 0.005 * rng.normal()
        add(epoch, "test_acc", accuracy)
        add(epoch, "test_loss", -math.log(accuracy))
        if epoch:
            add(epoch, "train_acc", accuracy + 0.02)
            add(epoch, "train_loss", -math.log(accuracy) * 0.9)
            if rule == "state_bridge":
                add(epoch, "state_pred_error", math.exp(-3 * done))
        for layer in range(depth + 1):
            noise = rng.lognormal(0, 0.1)
            add(epoch, "hidden_norm", 3 * 10 ** (2 * done * layer / depth * (rule != "bp")) * noise, layer)
            add(epoch, "grad_norm", 10 ** (-2 * done) * noise, layer)
            add(epoch, "credit_norm", noise, layer)
            reason = f"no credit reaches it {NASTY}" if rule == "frozen" and layer else None
            cosine = 1.0 if rule == "bp" else 0.4 * (1 - layer / (2 * depth)) * noise
            add(epoch, "credit_cosine", cosine, layer, reason)
            add(epoch, "credit_cosine/null", 0.01 * rng.normal(), layer)
            add(epoch, "credit_cosine/bp", 1.0, layer)
            if epoch in (0, last):
                for metric, value in (("rho", cosine), ("nudge[0.01]", -0.01 * cosine)):
                    add(epoch, metric, value, layer, reason)
                    add(epoch, f"{metric}/null", 0.01 * rng.normal(), layer)
                    add(epoch, f"{metric}/bp", 1.0 if metric == "rho" else -0.01, layer)
        for block in range(depth):
            add(epoch, "growth", rng.lognormal(0.2, 0.1), block)
            add(epoch, "branch_ratio", rng.lognormal(-1, 0.1), block)
            add(epoch, "branch_cosine", rng.normal(0, 0.2), block)
            add(epoch, f"drift[blocks.{block}.w1.weight]", done * rng.lognormal(0, 0.1))
    return pl.DataFrame(lines, schema=SCHEMA, orient="row")


def write_study(root: Path, study: str, *, scale: str = "quick", seeds: Sequence[int] = (42, 123)) -> list[str]:
    """Every run of the study, complete."""
    return [write_run(root, config) for config in STUDIES[study].configs(scale, seeds)]


def rename(root: Path, run: str, **about: str) -> None:
    """Other facts in a run's description, as a hand-edited file would have them."""
    import json

    folder = RunFolder(root / run)
    known = folder.description()
    known["about"] |= about
    forge(folder, "run.json", json.dumps(known).encode())
