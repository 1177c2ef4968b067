"""An experiment of MLflow in a SQLite database, written through its own client."""

import hashlib
import itertools
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing leaves the machine

import alembic  # noqa: F401  without it and sqlalchemy, MLflow has no database
import sqlalchemy  # noqa: F401
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from sonde.analysis.runs import run_settings
from sonde.core.run_ids import shown
from sonde.show.exporters import REASON_PREFIX, ExportProgress, runs_with_rows, started, steps_of, tags
from sonde.store.files import set_aside
from sonde.store.run import Run, Runs

_T = TypeVar("_T")

_STATUS = {"complete": "FINISHED", "unfinished": "RUNNING"}
"""State of a run → status in MLflow; other states have failed."""

METRICS_A_BATCH = 1000
OTHERS_A_BATCH = 100
LONGEST_NAME = 200
LONGEST_TEXT = 4000
_REFUSED = re.compile(r"[^\w .:/-]|//+|(?<=/)\.+(?=/|$)|^[./ ]+|[/. ]+$", re.ASCII)


def write_database(stored: Runs, out: Path, on_progress: ExportProgress) -> list[Path]:
    """`mlflow.db` with the experiment `sonde`: a run each, its configuration as parameters, every series a metric."""
    out.mkdir(parents=True, exist_ok=True)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    path = out / "mlflow.db"
    with set_aside(path) as (aside,):
        client = MlflowClient(tracking_uri=f"sqlite:///{aside.absolute()}")
        artifacts = (out / "mlartifacts").absolute().as_uri()
        experiment = client.create_experiment("sonde", artifact_location=artifacts)
        for run, rows in runs_with_rows(stored, on_progress):
            _write_run(client, experiment, run, rows)
        _close(client)
    return [path]


def _write_run(client: Any, experiment: str, run: Run, rows: Any) -> None:
    when, names, reasons = int(1000 * started(run)), _Names(), _Reasons()
    made = client.create_run(experiment, start_time=when, run_name=run.id).info.run_id

    def metrics() -> Iterator[Metric]:
        for step, _, points in steps_of(rows):
            for point in points:
                name = names.of(point.series)
                if point.reason is not None:
                    reasons.add(name, point.reason, step)
                yield Metric(name, math.nan if point.reason else point.value, when, step)

    parameters = _Names()
    for batch in _batches(
        (Param(parameters.of(key), shown(v)) for key, v in run_settings(run).items()), OTHERS_A_BATCH
    ):
        client.log_batch(made, params=batch)
    for batch in _batches(metrics(), METRICS_A_BATCH):
        client.log_batch(made, metrics=batch)
    said = {f"sonde.{key}": value for key, value in tags(run).items()}
    said |= {f"sonde.name.{name}": series for name, series in (names.changed | parameters.changed).items()}
    said |= {f"{REASON_PREFIX}.{name}": words for name, words in reasons.words().items()}
    for batch in _batches((RunTag(key, value[:LONGEST_TEXT]) for key, value in said.items()), OTHERS_A_BATCH):
        client.log_batch(made, tags=batch)
    state = _STATUS.get(run.manifest.state, "FAILED")
    client.set_terminated(made, state, when) if state != "RUNNING" else client.update_run(made, state)


class _Names:
    """What MLflow allows as a name; two series never get the same one."""

    def __init__(self) -> None:
        self.by_series: dict[str, str] = {}
        self.taken: set[str] = set()
        self.changed: dict[str, str] = {}  # name → the series it stands for

    def of(self, series: str) -> str:
        if series not in self.by_series:
            name = _REFUSED.sub("_", series)[:LONGEST_NAME]
            if name in self.taken:
                name = f"{name}_{hashlib.sha256(series.encode()).hexdigest()[:8]}"
            self.by_series[series] = name
            self.taken.add(name)
            if name != series:
                self.changed[name] = series
        return self.by_series[series]


class _Reasons:
    """Why values are undefined.  MLflow has no field for it beside a value, so each series has one text."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, str], list[int]] = {}  # first, last and how many

    def add(self, name: str, reason: str, step: int) -> None:
        known = self.steps.setdefault((name, reason), [step, step, 0])
        known[1], known[2] = step, known[2] + 1

    def words(self) -> dict[str, str]:
        said: dict[str, list[str]] = {}
        for (name, reason), (first, last, count) in self.steps.items():
            when = f"step {first}" if count == 1 else f"{count} times, steps {first} to {last}"
            said.setdefault(name, []).append(f"{reason} ({when})")
        return {name: "; ".join(parts) for name, parts in said.items()}


def _batches(things: Iterable[_T], size: int) -> Iterator[Sequence[_T]]:
    remaining = iter(things)
    while batch := list(itertools.islice(remaining, size)):
        yield batch


def _close(client: Any) -> None:
    """Close the file, so that it can be renamed when it is complete."""
    client._tracking_client.store.engine.dispose()
