"""Stores for tests, written in a moment and without training.

Three ways to get one:
- `store(run(config(), healthy()), …)` in memory, with chosen values; `write` puts it on disk.
- `write_run(root, config)` on disk, with made-up values under a real configuration; `write_study` for a whole study.
- `unpack(study, folder)` a store that version 0.1.0 wrote.
"""

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl

from sonde.cli.options import Selection
from sonde.config import RunConfig, label_of, to_tree
from sonde.core.run_ids import run_id
from sonde.metrics.rows import SCHEMA, WATCHED, Reading, empty, rows_of
from sonde.show.figures import NoData, figures_of
from sonde.store import files
from sonde.store.files import Place, place
from sonde.store.folder import commit, create_run, put_manifest, read_manifest, read_trained
from sonde.store.remote import Remote
from sonde.store.run import Run, Runs, open_run
from sonde.store.schemas import Manifest, RunState, checksum
from sonde.studies import STUDIES

Key = tuple[str, int, int | None]
"""Metric, epoch, layer."""
Value = float | str | None
"""A number; text, the reason why it is undefined; or None, not measured."""
Measure = Callable[[str, int, int | None], Value]

SAMPLES, DRAWS = 100, 20


def value_rows(id: str, values: Mapping[Key, Value], samples: int = SAMPLES, steps: int = 1) -> pl.DataFrame:
    """Rows with these values; `steps` optimiser steps an epoch."""
    lines = []
    for (metric, epoch, layer), value in values.items():
        if value is None:
            continue
        reason = value if isinstance(value, str) else None
        number = math.nan if isinstance(value, str) else float(value)
        n = DRAWS if metric.endswith("/null_std") else samples
        lines.append((id, epoch, epoch * steps, layer, metric, number, reason is None, reason, n))
    return pl.DataFrame(lines, schema=SCHEMA, orient="row")


# --- runs with chosen values, in memory -----------------------------------------------------------------------------

DEPTH, WIDTH, EPOCHS = 4, 64, 10
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


def changed(values: Mapping[Key, Value], change: Measure) -> dict[Key, Value]:
    """The values with some replaced: `change` returns None to leave one as it is."""
    return {key: value if (new := change(*key)) is None else new for key, value in values.items()}


def without(values: Mapping[Key, Value], *prefixes: str) -> dict[Key, Value]:
    """The values except those of some metrics."""
    return {key: value for key, value in values.items() if not key[0].startswith(prefixes)}


def config(rule: str = "bp", seed: int = 42, **changes: Any) -> dict[str, Any]:
    """A configuration with dotted keys replaced, written `model__L=8`."""
    tree = deepcopy(CONFIG)
    tree["rule"]["name"], tree["seed"] = rule, seed
    tree["rule"]["credit_scale"] = "none" if rule in ("bp", "frozen") else "rms"  # their defaults
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
    state: RunState = "complete",
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
    manifest = Manifest(state=state, epoch=epoch, message=message, sessions=list(sessions))
    return Run(Path("runs") / id, {"config": dict(tree), "about": facts}, manifest), value_rows(id, values)


def store(*runs: tuple[Run, pl.DataFrame]) -> Runs:
    """These runs, as a reader gets them."""
    return Runs(pl.concat([empty(), *(frame for _, frame in runs)]), [known for known, _ in runs])


def write(stored: Runs, root: Path) -> Path:
    """The same runs on disk."""
    root.mkdir()
    for known in stored.runs:
        folder = root / known.id
        create_run(folder, known.config, known.description["about"])
        commit(folder, known.manifest, stored.rows.filter(run=known.id), {})
    return root


