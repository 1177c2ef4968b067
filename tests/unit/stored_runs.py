"""Stores made by hand: runs of given rules and seeds with chosen values, without training."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import polars as pl

from sonde.core.run_ids import run_id
from sonde.metrics.rows import SCHEMA, empty
from sonde.store.folder import RunFolder
from sonde.store.run import Run, Runs
from sonde.store.schemas import Manifest

DEPTH, WIDTH, EPOCHS, SAMPLES, DRAWS = 4, 64, 10, 100, 20
LABELS = {
    "bp": "BP",
    "fa": "FA",
    "dfa": "DFA",
    "state_bridge": "State Bridge",
    "credit_bridge": "Credit Bridge",
    "frozen": "frozen",
}
CONFIG: dict[str, Any] = {
    "model": {"name": "residual_mlp", "d": WIDTH, "L": DEPTH, "out_ln": True},
    "rule": {"name": "bp", "credit_scale": "rms", "penalty": 0.0},
    "task": {"name": "digits"},
    "optimiser": {"name": "adamw", "lr": 1e-3},
    "probes": {"names": ["growth", "grad_norm"], "size": SAMPLES},
    "batch_size": 128,
    "epochs": EPOCHS,
    "seed": 42,
    "scale": "quick",
}

Key = tuple[str, int, int | None]
Value = float | str | None
"""A number; text, the reason why it is undefined; or None, not measured."""
Measure = Callable[[str, int, int | None], Value]

EXPENSIVE_AT = (0, 5, EPOCHS)


def healthy(seed: int = 42, accuracy: float = 0.9, cosine: float = 0.5) -> dict[Key, Value]:
    """Every metric at every epoch: a calm stream, a living gradient, credit far above chance."""
    wobble = 1e-3 * math.sin(seed)  # seeds differ a little, as they do
    found: dict[Key, Value] = {}
    for epoch in range(EPOCHS + 1):
        found["test_acc", epoch, None] = 0.1 + (accuracy + wobble - 0.1) * epoch / EPOCHS
        found["train_acc", epoch, None] = 0.1 + (accuracy + wobble - 0.1) * epoch / EPOCHS
        for block in range(DEPTH):
            found["growth", epoch, block] = 1.2 + 0.1 * block
        for layer in range(DEPTH + 1):
            null = 2e-3 * math.sin(seed * (layer + 2) + epoch)
            found["hidden_norm", epoch, layer] = 8.0 + epoch + layer
            found["grad_norm", epoch, layer] = 1.0 / (1 + epoch)
            found["grad_resolution", epoch, layer] = 1 - 1e-12 * (1 + layer)
            if layer == DEPTH:
                found["grad_per_error", epoch, layer] = 2.0 / (1 + 0.1 * epoch)
            found["credit_cosine", epoch, layer] = cosine + wobble
            found["credit_cosine/bp", epoch, layer] = 1.0
            found["credit_cosine/null", epoch, layer] = null
            found["credit_cosine/null_std", epoch, layer] = 0.02
            if epoch in EXPENSIVE_AT:
                for metric, value in (("rho", cosine), ("nudge[0.01]", -cosine)):
                    found[metric, epoch, layer] = value + wobble
                    found[f"{metric}/bp", epoch, layer] = math.copysign(0.99, value)
                    found[f"{metric}/null", epoch, layer] = null
                found["rho/null_std", epoch, layer] = 0.04
    return found


def config(rule: str = "bp", seed: int = 42, **changes: Any) -> dict[str, Any]:
    """A configuration with dotted keys replaced, written `model__L=8`."""
    tree = deepcopy(CONFIG)
    tree["rule"]["name"], tree["seed"] = rule, seed
    for key, value in changes.items():
        *path, last = key.split("__")
        section = tree
        for part in path:
            section = section[part]
        section[last] = value
    return tree


def run(
    tree: Mapping[str, Any],
    values: Mapping[Key, Value],
    *,
    state: str = "complete",
    epoch: int | None = None,
    sessions: Sequence[dict[str, Any]] = (),
    **about: Any,
) -> tuple[Run, pl.DataFrame]:
    """A run and its rows; `epoch` is the last that it reached."""
    id = run_id(tree)
    if about:  # two runs in memory may be told apart by facts alone
        id += f"-{zlib.crc32(repr(about).encode()):08x}"
    facts = {
        "label": "ResMLP",
        "variant": None,
        "rule_label": LABELS.get(tree["rule"]["name"], tree["rule"]["name"]),
        "task_label": "digits",
        "depth": tree["model"]["L"],
        "width": tree["model"]["d"],
        "alpha": None,
        "steps": 100,
        "samples": 1000,
        "probe_size": SAMPLES,
        "data": None,
    } | about
    epoch = tree["epochs"] if epoch is None else epoch
    message = f"loss or weights are not finite after epoch {epoch}" if state == "diverged" else None
    manifest = Manifest(state=state, epoch=epoch, message=message, sessions=list(sessions))  # type: ignore[arg-type]
    return Run(id, dict(tree), facts, manifest, Path("runs") / id), rows(id, values)


def rows(id: str, values: Mapping[Key, Value]) -> pl.DataFrame:
    lines = []
    for (metric, epoch, layer), value in values.items():
        if value is None:
            continue
        undefined = isinstance(value, str)
        number = math.nan if undefined else value
        reason = value if undefined else None
        samples = DRAWS if metric.endswith("/null_std") else SAMPLES
        lines.append((id, epoch, epoch, layer, metric, number, not undefined, reason, samples))
    return pl.DataFrame(lines, schema=SCHEMA, orient="row")


def store(*runs: tuple[Run, pl.DataFrame]) -> Runs:
    return Runs(pl.concat([empty(), *(frame for _, frame in runs)]), [known for known, _ in runs])


def write(stored: Runs, root: Path) -> Path:
    """The same runs on disk."""
    root.mkdir()
    for known in stored.runs:
        folder = RunFolder(root / known.id)
        folder.create(known.config, known.about)
        folder.commit(known.manifest, stored.rows.filter(run=known.id), {})
    return root


def changed(values: Mapping[Key, Value], change: Measure) -> dict[Key, Value]:
    """The values with some replaced: `change` returns None to leave one as it is."""
    return {key: value if (new := change(*key)) is None else new for key, value in values.items()}


def without(values: Mapping[Key, Value], *prefixes: str) -> dict[Key, Value]:
    """The values but those of some metrics."""
    return {key: value for key, value in values.items() if not key[0].startswith(prefixes)}
