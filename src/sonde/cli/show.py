"""`sonde show`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.cli.options import Json, RunsFolder
from sonde.cli.sessions import place_of, start

if TYPE_CHECKING:
    from sonde.store.load import Runs


SHOWN = ("test_acc", "test_loss", "train_loss")  # in the table; the JSON has every metric


def show(runs: RunsFolder = Path("runs"), json: Json = False) -> None:
    """List stored runs: what each is, how far it came, its last metrics."""
    import polars as pl

    from sonde.cli.output import print_json
    from sonde.store.load import load

    scalars = pl.col("layer").is_null()
    stored = load(runs, scalars if json else scalars & pl.col("metric").is_in(SHOWN))
    if json:
        print_json(describe(stored))
    else:
        print_runs(stored, f"{len(stored)} runs in {runs}")


def describe(stored: "Runs") -> list[dict[str, Any]]:
    """What a program wants to know of each run; undefined metrics are NaN here."""
    metrics = _last_metrics(stored)
    return [
        {
            "id": run.id,
            "label": run.label,
            "model": run.config["model"]["name"],
            "rule": run.config["rule"]["name"],
            "task": run.config["task"]["name"],
            "seed": run.config["seed"],
            "epoch": run.manifest.epoch,
            "state": run.manifest.state,
            "sessions": [
                {key: session.get(key) for key in ("from_epoch", "started")} | {"where": place_of(session)}
                for session in run.manifest.sessions
            ],
            "metrics": metrics[run.id],
        }
        for run in stored.runs
    ]


def print_runs(stored: "Runs", title: str) -> None:
    """A table of runs with the last value of the metrics that say most."""
    from sonde.cli.output import print_table

    metrics = _last_metrics(stored)
    names = [name for name in SHOWN if any(name in known for known in metrics.values())]
    columns = {"id": "left", "label": "left", "seed": "right", "epochs": "right", "state": "left"}
    columns |= dict.fromkeys(names, "right")
    resumed = {run.id: ", ".join(map(start, run.manifest.sessions[1:])) for run in stored.runs}
    if any(resumed.values()):
        columns["sessions"] = "left"
    rows = [
        [
            run.id,
            run.label,
            str(run.config["seed"]),
            f"{'–' if run.manifest.epoch is None else run.manifest.epoch}/{run.config['epochs']}",
            run.manifest.state,
            *(_number(metrics[run.id].get(name)) for name in names),
            *([resumed[run.id]] if "sessions" in columns else []),
        ]
        for run in stored.runs
    ]
    print_table(title, columns, rows)


def _last_metrics(stored: "Runs") -> dict[str, dict[str, float]]:
    import polars as pl

    scalars = stored.rows.filter(pl.col("layer").is_null())
    last = scalars.group_by("run", "metric", maintain_order=True).agg(
        pl.col("value").sort_by("epoch", "step").last()
    )
    metrics: dict[str, dict[str, float]] = {run.id: {} for run in stored.runs}
    for run, metric, value in last.iter_rows():
        metrics[run][metric] = value
    return metrics


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return "undefined" if value != value else f"{value:.4g}"
