"""What depends on the size: exponents of watched runs at several sizes, and which groups deviate from what is promised.

An exponent is the slope of log₂ RMS against log₂ size, fitted for each seed; its interval is over seeds.  The largest
size is left out of the fit and compared with the extrapolation.

What µP asks (Yang and Hu 2021, arXiv:2011.14522; Tensor Programs V, arXiv:2203.03466), and depth-µP (Yang et al. 2023,
arXiv:2310.02244): at initialisation no signal depends on the size, but the output shrinks like width^-½ or faster; the
training of each parameter changes the output by as much at every size.  All of this is said of functions, so it holds
however a parametrisation is split among initialisation, rate and multiplier.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from sonde.analysis.scaling_result import (
    MODEL,
    STEPS,
    TOLERANCE,
    UNDECIDED,
    Exponent,
    Measured,
    Scaling,
    Transfer,
    Verdict,
)
from sonde.core.errors import SondeError
from sonde.core.formatting import listed, signed
from sonde.core.seed_statistics import summarise, t_interval

_MOST_DRIFT, _FEWEST_GROUPS = 0.4, 4
_SAME = 1e-9  # two exponents of one tensor differ by less


class Modules:
    """Which modules scale alike, in order of execution, from the facts of the smallest and the largest model."""

    def __init__(self, runs: Sequence[Measured], sizes: Sequence[int]) -> None:
        small, large = (next(run for run in runs if run.about["size"] == size) for size in (sizes[0], sizes[-1]))
        known, others = ({m["name"]: m for m in run.facts["modules"]} for run in (small, large))
        self.is_width = [*known] == [*others]
        self._large = others
        self._alone: dict[str, str] = {}  # label → the one module that it stands for
        labels = [(self.group(name, module), name) for name, module in known.items()]
        if self.is_width:
            many = Counter(label for label, _ in labels)
            self._alone = {label: name for label, name in labels if many[label] == 1}
        self.order = list(dict.fromkeys(self.group(name, module) for name, module in known.items() if module["calls"]))
        owners = {p["name"].rpartition(".")[0] or MODEL for p in small.facts["parameters"]}
        self.owners = list(dict.fromkeys(self.group(name, known[name]) for name in known if name in owners))
        inside = [re.sub(r"\d+.*", "*", name) for name in others if name not in known]
        self.repeated = inside[0] if inside else MODEL  # the part that a deeper model repeats
        self.grows = {self.group(name, module): self._growth(name, module)[1:] for name, module in known.items()}

    def group(self, name: str, module: Mapping[str, Any]) -> str:
        """The pattern of a module's name, with its type where that is a number, and which sides of it grow."""
        base, number, call = name.partition("#")
        pattern = re.sub(r"\d+", "*", base) if base != MODEL else MODEL
        if pattern == base:
            return name
        sides = self._growth(base, module)[0]
        label = f"{pattern}{number}{call} ({module.get('type', '')}{sides})"
        return self._alone.get(label, label)

    def _growth(self, name: str, module: Mapping[str, Any]) -> tuple[str, bool, bool]:
        other = self._large.get(name, module)
        into, out = (list(module.get(k) or [])[1:] != list(other.get(k) or [])[1:] for k in ("input_shape", "shape"))
        if not self.is_width:
            shapes = ["×".join(map(str, list(module.get(k) or [])[-1:])) for k in ("input_shape", "shape")]
            return f" {'→'.join(shapes)}", False, False
        return ("" if into == out else ", input" if out else ", output"), into, out


def verdicts(result: Scaling, modules: Modules, runs: Sequence[Measured]) -> list[Verdict]:
    """At initialisation, module by module; then the effect of each group of parameters."""
    start = _at_start(result, modules)
    trained = _by_training(result, runs) if result.promise == "mup" else []
    first = _causes(result, modules, start) or _first_steps(trained)
    named = [(one, one.group in first and one.is_wrong) for one in (*start, *trained)]
    return [Verdict(**{**vars(one), "is_cause": is_cause}) for one, is_cause in named]


