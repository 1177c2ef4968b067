"""Signal and gradient on their way: vanishing, exploding, dead, saturated, not finite, of one direction."""

import math
import statistics

import polars as pl

from sonde.analysis.diagnosis.finding import Finding, found
from sonde.analysis.diagnosis.signs import EARLY, WEIGHTED, Signs
from sonde.core.formatting import GRADIENT_VANISHED, number
from sonde.metrics import NONFINITE

EXPLODED = 1e3
DEEP = 4  # layers over which a gradient may fade; over fewer it must be all but zero
SATURATED = 0.5
DEAD, DIED = 0.9, 0.8  # share of units at the end; the same where they were alive at the start


def nan_origin(s: Signs) -> Finding | None:
    """The first thing that is not finite."""
    if s.audited is not None and s.audited.diverged is not None:
        said = f"The loss or a weight was not finite after epoch {s.audited.diverged}, and training stopped."
        return found("nan_origin", "certain", said, epoch=s.audited.diverged)
    rows = s.rows.filter(pl.col("metric") == "nonfinite")
    if rows.is_empty():
        return None
    module, value, reason, step = (rows[column][0] for column in ("module", "value", "reason", "step"))
    if reason is not None:
        said = f"Not finite: {reason}."
    elif module is None:
        said = f"The loss is not finite in step {step}, though every output is."
    else:
        said = f"The {NONFINITE.get(value, 'output')} of {module} is the first that is not finite, in step {step}."
    broken = s.trial("traced_start", "first_broken")
    more = []
    if broken is not None:
        more = [
            f"At the start already: {broken['operation']} in {broken['module']}, of numbers as low as "
            f"{number(broken['smallest_input'] or 0.0)}."
        ]
    where = [broken["module"]] if broken is not None else [module] if module is not None else []
    return found("nan_origin", "certain", said, *more, modules=where, step=step)


def _flow(s: Signs, step: int) -> tuple[str, float, str, float] | None:
    """The first and the last layer whose gradient is known in a step, with its norm there."""
    norms = [(name, root * value) for name, root in s.depth if (value := s.at("grad_rms", name, step)) is not None]
    return (*norms[0], *norms[-1]) if len(norms) > 1 else None


def vanishing_gradient(s: Signs) -> Finding | None:
    """A gradient that is lost on its way back, or over time, in a run that failed."""
    if not s.failed:
        return None
    flows = {step: flow for step in s.watched if step < EARLY and (flow := _flow(s, step)) is not None}
    if flows:
        ratios = {step: first / last if last > 0 else 0.0 for step, (_, first, _, last) in flows.items()}
        ratio = statistics.median(ratios.values())
        if ratio < (GRADIENT_VANISHED if len(s.depth) >= DEEP else GRADIENT_VANISHED**2):
            begun, (first, at_first, last, at_last) = next(iter(flows.items()))
            said = (
                f"{s.at_first} the gradient is {number(ratio)} times as large at {first} as at {last} "
                f"({number(at_first)} and {number(at_last)} in {s.when(begun)})."
            )
            step = next(step for step, known in ratios.items() if known < GRADIENT_VANISHED)
            return found(
                "vanishing_gradient",
                "certain" if ratio < GRADIENT_VANISHED**2 else "likely",
                said,
                modules=[first],
                step=step,
            )
    times = s.trial("over_time") or {}
    if times.get("last") and times["first"] < GRADIENT_VANISHED**2 * times["last"]:
        shrunk = number(times["first"] / times["last"])
        said = f"Over {times['length']} places of a sequence the gradient shrinks to {shrunk}."
        return found(
            "vanishing_gradient",
            "certain" if times["first"] < GRADIENT_VANISHED**3 * times["last"] else "likely",
            said,
        )
    late = [(step, flow) for step in s.watched[-3:] if (flow := _flow(s, step)) is not None]
    if len(late) == 3 and all(flow[1] <= GRADIENT_VANISHED**2 * flow[3] for _, flow in late):
        name = late[-1][1][0]
        ends = s.series("grad_rms").get(name, {})
        step = min((step for step in ends if ends[step] == late[-1][1][1]), default=late[0][0])
        said = (
            f"In the last three looks the gradient at {name} is {number(late[-1][1][1])}, at {late[-1][1][2]} "
            f"{number(late[-1][1][3])}."
        )
        return found("vanishing_gradient", "certain", said, modules=[name], step=step)
    return None