# --- runs with made-up values under real configurations, on disk ----------------------------------------------------

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
    """Write a run of the configuration, at its end or after `epoch`, maybe stored with another tree; returns its id."""
    files.make_folder(root)
    last = config.epochs if epoch is None else epoch
    tree = tree or to_tree(config)
    folder = root / run_id(tree)
    create_run(folder, tree, about(config))
    resumed = {**SESSION, "from_epoch": last // 2}
    manifest = Manifest(
        state=state,
        epoch=last,
        step=last * 10,
        seconds={"train": 8.0, "probes": 2.0},
        sessions=[SESSION, resumed] if state == "unfinished" else [SESSION],
        message=f"loss is {NASTY}" if state == "diverged" else None,
    )
    commit(folder, manifest, made_up_rows(folder.name, config, last), {})
    return folder.name


def write_study(root: Path, study: str, *, scale: str = "quick", seeds: Sequence[int] = (42, 123)) -> list[str]:
    """Write every run of the study, complete."""
    return [write_run(root, config) for config in STUDIES[study].configs(scale, seeds)]


def about(config: RunConfig) -> dict[str, Any]:
    """What training would have written beside the configuration."""
    return {
        "label": config.model.label,
        "variant": config.model.variant,
        "rule_label": label_of("rule", config.rule),
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


def made_up_rows(id: str, config: RunConfig, last: int) -> pl.DataFrame:
    """Scalars of every epoch and profiles of every layer; the credit of frozen blocks is undefined."""
    rule = to_tree(config)["rule"]["name"]
    rng = np.random.default_rng([config.seed, len(rule)])
    depth = config.model.L
    found: dict[Key, Value] = {}
    for epoch in range(last + 1):
        done = epoch / max(config.epochs, 1)
        accuracy = 0.1 + (ACCURACY.get(rule, 0.6) - 0.1) * (1 - math.exp(-5 * done)) + 0.005 * rng.normal()
        found["test_acc", epoch, None] = accuracy
        found["test_loss", epoch, None] = -math.log(accuracy)
        if epoch:
            found["train_acc", epoch, None] = accuracy + 0.02
            found["train_loss", epoch, None] = -math.log(accuracy) * 0.9
            if rule == "state_bridge":
                found["state_pred_error", epoch, None] = math.exp(-3 * done)
        for layer in range(depth + 1):
            noise = rng.lognormal(0, 0.1)
            found["hidden_norm", epoch, layer] = 3 * 10 ** (2 * done * layer / depth * (rule != "bp")) * noise
            found["grad_norm", epoch, layer] = 10 ** (-2 * done) * noise
            found["credit_norm", epoch, layer] = noise
            reason = f"no credit reaches it {NASTY}" if rule == "frozen" and layer else None
            cosine = 1.0 if rule == "bp" else 0.4 * (1 - layer / (2 * depth)) * noise
            found["credit_cosine", epoch, layer] = reason or cosine
            found["credit_cosine/null", epoch, layer] = 0.01 * rng.normal()
            found["credit_cosine/bp", epoch, layer] = 1.0
            if epoch in (0, last):
                for metric, value in (("rho", cosine), ("nudge[0.01]", -0.01 * cosine)):
                    found[metric, epoch, layer] = reason or value
                    found[f"{metric}/null", epoch, layer] = 0.01 * rng.normal()
                    found[f"{metric}/bp", epoch, layer] = 1.0 if metric == "rho" else -0.01
        for block in range(depth):
            found["growth", epoch, block] = rng.lognormal(0.2, 0.1)
            found["branch_ratio", epoch, block] = rng.lognormal(-1, 0.1)
            found["branch_cosine", epoch, block] = rng.normal(0, 0.2)
            found[f"drift[blocks.{block}.w1.weight]", epoch, None] = done * rng.lognormal(0, 0.1)
    return value_rows(id, found, config.probes.size, steps=10)


def rename(root: Path, run: str, **about: str) -> None:
    """Other facts in a run's description, as a hand-edited file would have them."""
    folder = root / run
    known = open_run(folder).description
    known["about"] |= about
    forge(folder, "run.json", json.dumps(known).encode())


# --- stores of version 0.1.0 ----------------------------------------------------------------------------------------

STORES = Path(__file__).parent / "stores-0.1.0"
_SMALL = ("--set", "model.d=16", "--set", "epochs=2", "--seeds", "42")
COMMANDS = {
    "residual": (*_SMALL, "--set", "model.L=3", "--set", "task.d=16", "--set", "task.steps_per_epoch=4"),
    "snapshots": (*_SMALL, "--set", "model.L=2", "--set", "probes.size=16"),
    "audit": (*_SMALL, "--set", "model.L=2", "--set", "probes.size=16"),
    "cifar10": (*_SMALL, "--set", "model.L=3", "--set", "probes.size=16"),
}
"""The options of `sonde run STUDY` that made each store."""


def unpack(study: str, at: Path) -> Path:
    """The store of a study in a folder of its own."""
    with zipfile.ZipFile(STORES / f"{study}.zip") as archive:
        archive.extractall(at)
    return at


def captions(study: str, words: Sequence[str], runs: Path) -> dict[str, str]:
    """By figure, its caption, drawn of the runs of a study with these options; no file is rendered."""
    changes = [value for option, value in pairwise(words) if option == "--set"]
    (gathered,) = Selection(study, "quick", changes=changes).read(runs).values()
    found = {}
    for name, spec in figures_of(study).items():
        with suppress(NoData):
            found[name] = spec.draw(gathered.evidence)[1]
    return found


# --- object stores, single rows, damage -----------------------------------------------------------------------------


def at(url: str) -> Remote:
    """The place below a URL."""
    found = place(url)
    assert isinstance(found, Remote)
    return found


@contextmanager
def memory() -> Iterator[None]:
    """An empty memory:// that belongs to nobody else."""
    store = fsspec.filesystem("memory").store
    store.clear()
    try:
        yield
    finally:
        store.clear()


def rows(epoch: int, run: str = "r") -> pl.DataFrame:
    """One row: the loss of an epoch."""
    return rows_of(run, epoch, [Reading(metric="loss", value=float(epoch), samples=1)], steps=[epoch])


def some_rows(step: int, many: int = 3, run: str = "net") -> pl.DataFrame:
    """Rows of a watched step."""
    values = [(run, None, step, i, "out_rms", 1.5, True, None, 4, f"layer {i}") for i in range(many)]
    return pl.DataFrame(values, schema=WATCHED, orient="row")


def forge(folder: Place, name: str, content: bytes) -> None:
    """Other content under a file's name, with a manifest that was written for it: checksums are no signature."""
    manifest = read_manifest(folder)
    files.write(folder / name, content)
    assert manifest.checksums is not None
    put_manifest(folder, replace(manifest, checksums={**manifest.checksums, name: checksum(content)}))


def without_checksums(folder: Place) -> None:
    """The run as 0.1.0 would have stored it."""
    put_manifest(folder, replace(read_manifest(folder), checksums=None))


def assert_a_reader_sees_whole_states(folder: Place) -> None:
    """While another thread commits one after the other."""
    create_run(folder, {}, {})

    def write_states() -> None:
        for epoch in range(1, 60):
            commit(folder, Manifest(epoch=epoch), rows(epoch), {"weights": bytes([epoch])})

    seen = set()
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write_states)
        while not writing.done():
            manifest, visible = read_trained(folder)
            if manifest.epoch is not None:
                assert visible["epoch"].to_list() == [manifest.epoch]
                seen.add(manifest.epoch)
        writing.result()
    assert len(seen) > 3
