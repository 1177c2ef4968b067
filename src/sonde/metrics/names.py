"""Names in stored rows: `credit_cosine`, a family `nudge[0.01]`, a control `rho/null`, or both `nudge[0.01]/bp`."""

CONTROLS = {"bp": "ceiling (BP gradient)", "null": "null (chance)"}
"""Measured beside a metric in the same snapshot, as `metric/control`, with their labels."""

NULL_STD = "/null_std"
"""The standard deviation of the null over draws."""


def family_of(name: str) -> str:
    """The name up to the bracket: all `drift[…]` are one family."""
    return name.partition("[")[0]


def base_of(name: str) -> str:
    """The metric behind a name: without index and without control."""
    return family_of(name).partition("/")[0]


def index_of(name: str) -> str | None:
    """What the bracket holds; None where there is none."""
    _, bracket, rest = name.partition("[")
    return rest.rpartition("]")[0] if bracket else None
