"""What differs between the runs of a store, and what each measured at its end: a metric against any key."""

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from sonde.analysis.configurations import all_described
from sonde.core.run_ids import differing, shown
from sonde.show.report.charts import DIGITS, Charted, offered
from sonde.show.report.parts import Sweep
from sonde.store.stored import Run


def sweep(runs: Sequence[Run], rows: pl.DataFrame) -> Sweep:
    """Every key but the seed in which the runs differ, the value of each run, and its metrics after its last epoch."""
    flats = all_described(runs)
    keys = [key for key in differing(flats.values()) if key != "seed"]
    levels: dict[str, list[Any]] = {key: [] for key in keys}
    places: dict[str, dict[str, int]] = {key: {} for key in keys}
    columns: dict[str, list[int]] = {key: [] for key in keys}
    for run in runs:
        for key in keys:
            value = flats[run.id].get(key)
            word = "absent" if key not in flats[run.id] else shown(value)
            if word not in places[key]:
                places[key][word] = len(levels[key])
                levels[key].append(value if _is_number(value) else word)
            columns[key].append(places[key][word])
    metrics, values = _ends(runs, rows)
    return Sweep(
        keys=keys,
        levels=levels,
        columns=columns,
        runs=[run.id for run in runs],
        seeds=[run.config["seed"] for run in runs],
        complete=[run.manifest.state == "complete" for run in runs],
        metrics=metrics,
        values=values,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _ends(runs: Sequence[Run], rows: pl.DataFrame) -> tuple[list[Charted], dict[str, list[float | None]]]:
    """Metrics of the whole network, and those of layers at the last of them; null where there is no number."""
    ends = pl.DataFrame(
        [(run.id, place, run.manifest.epoch) for place, run in enumerate(runs)],
        schema={"run": pl.String, "place": pl.Int64, "epoch": rows.schema["epoch"]},
        orient="row",
    )
    last = rows.join(ends, on=["run", "epoch"], how="inner")
    whole = pl.col("layer").is_null()
    found = offered(*(last.filter(part)["metric"].unique().to_list() for part in (whole, ~whole)))
    kept = [metric for metric in found if "/" not in metric.key]
    top = last.filter(
        pl.col("metric").is_in([metric.key for metric in kept]),
        whole | (pl.col("layer") == pl.col("layer").max().over("run", "metric")),
        pl.col("defined") & pl.col("value").is_finite(),
    ).with_columns(pl.col("value").round_sig_figs(DIGITS))
    values: dict[str, list[float | None]] = {metric.key: [None] * len(runs) for metric in kept}
    for metric, place, value in top.select("metric", "place", "value").iter_rows():
        values[metric][place] = value
    return kept, values
