"""Numbers of single runs, then over the seeds: how findings are made from rows."""

import math
from collections.abc import Callable
from typing import Any

import polars as pl

from sonde.errors import SondeError
from sonde.statistics import over_seeds


class Readings:
    """Rows of many runs.  Runs of a study are asked the same things, so each is looked up for all of them at once."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows = rows
        self._of_metric: dict[str, pl.DataFrame] = {}
        self._known: dict[tuple[object, ...], dict[str, float]] = {}

    def values(self, metric: str, **where: int) -> dict[str, float]:
        """Run → value, of the runs that have exactly one."""
        key = (metric, *where.items())
        if key not in self._known:
            if metric not in self._of_metric:
                self._of_metric[metric] = self.rows.filter(metric=metric)
            found = self._of_metric[metric].filter(**where)
            found = found.filter(pl.len().over("run") == 1)
            self._known[key] = dict(zip(found["run"], found["value"], strict=True))
        return self._known[key]


class RunRows:
    """One run's readings; a value that is not there or undefined is NaN."""

    def __init__(self, readings: Readings, run: dict[str, Any]) -> None:
        self.readings, self.run = readings, run

    def value(self, metric: str, **where: int) -> float:
        return self.readings.values(metric, **where).get(self.run["run"], math.nan)

    def change(self, metric: str, **where: int) -> float:
        """The value after the last epoch relative to initialisation."""
        before, after = (self.value(metric, epoch=epoch, **where) for epoch in (0, self.run["epochs"]))
        return after / before if before > 0 else math.nan


def over_runs(
    runs: pl.DataFrame, readings: Readings, measure: Callable[[RunRows], dict[str, float]]
) -> dict[str, dict[str, Any]]:
    """Mean, spread and n over the runs of each number, each run being one seed; a seed that counts twice is refused."""
    seeds = runs["seed"].drop_nulls()
    if seeds.n_unique() < seeds.len():
        raise SondeError(
            f"several runs of one seed would be averaged ({', '.join(runs['run'])}): keep one with --only key=value"
        )
    measured = [measure(RunRows(readings, run)) for run in runs.iter_rows(named=True)]
    rows = pl.DataFrame(
        [(name, value, not math.isnan(value)) for numbers in measured for name, value in numbers.items()],
        schema={"name": pl.String, "value": pl.Float64, "defined": pl.Boolean},
        orient="row",
    )
    found = over_seeds(rows, "name").with_columns(pl.col("mean").fill_null(math.nan))
    return {row["name"]: row for row in found.iter_rows(named=True)}
