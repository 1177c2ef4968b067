"""Stored runs in the formats of other tools.  Each tool is an extra, imported when its layout is chosen."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from sonde.core.errors import SondeError, installation, pick
from sonde.store.run import Runs

Write = Callable[[Runs, Path, Callable[[int, int], None]], list[Path]]
"""(runs without rows, folder, on_progress) → what was written.  Rows are read one run at a time."""


@dataclass(frozen=True, kw_only=True)
class ExportLayout:
    """A format: what is written, by which function, and how it is opened."""

    what: str
    written_by: str  # module of this package and function in it
    opened_with: str
    extra: str | None = None  # that brings the tool
    alone: bool = False  # in a folder that holds nothing else
    run_by_run: bool = False  # each run appears when it is complete; otherwise all of them at once


LAYOUTS: dict[str, ExportLayout] = {
    "csv": ExportLayout(
        what="rows.csv, every row beside its run's rule, seed and differing keys, and runs.csv",
        written_by="own_formats.write_csv",
        opened_with='polars.read_csv("{out}/rows.csv")',
    ),
    "parquet": ExportLayout(
        what="the same two tables as Parquet",
        written_by="own_formats.write_parquet",
        opened_with='polars.read_parquet("{out}/rows.parquet")',
    ),
    "runs": ExportLayout(
        what="the runs that have ended, without weights, host names and command lines: a store to hand round",
        written_by="own_formats.write_store",
        opened_with="sonde report --runs {out}",
        alone=True,
        run_by_run=True,
    ),
    "tensorboard": ExportLayout(
        what="an event file for each run, its configuration as hparams",
        written_by="tensorboard_events.write_events",
        opened_with="tensorboard --logdir {out}/tensorboard",
        extra="tensorboard",
        run_by_run=True,
    ),
    "wandb": ExportLayout(
        what="an offline run of Weights & Biases for each run",
        written_by="wandb_offline.write_offline_runs",
        opened_with="wandb sync {out}/wandb/offline-run-*",
        extra="wandb",
        run_by_run=True,
    ),
    "mlflow": ExportLayout(
        what="an experiment in a SQLite database of MLflow",
        written_by="mlflow_database.write_database",
        opened_with="mlflow ui --backend-store-uri sqlite:///{out}/mlflow.db",
        extra="mlflow",
    ),
}


def writer(name: str) -> Write:
    """The function that writes a layout; an error that states the fix where its tool is not installed."""
    layout = pick(LAYOUTS, name, "layout")
    module, function = layout.written_by.split(".")
    try:
        found: Write = getattr(import_module(f"sonde.show.exporters.{module}"), function)
    except ModuleNotFoundError as missing:
        if layout.extra is None or (missing.name or "").startswith("sonde"):
            raise
        raise SondeError(
            f"--layout {name} needs the extra {layout.extra}, of which {missing.name} is not installed: "
            f"{installation(layout.extra)}"
        ) from None
    return found