def _at_start(result: Scaling, modules: Modules) -> list[Verdict]:
    """Modules with parameters, attention logits and the output, at step 0.

    A module counts as stable if what the next module takes in is: a multiplier may follow it.
    """
    found, logits = [], [one.group for one in result.exponents if one.group.endswith("(logits)") and not one.step]
    for group in dict.fromkeys([*modules.owners, *logits]):
        own = result.exponent(group, "activation", 0)
        if (
            own is None
            or group == MODEL
            or (modules.grows.get(group, (True, True))[1] is False and result.is_width and group not in logits)
        ):
            continue
        after = _next_input(result, modules, group)
        way = own.verdict()
        if after is not None and after.verdict() == "stable":
            way = "stable"
        if group in logits and own.value < 0 and result.promise == "mup":
            way = "stable"  # 1/d makes them shrink like d^-½, as it should
        found.append(_of_start(result, group, way, own, 0.0))
    return [*found, *_output(result, modules)]


def _next_input(result: Scaling, modules: Modules, group: str) -> Exponent | None:
    """The input of the module that reads this one's output, or the model's output.

    It is the next module that runs, unless that reads the same input as this one, as the two halves of a gate do.
    """
    later = modules.order[modules.order.index(group) + 1 :] if group in modules.order else []
    own = result.exponent(group, "input", 0)
    for name in later:
        known = result.exponent(name, "input", 0)
        if known is not None and (own is None or abs(known.value - own.value) > _SAME or known.low != own.low):
            return known
    return None


def _output(result: Scaling, modules: Modules) -> list[Verdict]:
    own = result.exponent(MODEL, "activation", 0)
    if own is None:
        return []
    is_logits = result.is_width and not modules.grows.get(MODEL, (True, True))[1]
    asked = -0.5 if is_logits and result.promise == "mup" else 0.0
    way = own.verdict(asked)
    if way == "vanishes" and asked:
        way = "stable"  # smaller still, as of a readout that starts at zero
    last = next((g for g in reversed(modules.owners) if g != MODEL), MODEL)
    is_readout = is_logits and not modules.grows.get(last, (True, True))[1]
    name = last if is_readout else "(output)" if result.is_width else f"(output) after {modules.repeated}"
    return [_of_start(result, name, way, own, asked)]


def _of_start(result: Scaling, group: str, way: str, own: Exponent, asked: float) -> Verdict:
    remedy = ""
    if way in ("grows", "vanishes"):
        power = signed(_half(asked - own.value), 2)
        if group.endswith("(logits)"):
            ask = "d, the size of a head (µP)" if result.promise == "mup" else "√d"
            remedy = f"Divide the logits by {ask}."
        elif result.is_width:
            rule = "µP: deviation ∝ 1/width, or a multiplier" if asked else "deviation ∝ 1/√fan-in"
            remedy = f"Multiply its initial weights by {result.axis}^{power} ({rule})."
        else:
            remedy = f"Multiply residual branches by {result.axis}^-0.5 (depth-µP)."
    return Verdict(group=group, verdict=way, about="signal at initialisation", exponent=own, asked=asked, remedy=remedy)


def _causes(result: Scaling, modules: Modules, start: Sequence[Verdict]) -> set[str]:
    """Of the deviations at initialisation, those of modules that make them: the output deviates from the input."""
    wrong = [one for one in start if one.is_wrong]
    made = []
    for one in wrong:
        into = result.exponent(one.group, "input", 0)
        change = (one.exponent.value if one.exponent else 0.0) - one.asked - (into.value if into else 0.0)
        if abs(change) > TOLERANCE:
            made.append(one.group)
    first = [group for group in made if group.endswith("(logits)")] or made[:1] or [one.group for one in wrong[:1]]
    return set(first)


