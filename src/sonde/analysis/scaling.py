"""What depends on the size: exponents of watched runs at several sizes.

An exponent is the slope of log₂ RMS against log₂ size, fitted for each seed; its interval is over seeds.  The largest
size is left out of the fit and compared with the extrapolation.  `scaling_rules` has the verdicts.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from sonde.analysis.scaling_result import STEPS, Exponent, Measured, Scaling, Transfer
from sonde.analysis.scaling_rules import Modules, verdicts
from sonde.core.errors import SondeError
from sonde.core.formatting import listed
from sonde.core.seed_statistics import summarise, t_interval

_QUANTITIES = {"out_rms": "activation", "out_change": "change", "grad_rms": "gradient", "in_rms": "input"}
_SCHEMA: dict[str, Any] = {
    **dict.fromkeys(("group", "quantity"), pl.String),
    **dict.fromkeys(("step", "seed", "size"), pl.Int64),
    "value": pl.Float64,
}


def studies_of(runs: Iterable[Measured]) -> list[Scaling]:
    """One result for each study among these runs."""
    found: dict[str, list[Measured]] = {}
    for run in runs:
        about = run.about
        found.setdefault(
            repr([about[key] for key in ("factory", "code", "over", "rest", "optimizer", "lr")]), []
        ).append(run)
    known = []
    for members in found.values():
        if len({run.about["size"] for run in members if run.about["rate"] is None}) >= 3:
            known.append(study_of(members, members[0].about["promise"]))
    return known


def study_of(runs: Sequence[Measured], promise: str) -> Scaling:
    """Fit exponents and give every group a verdict."""
    whole = [run for run in runs if run.about["rate"] is None]
    sizes = sorted({run.about["size"] for run in whole})
    if len(sizes) < 3:
        raise SondeError("exponents need runs of three sizes or more")
    modules = Modules(whole, sizes)
    values = pl.concat([pl.DataFrame(schema=_SCHEMA), *(_values(run, modules) for run in whole)])
    exponents = _exponents(values, sizes)
    diverged = sorted({run.about["size"] for run in whole if run.rows.filter(pl.col("step") == STEPS[-1]).is_empty()})
    notes = [f"The loss is not finite within {STEPS[-1]} steps at {listed(diverged)}."] if diverged else []
    about = whole[0].about
    result = Scaling(
        axis=about["over"],
        factory=about["factory"],
        sizes=sizes,
        is_width=modules.is_width,
        optimiser=about["optimiser"],
        promise=promise,
        values=values,
        exponents=exponents,
        verdicts=(),
        transfer=_transfer([run for run in runs if run.about["rate"] is not None]),
        notes=notes,
    )
    return Scaling(**{**vars(result), "verdicts": verdicts(result, modules, whole)})


def _values(run: Measured, modules: Modules) -> pl.DataFrame:
    """Log₂ of every quantity at the steps of a study; the mean over the members of a group."""
    about, rows = run.about, run.rows.filter(pl.col("step").is_in(STEPS), pl.col("defined"), pl.col("value") > 0)
    facts = {m["name"]: m for m in run.facts["modules"]}
    groups = {name: modules.group(name, module) for name, module in facts.items()}
    sizes = {p["name"]: math.prod(p["shape"] or [1]) for p in run.facts["parameters"]}
    lines: list[tuple[str, str, int, float]] = []
    norms: dict[tuple[str, int], float] = {}
    of_parameter = {name: label for label, group in about["groups"].items() for name in group["members"]}
    for step, metric, name, value in rows.select("step", "metric", "module", "value").iter_rows():
        if metric in _QUANTITIES and name is not None:
            base, _, call = name.partition("#")
            if base.endswith("(logits)"):
                group = re.sub(r"\d+", "*", base)
            else:
                group = groups.get(base, base) + (f"#{call}" if call else "")
            lines.append((group, _QUANTITIES[metric], step, math.log2(value)))
        elif metric == "effect":
            lines.append((name, "effect", step, math.log2(value)))
        elif metric in ("weight_norm", "update_ratio") and name in of_parameter:
            other = norms.pop((name, step), None)
            if other is None:
                norms[name, step] = value
            else:
                size = math.log2(value) + math.log2(other) - math.log2(sizes[name]) / 2
                lines.append((of_parameter[name], "update", step, size))
    found = pl.DataFrame(lines, schema=["group", "quantity", "step", "value"], orient="row") if lines else None
    if found is None:
        return pl.DataFrame(schema=_SCHEMA)
    mean = found.group_by("group", "quantity", "step", maintain_order=True).agg(pl.col("value").mean())
    known = mean.with_columns(seed=pl.lit(about["seed"]), size=pl.lit(about["size"]))
    return known.select(pl.col(name).cast(kind) for name, kind in _SCHEMA.items())


# Exponents


def _exponents(values: pl.DataFrame, sizes: Sequence[int]) -> list[Exponent]:
    found = []
    for key, part in values.partition_by("group", "quantity", "step", as_dict=True, maintain_order=True).items():
        group, quantity, step = key
        known = exponent_of(part, sizes)
        if known is not None:
            found.append(Exponent(group=str(group), quantity=str(quantity), step=int(str(step)), **known))
    return found


def exponent_of(values: pl.DataFrame, sizes: Sequence[int]) -> dict[str, Any] | None:
    """Slope over sizes but the largest, one for each seed; None without a seed that has two sizes."""
    slopes, apart = [], []
    for part in values.partition_by("seed"):
        at = dict(part.select("size", "value").iter_rows())
        fitted = [size for size in sizes[:-1] if size in at]
        if len(fitted) < 2:
            continue
        slope, level = np.polyfit(np.log2(fitted), [at[size] for size in fitted], 1)
        slopes.append(float(slope))
        if sizes[-1] in at:
            apart.append(at[sizes[-1]] - float(level + slope * math.log2(sizes[-1])))
    if not slopes:
        return None
    interval, mean = t_interval(slopes), summarise(slopes).mean
    is_known = interval.reason is None or len(slopes) < 2
    low, high = (interval.low, interval.high) if is_known else (mean, mean)
    left_out = 2 ** summarise(apart).mean if apart else math.nan
    return {"value": mean, "low": low, "high": high, "seeds": len(slopes), "left_out": left_out}


# Rates


def _transfer(runs: Sequence[Measured]) -> Transfer | None:
    """How the rate with the lowest loss depends on the size; a parabola through the three lowest points of the grid."""
    if not runs:
        return None
    lines = []
    for run in runs:
        losses = run.rows.filter(pl.col("metric") == "loss").sort("step")
        is_whole = losses.height and bool(losses["defined"].all())
        last = losses["value"].tail(3).mean() if is_whole else None
        lines.append(
            (run.about["size"], run.about["seed"], run.about["rate"], last if isinstance(last, float) else math.inf)
        )
    losses = pl.DataFrame(lines, schema=["size", "seed", "rate", "loss"], orient="row").sort("size", "seed", "rate")
    best, at_edge = [], False
    for (size, seed), part in losses.partition_by("size", "seed", as_dict=True).items():
        place, is_edge = _lowest(np.log2(part["rate"].to_numpy()), part["loss"].to_numpy())
        at_edge |= is_edge
        if math.isfinite(place):
            best.append((size, seed, place))
    if not best:
        return Transfer(losses=losses, best={}, exponent=None, at_edge=at_edge)
    frame = pl.DataFrame(best, schema=["size", "seed", "value"], orient="row")
    sizes = frame["size"].unique().sort().to_list()
    known = exponent_of(frame, [*sizes, 2 * sizes[-1]])
    mean = {size: float(2 ** frame.filter(pl.col("size") == size)["value"].to_numpy().mean()) for size in sizes}
    exponent = None if known is None else Exponent(group="best rate", quantity="rate", step=0, **known)
    return Transfer(losses=losses, best=mean, exponent=exponent, at_edge=at_edge)


def _lowest(rates: Any, losses: Any) -> tuple[float, bool]:
    """Where the loss is lowest, in log₂ of the rate, and whether that is at an end of the grid."""
    if not np.isfinite(losses).any():
        return math.nan, False
    place = int(np.nanargmin(np.where(np.isfinite(losses), losses, np.inf)))
    if place in (0, len(rates) - 1):
        return float(rates[place]), True
    near = slice(place - 1, place + 2)
    if not np.isfinite(losses[near]).all():
        return float(rates[place]), False
    bend, slope, _ = np.polyfit(rates[near] - rates[place], np.log(losses[near]), 2)
    return float(rates[place] + (np.clip(-slope / (2 * bend), -1, 1) if bend > 0 else 0.0)), False
