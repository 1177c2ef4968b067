import itertools
import math

import pytest

from sonde.metrics.rows import SCHEMA, Reading, rows_of, undefined


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_undefined_with_a_reason(value: float) -> None:
    reading = Reading(metric="loss", value=value, samples=4)
    assert not reading.defined
    assert reading.reason
    assert math.isnan(reading.value)


def test_undefined_is_nan_never_zero() -> None:
    rows = rows_of("r", 1, [undefined("rho", "no variance", layer=2)], steps=itertools.repeat(3))
    assert rows.schema == SCHEMA
    row = rows.row(0, named=True)
    assert math.isnan(row["value"])
    assert (row["defined"], row["reason"], row["layer"], row["step"]) == (False, "no variance", 2, 3)
