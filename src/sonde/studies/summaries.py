"""Numbers of single runs, then over the seeds: how findings are made from rows."""

import math
from collections.abc import Callable
from typing import Any

import polars as pl

from sonde.figures.evidence import Evidence
from sonde.statistics import over_seeds
from sonde.verdicts import number


class RunRows:
    """One run's rows; a value that is not there or undefined is NaN."""

    def __init__(self, rows: pl.DataFrame, run: dict[str, Any]) -> None:
        self.rows, self.run = rows, run

    def value(self, metric: str, **where: int) -> float:
        found = self.rows.filter(metric=metric, **where)
        return float(found["value"][0]) if found.height == 1 else math.nan

    def change(self, metric: str, **where: int) -> float:
        """The value after the last epoch relative to initialisation."""
        before, after = (self.value(metric, epoch=epoch, **where) for epoch in (0, self.run["epochs"]))
        return after / before if before > 0 else math.nan


def over_runs(
    evidence: Evidence, measure: Callable[[RunRows], dict[str, float]]
) -> dict[str, dict[str, Any]]:
    """Mean, spread and n over the runs of each number, each run being one seed."""
    measured = [
        measure(RunRows(evidence.rows.filter(run=run["run"]), run))
        for run in evidence.runs.iter_rows(named=True)
    ]
    rows = pl.DataFrame(
        [(name, value, not math.isnan(value)) for numbers in measured for name, value in numbers.items()],
        schema={"name": pl.String, "value": pl.Float64, "defined": pl.Boolean},
        orient="row",
    )
    found = over_seeds(rows, "name").with_columns(pl.col("mean").fill_null(math.nan))
    return {row["name"]: row for row in found.iter_rows(named=True)}


def with_spread(summary: dict[str, Any], digits: int = 2) -> str:
    """`0.58 ± 0.01`; the spread only where there is one."""
    spread = "" if summary["std"] is None else f" ± {number(summary['std'])}"
    return f"{number(summary['mean'], digits)}{spread}"
