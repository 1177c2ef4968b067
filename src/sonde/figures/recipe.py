"""What the runs of one figure must have in common, so that only the tested factor differs."""

from collections.abc import Sequence

import polars as pl

from sonde.errors import SondeError


def check_recipe(runs: pl.DataFrame, fields: Sequence[str], *, free: str) -> None:
    """Refuse runs that differ in any of the fields, naming field and values; `free` is what may differ."""
    differing = []
    for field in fields:
        values = runs[field].unique(maintain_order=True).to_list()
        if len(values) > 1:
            differing.append(f"{field} ({' and '.join(map(_said, values))})")
    if differing:
        raise SondeError(
            f"the runs of one figure differ in {', '.join(differing)}: choose runs that differ only in {free}"
        )


def _said(value: object) -> str:
    if value is None:
        return "not recorded"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def check_replicates(runs: pl.DataFrame, *by: str) -> None:
    """Refuse two runs of one kind with the same seed."""
    seeded = runs.drop_nulls("seed")
    for (*kind, seed), twins in seeded.group_by(*by, "seed", maintain_order=True):
        if twins.height > 1:
            raise SondeError(
                f"{twins.height} runs of {', '.join(map(str, kind))} have seed {seed} "
                f"({', '.join(twins['run'])}): choose one, a repeated seed is not another sample"
            )