def _by_training(result: Scaling, runs: Sequence[Measured]) -> list[Verdict]:
    """What ten steps of each group of parameters change in the output, and what becomes of attention logits."""
    roles = {label: group["role"] for label, group in runs[0].about["groups"].items()}
    in_logits = {label: group["in_logits"] for label, group in runs[0].about["groups"].items()}
    effects = pl.concat([run.rows.filter(pl.col("metric") == "effect") for run in runs])
    still = {
        str(name): bool((part["value"].fill_nan(1.0) == 0).all())
        for (name,), part in effects.partition_by("module", as_dict=True).items()
    }
    found, drift = (
        [],
        common_drift(
            [one.value for label in roles if (one := _first_known(result, label, "effect")) and not in_logits[label]]
        ),
    )
    for label, role in roles.items():
        if still.get(label):
            found.append(Verdict(group=label, verdict="frozen", about="no step moves it", remedy="Give it a rate."))
            continue
        known = _first_known(result, label, "effect")
        if known is not None and not in_logits[label]:
            ways = known.verdict(), known.verdict(drift)
            way = "stable" if "stable" in ways else ways[0] if ways[0] == ways[1] else UNDECIDED
            if role == "fixed" and way == "vanishes" and known.value > -0.5 - TOLERANCE:
                way = "stable"  # the readout is random at the first step, and adds n parts with random signs
            remedy = _rate_remedy(result, role, known.value - drift) if way != "stable" else ""
            about = f"the effect of training (step {known.step})"
            found.append(Verdict(group=label, verdict=way, about=about, exponent=known, remedy=remedy))
    for group in dict.fromkeys(one.group for one in result.exponents if one.group.endswith("(logits)")):
        known = _first_known(result, group, "change")
        if known is not None:
            way = "stable" if known.verdict() == "vanishes" else known.verdict()
            remedy = "Divide attention logits by d, the size of a head, not by √d (µP)." if way == "grows" else ""
            about = f"the change by training (step {known.step})"
            found.append(Verdict(group=group, verdict=way, about=about, exponent=known, remedy=remedy))
    return found


def common_drift(exponents: Sequence[float]) -> float:
    """What the effects of all groups share: the batch's error depends a little on the size, and scales all of them.

    Their median; 0 where it is too large for a drift, or of too few groups.
    """
    if len(exponents) < _FEWEST_GROUPS:
        return 0.0
    middle = float(np.median(exponents))
    return middle if abs(middle) <= _MOST_DRIFT else 0.0


def _first_known(result: Scaling, group: str, quantity: str) -> Exponent | None:
    known = (result.exponent(group, quantity, step) for step in STEPS)
    return next((one for one in known if one is not None and one.seeds > 1), None)


def _first_steps(trained: Sequence[Verdict]) -> set[str]:
    """The causes among deviations by training: attention logits if they grow, else those of the earliest step."""
    wrong = [one for one in trained if one.is_wrong]
    logits = {one.group for one in wrong if one.group.endswith("(logits)")}
    steps = [one.exponent.step for one in wrong if one.exponent is not None]
    first = {one.group for one in wrong if one.exponent is None or one.exponent.step == min(steps)}
    return logits or first


def _rate_remedy(result: Scaling, role: str, value: float) -> str:
    """The change of the rate that undoes the exponent, and what is known of its kind."""
    is_sgd = result.optimiser.upper().startswith("SGD")
    asked = {"input": (0, 1), "vector": (0, 1), "hidden": (-1, 0), "output": (-1, -1)}.get(role)
    power = signed(-_half(value), 2)
    known = ""
    if result.is_width and asked is not None:
        rate = {0: "a constant rate", 1: "a rate ∝ width", -1: "a rate ∝ 1/width"}[asked[is_sgd]]
        known = f" (µP under {'SGD' if is_sgd else 'Adam'}: {rate} for {role} parameters, if they have no multiplier)"
    elif not result.is_width:
        known = (
            f" (depth-µP under {'SGD: a constant rate' if is_sgd else 'Adam: a rate ∝ depth^-½'} in residual blocks)"
        )
    return f"Multiply its rate by {result.axis}^{power}{known}."


def _half(value: float) -> float:
    """To halves."""
    return round(2 * value) / 2


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
