"""`sonde show`."""

from pathlib import Path
from typing import Any

from sonde.cli.options import Json, RunsFolder


def show(runs: RunsFolder = Path("runs"), json: Json = False) -> None:
    """List stored runs: what each is, how far it came, its last metrics."""
    import polars as pl

    from sonde.cli.output import console, print_json, table
    from sonde.store.load import load

    stored = load(runs)
    scalars = stored.rows.filter(pl.col("layer").is_null()).sort("epoch", "step")
    last = scalars.group_by("run", "metric", maintain_order=True).last()
    metrics: dict[str, dict[str, Any]] = {run.id: {} for run in stored.runs}
    for run, metric, value in last.select("run", "metric", "value").iter_rows():
        metrics[run][metric] = value
    if json:
        print_json(
            [
                {
                    "id": run.id,
                    "label": run.label,
                    "model": run.config["model"]["name"],
                    "rule": run.config["rule"]["name"],
                    "task": run.config["task"]["name"],
                    "seed": run.config["seed"],
                    "epoch": run.manifest.epoch,
                    "state": run.manifest.state,
                    "metrics": metrics[run.id],
                }
                for run in stored.runs
            ]
        )
        return
    names = sorted({name for known in metrics.values() for name in known})
    columns = {"id": "left", "label": "left", "seed": "right", "epochs": "right", "state": "left"}
    rows = [
        [
            run.id,
            run.label,
            str(run.config["seed"]),
            f"{'–' if run.manifest.epoch is None else run.manifest.epoch}/{run.config['epochs']}",
            run.manifest.state,
            *(_number(metrics[run.id].get(name)) for name in names),
        ]
        for run in stored.runs
    ]
    console().print(table(f"{len(rows)} runs in {runs}", columns | dict.fromkeys(names, "right"), rows))


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return "undefined" if value != value else f"{value:.4g}"
