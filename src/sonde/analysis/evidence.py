"""What a figure or a finding may rest on: tidy rows, and one line per run.

The rows are in memory, or a reader reads those of the metrics that are asked for.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl

from sonde.metrics.rows import named

if TYPE_CHECKING:
    from sonde.store.load import RowReader
    from sonde.store.readings import Readings

RUNS_SCHEMA = pl.Schema(
    {
        "run": pl.String,
        "label": pl.String,  # of the network, derived from its configuration
        "model": pl.String,
        "rule": pl.String,
        "rule_label": pl.String,
        "task": pl.String,  # null, as label and scale are, when a file does not record it
        "task_label": pl.String,
        "out_ln": pl.Boolean,  # terminal LayerNorm on or off; null where the network has no such choice
        "variant": pl.String,  # raw or scaled for the residual study; null where it has no meaning
        "seed": pl.Int64,  # null when a file does not record it
        "scale": pl.String,
        "epochs": pl.Int64,
        "steps": pl.Int64,
        "batch": pl.Int64,
        "lr": pl.Float64,
        "samples": pl.Int64,  # training samples
        "depth": pl.Int64,
        "width": pl.Int64,
        "alpha": pl.Float64,  # weight scale; null where it has no meaning
        "probe_size": pl.Int64,  # samples of a snapshot; 1 where gradients are those of the batch-mean loss already
        "model_alpha": pl.Float64,  # α of a student_net's nonlinearity; null elsewhere
        "input_norm": pl.String,  # of a bridge: layer or none; null elsewhere, and when a file does not record it
        "reader": pl.String,  # which vector of a sample is read: flat (all of it), cls, last or mean
        "output": pl.String,  # of plain_mlp and res_mlp: relu or linear, the last layer; null elsewhere
        "classes": pl.Int64,  # of the task; null where it has none, and where they are not known
    }
)

NO_DATA_SET = "data set not recorded"


@dataclass(frozen=True)
class Evidence:
    """Tidy rows (`sonde.metrics.rows.SCHEMA`), the runs they belong to, and where they were read."""

    held: "pl.DataFrame | RowReader"
    runs: pl.DataFrame
    source: str
    beside: "Evidence | None" = field(default=None, kw_only=True)  # of the runs that the study trains beside its own
    from_epoch: int = field(default=0, kw_only=True)  # rows of earlier epochs are left out

    @property
    def rows(self) -> pl.DataFrame:
        """All rows; they are read where they are not in memory."""
        return self._kept(self.held if isinstance(self.held, pl.DataFrame) else self.held(self.runs["run"].to_list()))

    def rows_with(self, *metrics: str, **where: int) -> pl.DataFrame:
        """The rows of these metrics, or those of an epoch or layer; a name that ends in `[` stands for a family."""
        if isinstance(self.held, pl.DataFrame):
            return self._kept(self.held.filter(named(metrics), **where))
        return self._kept(self.held(self.runs["run"].to_list(), metrics, **where))

    def _kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.filter(pl.col("epoch") >= self.from_epoch) if self.from_epoch else rows

    def of(self, **choice: str) -> "Evidence":
        """The runs whose columns equal the choice, and their rows."""
        return self.of_runs(self.runs.filter(**choice) if choice else self.runs)

    def of_runs(self, runs: pl.DataFrame) -> "Evidence":
        """These lines of runs, and their rows."""
        held = self.held
        if isinstance(held, pl.DataFrame):
            held = held.join(runs.select("run"), on="run", how="semi")
        return replace(self, held=held, runs=runs, beside=None)

    def readings(self) -> "Readings":
        """To look up single values of many runs."""
        from sonde.store.readings import Readings

        return Readings(self.held if isinstance(self.held, pl.DataFrame) else self.rows_with)

    def rows_of(self, run: str) -> pl.DataFrame:
        """The rows of one run."""
        return self.rows.filter(run=run)

    def metric(self, name: str) -> pl.DataFrame:
        """Rows of one metric beside the description of their run; undefined values stay NaN."""
        return self.described(self.rows_with(name))

    def described(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows beside the description of their run.  What all runs have in common is not stored row by row."""
        runs = self.runs
        beside = {name: f"{name}_of_run" if name in rows.columns else name for name in runs.columns if name != "run"}
        shared = [name for name in beside if runs[name].n_unique() == 1]
        common = {beside[name]: pl.lit(runs[name][0], dtype=runs.schema[name]) for name in shared}
        described = rows.join(runs.drop(shared), on="run", how="inner", suffix="_of_run").with_columns(**common)
        return described.select(*rows.columns, *beside.values())


class NoData(Exception):
    """The rows a figure needs are not there; the message says which."""
