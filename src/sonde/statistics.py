"""The one estimator of a spread: mean and sample standard deviation over seeds, with n."""

import polars as pl


def over_seeds(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Mean, sample standard deviation (ddof 1) and n over seeds, for every combination of `by`.

    One row per seed and combination is expected.  Undefined values do not count: n says how many did.
    `std` is null for n < 2, `mean` and `least` (the smallest value) are null for n = 0.
    """
    value = pl.col("value").filter(pl.col("defined") & pl.col("value").is_finite())
    return (
        rows.group_by(*by)
        .agg(mean=value.mean(), std=value.std(ddof=1), n=value.len().cast(pl.Int64), least=value.min())
        .sort(*by)
    )
