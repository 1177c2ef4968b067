"""Rows of one run out of a Parquet file: of the columns they must have, of that run, and no more than memory holds."""

import io

import polars as pl

from sonde.errors import SondeError
from sonde.store.place import Place
from sonde.store.unpacked import unpacked

SMALL = 64_000  # bytes that cannot unpack to more than memory holds
LARGEST = 1_000_000_000  # bytes of a file once it is unpacked
MOST = 12_000_000  # rows of a run: 1.1 GB in memory


def read_table(content: bytes, path: Place, run: str, schema: pl.Schema, fix: str) -> pl.DataFrame:
    """The rows of a file of this run."""
    try:
        if len(content) > SMALL and (size := unpacked(io.BytesIO(content))) > LARGEST:
            raise SondeError(f"{path} unpacks to {size / 1e9:.1f} GB, which no run of Sonde's has: {fix}")
        rows = pl.read_parquet(io.BytesIO(content), n_rows=MOST + 1, parallel="none")
    except (pl.exceptions.PolarsError, ValueError) as error:
        raise SondeError(f"{path} cannot be read ({str(error).splitlines()[0]}): {fix}") from None
    refuse_too_many(rows.height, path)
    if rows.schema != schema:
        raise SondeError(f"{path} has the columns of another version: {fix}")
    refuse_strangers(rows, path, run, fix)
    return rows


def refuse_strangers(rows: pl.DataFrame, path: Place, run: str, fix: str) -> None:
    """Rows name the run whose folder they lie in."""
    runs = rows["run"]
    if runs.null_count() or (runs != run).any():
        strangers = runs.filter(runs.ne_missing(run))
        raise SondeError(f"{path} has rows of {strangers[0]!r}, but the run is {run!r}: {fix}")


def refuse_too_many(rows: int, path: Place) -> None:
    if rows > MOST:
        raise SondeError(
            f"{path} has more rows than the {MOST:,} that a run may have: measure less often, with "
            "--set probes.schedule=log_spaced or --set log=epoch"
        )