def exploding_gradient(s: Signs) -> Finding | None:
    """Signal or gradient that grows over depth, time or steps, in a run that did not learn."""
    if s.learned and s.trials is not None:
        return None
    inputs = next((one["rms"] for one in s.facts.get("inputs", []) if one.get("rms")), None)
    outputs = [(name, value) for name, _ in s.depth if (value := s.at("out_rms", name)) is not None]
    if outputs:
        base = max(min(inputs, outputs[0][1]) if inputs else outputs[0][1], 1e-6)
        name, top = max(outputs, key=lambda one: one[1])
        beyond = s.trials is None and top > 10 * EXPLODED * base  # whatever the loss has come down from
        if (top > EXPLODED * base and top > EXPLODED / 10 and s.failed) or (beyond and top > EXPLODED):
            said = f"The signal grows from {number(base)} to {number(top)} at {name} in {s.when(0)}."
            return found("exploding_gradient", "likely", said, modules=[name])
    if not s.failed:
        return None
    times = s.trial("over_time") or {}
    if times.get("last") and times["first"] > EXPLODED * times["last"]:
        said = (
            f"Over {times['length']} places of a sequence the gradient grows {number(times['first'] / times['last'])} "
            "times."
        )
        return found("exploding_gradient", "certain", said)
    flows = [flow for step in s.watched if step < EARLY and (flow := _flow(s, step)) is not None]
    ratios = [first / last for _, first, _, last in flows if last > 0]
    if ratios and statistics.median(ratios) > EXPLODED:
        said = (
            f"{s.at_first} the gradient is {number(statistics.median(ratios))} times as large "
            f"at {flows[0][0]} as at {flows[0][2]}."
        )
        return found("exploding_gradient", "likely", said, modules=[flows[0][0]])
    sizes: dict[int, float] = {}
    for steps in s.series("weight_grad_norm").values():
        for step, value in steps.items():
            sizes[step] = math.hypot(sizes.get(step, 0.0), value)
    if sizes and s.failed:
        first_step = min(sizes)
        peak = max(sizes, key=lambda step: sizes[step])
        stays = s.broke is not None or sizes[max(sizes)] > EXPLODED / 10 * sizes[first_step]
        if stays and sizes[first_step] > 0 and sizes[peak] > EXPLODED * sizes[first_step]:
            said = (
                f"The gradient of all weights grows from {number(sizes[first_step])} to {number(sizes[peak])} "
                f"in step {peak}."
            )
            grown = next(step for step in sorted(sizes) if sizes[step] > EXPLODED * sizes[first_step])
            return found("exploding_gradient", "likely", said, step=grown)
    return None


def _hidden_activations(s: Signs) -> list[str]:
    """Activation modules that are followed by a module with weights."""
    last = max((place for place, m in enumerate(s.leaves) if m.get("kind") in WEIGHTED), default=-1)
    return [m["name"] for m in s.leaves[:last] if m.get("kind") == "activation"]


def saturated_units(s: Signs) -> Finding | None:
    """Hidden sigmoid or tanh units at their bounds in the first steps of a run that failed."""
    if not s.failed:
        return None
    hidden, shares = set(_hidden_activations(s)), {}
    for name, steps in s.series("saturated_share").items():
        early = [value for step, value in steps.items() if step < EARLY]
        if name.split("#")[0] in hidden and early:
            shares[name] = statistics.median(early)
    if not s.series("saturated_share"):
        shares |= {
            name: value for name, value in (s.trial("traced_start", "saturated") or {}).items() if "loss" not in name
        }
    gates = s.trial("gates")
    if gates and gates["saturated"] >= SATURATED:
        shares[gates["module"]] = gates["saturated"]
    worst = {name: share for name, share in shares.items() if share >= SATURATED}
    if not worst:
        return None
    top = max(worst.values())
    said = (
        f"Up to {number(100 * top)} % of a layer's outputs lie at a bound in the first steps, of {len(worst)} layers."
    )
    return found("saturated_units", "certain" if top >= 0.9 else "likely", said, modules=worst)


def dead_units(s: Signs) -> Finding | None:
    """Hidden units that are zero for the whole batch at the end of a run that failed."""
    if not s.failed:
        return None
    hidden, gone, since = set(_hidden_activations(s)), {}, []
    for name, steps in s.series("dead_share").items():
        if name.split("#")[0] not in hidden or len(steps) < 3:
            continue
        ends = [steps[step] for step in sorted(steps)[-3:]]
        start = steps[min(steps)]
        if min(ends) >= DEAD or (min(ends) >= DIED and start < DIED / 4):
            gone[name] = min(ends)
            since.append(min(step for step, value in steps.items() if value >= min(ends)))
    if not s.series("dead_share"):
        now, then = s.trial("traced_now", "dead") or {}, s.trial("traced_start", "dead") or {}
        gone = {k: v for k, v in now.items() if v >= DEAD or (v >= DIED and then.get(k, 1.0) < DIED / 4)}
    if not gone:
        return None
    said = (
        f"{number(100 * max(gone.values()))} % of a layer's units are off for the whole batch, of {len(gone)} layers."
    )
    return found(
        "dead_units",
        "certain" if max(gone.values()) >= DEAD else "likely",
        said,
        modules=gone,
        step=min(since, default=0),
    )


def rank_collapse(s: Signs) -> Finding | None:
    """Outputs of one direction for all samples; a note."""
    if not s.failed:
        return None
    flat = {}
    for name, _ in s.depth[:-1]:
        ranks = s.series("effective_rank").get(name, {})
        if len(ranks) > 1 and ranks[max(ranks)] < 1.5 <= ranks[min(ranks)] / 2:
            flat[name] = ranks[max(ranks)]
    if not flat:
        return None
    said = (
        f"The effective rank of outputs over samples has fallen to {number(min(flat.values()))}, of {len(flat)} layers."
    )
    return found("rank_collapse", "note", said, modules=flat)
