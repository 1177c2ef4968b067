"""Numbers that a tutorial quotes, computed from the runs that its commands left in the folder `runs`."""

import math
import re
from collections.abc import Callable, Mapping
from statistics import mean, stdev

import polars as pl
from scipy.stats import t

import sonde

LAST = 12
"""The epochs that the tutorials of rules train."""


def _signed(value: float, digits: str = ".3g") -> str:
    return f"{value:+{digits}}".replace("-", "−")


def _by_rule(metric: str, **where: int) -> dict[str, dict[int, float]]:
    """Rule → seed → the mean value of a metric at the last epoch."""
    stored = sonde.load("runs")
    found: dict[str, dict[int, float]] = {}
    for run, config in stored.configs.items():
        rows = stored.rows.filter(pl.col("defined"), run=run, metric=metric, epoch=LAST, **where)
        if rows.height:
            found.setdefault(str(config["rule"]["name"]), {})[config["seed"]] = float(rows["value"].mean())  # type: ignore[arg-type]
    return found


def _interval(one: Mapping[int, float], other: Mapping[int, float], factor: float = 1) -> str:
    """Mean and 95 % t interval of differences by seed, as the tutorials write them."""
    differences = [factor * (one[seed] - other[seed]) for seed in sorted(one)]
    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / math.sqrt(len(differences))
    middle = mean(differences)
    return f"{_signed(middle)} [{_signed(middle - half)}, {_signed(middle + half)}]"


def _said(page: str, *words: str) -> None:
    for one in words:
        assert one in page, f"the page does not say {one}"


def check_rules(page: str) -> None:
    reached = _by_rule("test_acc")
    for rule, by_seed in reached.items():
        spread = stdev(by_seed.values())
        line = rf"{rule} +{len(by_seed)} +{re.escape(f'{mean(by_seed.values()):.4g}')} +{re.escape(f'{spread:.2g}')} "
        assert re.search(line, page), line
    for rule in ("frozen", "dfa"):
        middle, _, rest = _interval(reached[rule], reached["bp"]).partition(" ")
        _said(page, f"{rule} − bp is {middle}", rest)
    for rule in ("bp", "fa", "dfa"):
        _said(page, _interval(reached[rule], reached["frozen"], 100))
    cosines = [mean(_by_rule("credit_cosine", layer=layer)["fa"].values()) for layer in (1, 2)]
    _said(page, f"cosine of {mean(cosines):.2g} is a mean over layers")


def check_own_rule(page: str) -> None:
    reached = _by_rule("test_acc")
    own = next(name for name in reached if "Signs" in name)
    assert set(reached[own].values()) == {1.0} == set(reached["bp"].values())
    _said(page, "Signs reach 100 % with every seed", _interval(reached[own], reached["frozen"], 100))
    grown = [f"{_largest_growth(rule):.2g}" for rule in (own, "bp")]
    _said(page, f"grows the stream {grown[0]} times; under backpropagation it is {grown[1]} times")


def _largest_growth(rule: str) -> float:
    """Over the block that grows the stream most, a mean over seeds."""
    blocks = [by[rule] for layer in range(5) if rule in (by := _by_rule("growth", layer=layer))]
    return mean(max(block[seed] for block in blocks) for seed in blocks[0])


def check_does_not_train(page: str) -> None:
    watched = {run.label: run for run in sonde.load("runs").watched}
    losses = watched["fixed"].rows.filter(pl.col("defined"), metric="loss").sort("step")["value"]
    _said(page, f"The loss is {losses[-1]:.2f} after 120 steps", f"ln 2 ≈ {math.log(2):.2f}")
    first = watched["sigmoid"].rows.filter(pl.col("defined"), metric="grad_rms", step=0)
    at = dict(first.select("module", "value").iter_rows())
    _said(page, f"falls from {at['24']:.2g} at the last layer to {at['0']:.2g} at the first")
    _said(page, f"({4 * at['0']:.2g} and {2**0.5 * at['24']:.2g} in step 0)")  # norms of 16 and of 2 numbers


CHECKS: dict[str, Callable[[str], None]] = {
    "docs/tutorials/rules.md": check_rules,
    "docs/tutorials/own-rule.md": check_own_rule,
    "docs/tutorials/does-not-train.md": check_does_not_train,
}
