"""Rows of one run out of a Parquet file: of the columns they must have, of that run, and no more than memory holds."""

import io

import numpy as np
import polars as pl

from sonde.core.errors import SondeError
from sonde.metrics.rows import SCHEMA
from sonde.store.limits import DEPTH, ROWS, refuse_rows, refuse_unpacked
from sonde.store.parquet_size import size
from sonde.store.place import Place

MOST = {"epoch": 10**9, "step": 2**53, "layer": DEPTH, "samples": 2**53}


def read_parquet(content: bytes, what: object, fix: str) -> pl.DataFrame:
    """The table of a Parquet file, once its headers say that it is no larger than its bytes explain."""
    try:
        found = size(io.BytesIO(content))
        refuse_rows(found.rows, len(content), what, fix)
        refuse_unpacked(found.bytes, len(content), what, fix)
        return pl.read_parquet(io.BytesIO(content), n_rows=ROWS + 1, parallel="none")
    except (pl.exceptions.PolarsError, ValueError, OverflowError) as error:
        said = (str(error).splitlines() or [""])[0]
        raise SondeError(f"{what} cannot be read ({said}): {fix}") from None
    except BaseException as error:  # a file made to fail may end in a panic of the library, which is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise SondeError(f"{what} cannot be read (its columns make no sense): {fix}") from None


def read_table(content: bytes, path: Place, run: str, schema: pl.Schema, fix: str) -> pl.DataFrame:
    """The rows of a file of this run."""
    rows = read_parquet(content, path, fix)
    if rows.schema != schema:
        raise SondeError(f"{path} has the columns of another version: {fix}")
    refuse_nonsense(rows, path, run, fix)
    if schema == SCHEMA and rows["epoch"].null_count():
        raise SondeError(f"{path} has rows without epoch: {fix}")
    return rows


def refuse_nonsense(rows: pl.DataFrame, path: Place, run: str, fix: str) -> None:
    """Rows name the run whose folder they lie in, and have what every row has."""
    runs = rows["run"]
    if runs.null_count() or (runs != run).any():
        unknown = runs.filter(runs.ne_missing(run))
        raise SondeError(f"{path} has rows of {unknown[0]!r}, but the run is {run!r}: {fix}")
    refuse_odd_values(rows, path, fix)


def refuse_odd_values(rows: pl.DataFrame, path: object, fix: str) -> None:
    """Every row has a metric, a step, and a finite number or none."""
    epoch = () if "module" in rows.columns else ("epoch",)  # a watched loop has none
    for name in ("step", "metric", "value", "defined", "samples", *epoch):
        if rows[name].null_count():
            raise SondeError(f"{path} has rows without {name}: {fix}")
    finite = np.isfinite(rows["value"].to_numpy())
    if not (finite.all() or (finite | ~rows["defined"].to_numpy()).all()):
        raise SondeError(f"{path} has rows that are defined and not finite: {fix}")
    for name, most in MOST.items():
        for bound in (rows[name].min(), rows[name].max()):
            if isinstance(bound, int) and not 0 <= bound <= most:
                raise SondeError(f"{path} has rows with {name} = {bound}: {fix}")
