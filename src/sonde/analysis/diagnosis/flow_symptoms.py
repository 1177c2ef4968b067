"""Symptoms in signal, gradient and loss: not finite, saturated, dead, vanishing, exploding, of one direction, noisy."""

import math
import statistics

import polars as pl

from sonde.analysis.diagnosis.finding import Diagnosis, Finding, found
from sonde.analysis.diagnosis.run_evidence import RunEvidence
from sonde.analysis.diagnosis.run_record import EARLY, WEIGHTED_KINDS, describe_nonfinite
from sonde.core.formatting import GRADIENT_VANISHED, number

EXPLODED = 1e3
INPUT_GREW = 100.0  # the input of normalisation layers, over depth or steps
_DEEP = 4  # layers; in a network with fewer, the threshold is squared
SATURATED_SHARE = 0.5
COLLAPSED_RANK = 1.5
NOISY = 0.9  # 1 − cosine of the gradients of two halves of a batch
DEAD_SHARE, DIED_SHARE = 0.9, 0.8  # share of units at the end; the same where they were alive at the start


def _diverged(s: RunEvidence) -> Finding | None:
    """A trained run that ended because a value was not finite."""
    if s.audited is None or s.audited.diverged is None:
        return None
    said = f"The loss or a weight was not finite after epoch {s.audited.diverged}, and training stopped."
    return found("certain", said, epoch=s.audited.diverged)


def _broken_inputs(s: RunEvidence) -> Finding | None:
    """Inputs that hold values that are not finite, in a run that breaks in its first step."""
    if s.broke != 0 or not s.has_broken_inputs:
        return None
    advice = (
        "Look at what computes the inputs: fill in missing values, and keep arguments of log and division positive."
    )
    return found("certain", f"{number(100 * s.broken_share)} % of the inputs are NaN or infinite.", advice=advice)


def _first_nonfinite(s: RunEvidence) -> Finding | None:
    """The first value of a watched run that is not finite."""
    rows = s.rows.filter(pl.col("metric") == "nonfinite")
    if rows.is_empty():
        return None
    module, value, reason, step = (rows[column][0] for column in ("module", "value", "reason", "step"))
    said = f"In step {step} {describe_nonfinite(module, value, reason)}."
    broken = s.trial("traced_start", "first_broken")
    if broken is None:
        return found("certain", said, modules=[] if module is None else [module], step=step)
    more = (
        f"At the start already: {broken['operation']} in {broken['module']}, of numbers as low as "
        f"{number(broken['smallest_input'] or 0.0)}."
    )
    return found("certain", said, more, modules=[broken["module"]], step=step)


def _flow(s: RunEvidence, step: int) -> tuple[str, float, str, float] | None:
    """The first and the last layer whose gradient is known in a step, each with the norm of its gradient."""
    norms = [(name, root * value) for name, root in s.depth if (value := s.at("grad_rms", name, step)) is not None]
    return (*norms[0], *norms[-1]) if len(norms) > 1 else None


def _flows(s: RunEvidence) -> dict[int, tuple[str, float, str, float]]:
    """The same for each of the first steps."""
    return {step: flow for step in s.watched if step < EARLY and (flow := _flow(s, step)) is not None}


def _vanishes_over_depth(s: RunEvidence) -> Finding | None:
    flows = _flows(s)
    ratios = {step: first / last if last > 0 else 0.0 for step, (_, first, _, last) in flows.items()}
    limit = GRADIENT_VANISHED if len(s.depth) >= _DEEP else GRADIENT_VANISHED**2
    if not ratios or (ratio := statistics.median(ratios.values())) >= limit:
        return None
    begun, (first, at_first, last, at_last) = next(iter(flows.items()))
    said = (
        f"{s.at_first} the gradient is {number(ratio)} times as large at {first} as at {last} "
        f"({number(at_first)} and {number(at_last)} in {s.when(begun)})."
    )
    step = next(step for step, known in ratios.items() if known < GRADIENT_VANISHED)
    return found("certain" if ratio < GRADIENT_VANISHED**2 else "likely", said, modules=[first], step=step)


def _vanishes_over_time(s: RunEvidence) -> Finding | None:
    times = s.trial("over_time") or {}
    if not times.get("last") or times["first"] >= GRADIENT_VANISHED**2 * times["last"]:
        return None
    ratio = times["first"] / times["last"]
    said = f"Over {times['length']} places of a sequence the gradient shrinks to {number(ratio)}."
    return found("certain" if ratio < GRADIENT_VANISHED**3 else "likely", said)


def _vanished_at_the_end(s: RunEvidence) -> Finding | None:
    late = [(step, flow) for step in s.watched[-3:] if (flow := _flow(s, step)) is not None]
    if len(late) < 3 or any(flow[1] >= GRADIENT_VANISHED**2 * flow[3] for _, flow in late):  # nor if both are zero
        return None
    name, least, above, at_above = late[-1][1]
    ends = s.series("grad_rms").get(name, {})
    step = min((step for step in ends if ends[step] == least), default=late[0][0])
    said = f"In the last three measurements the gradient at {name} is {number(least)}, at {above} {number(at_above)}."
    return found("certain", said, modules=[name], step=step)


def _signal_grows_over_depth(s: RunEvidence) -> Finding | None:
    inputs = [one["rms"] for one in s.facts.get("inputs", []) if one.get("rms")][:1]
    outputs = [(name, value) for name, _ in s.depth if (value := s.at("out_rms", name)) is not None]
    if not outputs:
        return None
    base = max(min([*inputs, outputs[0][1]]), 1e-6)
    name, top = max(outputs, key=lambda one: one[1])
    beyond = s.trials is None and top > 10 * EXPLODED * base and top > EXPLODED  # however far the loss fell
    if not (beyond or (s.failed and top > EXPLODED * base and top > EXPLODED / 10)):
        return None
    return found(
        "likely", f"The signal grows from {number(base)} to {number(top)} at {name} in {s.when(0)}.", modules=[name]
    )


def _explodes_over_time(s: RunEvidence) -> Finding | None:
    times = s.trial("over_time") or {}
    if not s.failed or not times.get("last") or times["first"] <= EXPLODED * times["last"]:
        return None
    grown = number(times["first"] / times["last"])
    return found("certain", f"Over {times['length']} places of a sequence the gradient grows {grown} times.")


def _explodes_over_depth(s: RunEvidence) -> Finding | None:
    flows = list(_flows(s).values())
    ratios = [first / last for _, first, _, last in flows if last > 0]
    if not s.failed or not ratios or (ratio := statistics.median(ratios)) <= EXPLODED:
        return None
    first, _, last, _ = flows[0]
    said = f"{s.at_first} the gradient is {number(ratio)} times as large at {first} as at {last}."
    return found("likely", said, modules=[first])


def _explodes_over_steps(s: RunEvidence) -> Finding | None:
    sizes = gradient_norms(s)
    if not s.failed or not sizes:
        return None
    begin, peak = sizes[min(sizes)], max(sizes, key=lambda step: sizes[step])
    stays = s.broke is not None or sizes[max(sizes)] > EXPLODED / 10 * begin
    if not stays or not 0 < EXPLODED * begin < sizes[peak]:
        return None
    said = f"The gradient of all weights grows from {number(begin)} to {number(sizes[peak])} in step {peak}."
    return found("likely", said, step=next(step for step in sorted(sizes) if sizes[step] > EXPLODED * begin))


def gradient_norms(s: RunEvidence) -> dict[int, float]:
    """step → the norm of the gradient of all parameters, as the optimiser gets it."""
    sizes: dict[int, float] = {}
    for steps in s.series("weight_grad_norm").values():
        for step, value in steps.items():
            sizes[step] = math.hypot(sizes.get(step, 0.0), value)
    return sizes


def norm_inputs(s: RunEvidence) -> list[list[tuple[str, float]]]:
    """Normalisation layers of one shape, in order, each with the RMS of its input in step 0; three layers or more."""
    by_shape: dict[tuple[int, ...], list[tuple[str, float]]] = {}
    for module in s.leaves:
        start = s.at("norm_in_rms", module["name"])
        if module.get("kind") == "norm" and start is not None and start > 0:
            by_shape.setdefault(tuple(module["input_shape"]), []).append((module["name"], start))
    return [sizes for sizes in by_shape.values() if len(sizes) > 2]


def grows_behind_norms(s: RunEvidence) -> bool:
    """Whether what enters normalisation layers grows over depth in step 0."""
    return any(max(size for _, size in sizes[1:]) >= INPUT_GREW * sizes[0][1] for sizes in norm_inputs(s))


def _hidden_activations(s: RunEvidence) -> list[str]:
    """Activation modules that are followed by a module with weights."""
    last = max((place for place, m in enumerate(s.leaves) if m.get("kind") in WEIGHTED_KINDS), default=-1)
    return [m["name"] for m in s.leaves[:last] if m.get("kind") == "activation"]


def _saturated(s: RunEvidence) -> Finding | None:
    """Hidden sigmoid or tanh units, or gates, at their bounds in the first steps."""
    shares = _saturated_shares(s)
    gates = s.trial("gates")
    if gates:
        shares[gates["module"]] = gates["saturated"]
    worst = {name: share for name, share in shares.items() if share >= SATURATED_SHARE}
    if not worst:
        return None
    top = max(worst.values())
    said = (
        f"Up to {number(100 * top)} % of a layer's outputs lie at a bound in the first steps, of {len(worst)} layers."
    )
    return found("certain" if top >= 0.9 else "likely", said, modules=worst)


def _saturated_shares(s: RunEvidence) -> dict[str, float]:
    """By module; where activations are no modules, by what the experiments saw."""
    rows, hidden = s.series("saturated_share"), set(_hidden_activations(s))
    if not rows:
        known = s.trial("traced_start", "saturated") or {}
        return {name: value for name, value in known.items() if "loss" not in name}
    early = {name: [value for step, value in steps.items() if step < EARLY] for name, steps in rows.items()}
    return {name: statistics.median(known) for name, known in early.items() if known and name.split("#")[0] in hidden}


def _is_dead(start: float, end: float) -> bool:
    return end >= DEAD_SHARE or (end >= DIED_SHARE and start < DIED_SHARE / 4)


def _dead(s: RunEvidence) -> Finding | None:
    """Hidden units that are zero for the whole batch at the end."""
    gone, since = _dead_shares(s)
    if not gone:
        return None
    top = max(gone.values())
    said = f"{number(100 * top)} % of a layer's units are off for the whole batch, of {len(gone)} layers."
    return found("certain" if top >= DEAD_SHARE else "likely", said, modules=gone, step=since)


def _dead_in_copy(s: RunEvidence) -> dict[str, float]:
    now, then = s.trial("traced_now", "dead") or {}, s.trial("traced_start", "dead") or {}
    return {name: share for name, share in now.items() if _is_dead(then.get(name, 1.0), share)}


def _dead_shares(s: RunEvidence) -> tuple[dict[str, float], int]:
    """By module, and the first step; where activations are no modules, by what the experiments saw."""
    rows, hidden = s.series("dead_share"), set(_hidden_activations(s))
    if not rows:
        return _dead_in_copy(s), 0
    ends = {
        name: min(steps[step] for step in sorted(steps)[-3:])
        for name, steps in rows.items()
        if name.split("#")[0] in hidden and len(steps) >= 3
    }
    gone = {name: end for name, end in ends.items() if _is_dead(rows[name][min(rows[name])], end)}
    since = [min(step for step, value in rows[name].items() if value >= end) for name, end in gone.items()]
    return gone, min(since, default=0)


def _collapsed(s: RunEvidence) -> Finding | None:
    """Outputs that point in one direction for all samples; a note."""
    flat = {}
    for name, _ in s.depth[:-1]:
        ranks = s.series("effective_rank").get(name, {})
        if len(ranks) > 1 and ranks[max(ranks)] < COLLAPSED_RANK <= ranks[min(ranks)] / 2:
            flat[name] = ranks[max(ranks)]
    if not flat:
        return None
    said = (
        f"The effective rank of outputs over samples has fallen to {number(min(flat.values()))}, of {len(flat)} layers."
    )
    return found("note", said, modules=flat)


def _is_noisy(s: RunEvidence) -> Finding | None:
    """Gradients of two halves of a batch that disagree while the loss does not fall; a note."""
    noise = s.series("grad_noise").get("(model)", {})
    later = [value for step, value in noise.items() if step > 0]
    if len(later) < 2 or min(later) < NOISY or s.learned is not False or (s.fell or 0.0) > 0.1:
        return None
    said = f"Gradients of the two halves of a batch have a cosine of {number(1 - min(later))} at most."
    return found("note", said)


FLOW_SYMPTOMS = (
    Diagnosis(
        name="nan_origin",
        signs=(_diverged, _broken_inputs, _first_nonfinite),
        role="symptom",
        short="A certain operation is the first to give NaN or infinity.",
        measured=(
            "The first module whose output, else gradient, else the loss is not finite; with a batch, the operation."
        ),
        why="One value that is not a number spreads to every weight within a step.",
        remedy=(
            "Keep the operation's argument inside its domain: clamp before log and division, or use "
            "the fused loss on raw outputs."
        ),
        reference="Goldberg (1991), What every computer scientist should know about floating-point arithmetic",
    ),
    Diagnosis(
        name="saturated_units",
        signs=(_saturated,),
        role="symptom",
        asked=lambda s: s.failed,
        short="Sigmoid or tanh units on the flat part of their curve.",
        measured=(
            f"{100 * SATURATED_SHARE:g} % of a hidden layer's outputs, or of an LSTM's or GRU's gates, lie within "
            "0.01 of a bound in the first steps, and the run failed."
        ),
        why="Where the curve is flat its slope is zero, and no gradient passes.",
        remedy="Start with smaller weights or standardise what enters the layer; or use ReLU.",
        reference="Glorot & Bengio (2010), Understanding the difficulty of training deep feedforward neural networks",
    ),
    Diagnosis(
        name="dead_units",
        signs=(_dead,),
        role="symptom",
        asked=lambda s: s.failed,
        short="ReLU-like units that are off for every input and stay off.",
        measured=(
            f"At the end {100 * DEAD_SHARE:g} % of a hidden layer's units are zero for the whole batch "
            f"({100 * DIED_SHARE:g} % if they were alive at the start), and the run failed."
        ),
        why="A unit that is off for every input gets no gradient and cannot come back.",
        remedy="Lower the learning rate, or use LeakyReLU or GELU.",
        reference="Lu et al. (2019), Dying ReLU and initialization, arXiv:1903.06733",
    ),
    Diagnosis(
        name="vanishing_gradient",
        signs=(_vanishes_over_depth, _vanishes_over_time, _vanished_at_the_end),
        role="symptom",
        asked=lambda s: s.failed,
        short="Gradients shrink by orders of magnitude on their way back, or are zero from some layer on.",
        measured=(
            f"The norm of the gradient at the first weighted layer is below {GRADIENT_VANISHED:g} of that at the last "
            f"in the first {EARLY} steps, or exactly zero, and the run failed. For the first place of a sequence the "
            "limit is squared."
        ),
        why="Layers that get no gradient keep their random weights.",
        remedy="Use residual connections or normalisation, and weights that keep the size of the signal.",
        reference="Glorot & Bengio (2010), Understanding the difficulty of training deep feedforward neural networks",
        consequences=frozenset({"not_learning", "state_explosion"}),
    ),
    Diagnosis(
        name="exploding_gradient",
        of_degree=True,
        signs=(_signal_grows_over_depth, _explodes_over_time, _explodes_over_depth, _explodes_over_steps),
        role="symptom",
        asked=lambda s: not (s.learned and s.trials is not None) and not grows_behind_norms(s),
        short="Gradients or activations grow by orders of magnitude over depth, time or steps.",
        measured=(
            f"Outputs grow by more than {EXPLODED:g} over depth at the start, gradients by as much on their "
            "way back, or over the steps of a run that failed."
        ),
        why="One sample or layer decides each step, and the loss jumps or overflows.",
        remedy="Clip the norm of the gradient, and start with weights that keep the size of the signal.",
        reference=(
            "Pascanu, Mikolov & Bengio (2013), On the difficulty of training recurrent neural networks, arXiv:1211.5063"
        ),
        consequences=frozenset({"nan_origin", "not_learning", "state_explosion"}),
    ),
    Diagnosis(
        name="rank_collapse",
        signs=(_collapsed,),
        role="symptom",
        asked=lambda s: s.failed,
        short="A layer's outputs for different samples point in one direction.",
        measured=(
            f"The effective rank of a hidden layer's output over 64 samples falls below {COLLAPSED_RANK:g} after the "
            "start; a note."
        ),
        why="Layers above cannot tell samples apart.",
        remedy="Use residual connections and normalisation around the layer.",
        reference="Dong, Cordonnier & Loukas (2021), Attention is not all you need, arXiv:2103.03404",
    ),
    Diagnosis(
        name="gradient_noise",
        signs=(_is_noisy,),
        role="symptom",
        short="Gradients of the two halves of a batch point in unrelated directions.",
        measured=(
            f"1 − cosine of the two halves' gradients at the model's output above {NOISY:g} at each costly "
            "step, while the loss no longer falls; a note."
        ),
        why="A step follows the samples of the batch, not the data.",
        remedy="Use larger batches, accumulate gradients, or lower the rate.",
        reference="McCandlish et al. (2018), An empirical model of large-batch training, arXiv:1812.06162",
    ),
)
"""Causes before their symptoms."""


_BARRIERS = ("vanishing_gradient", "dead_units", "saturated_units")  # nothing reaches some layers


def flows(s: RunEvidence) -> bool:
    """Whether signal and gradient reach all layers, so that the cause may be elsewhere."""
    return not any(one.find(s) for one in FLOW_SYMPTOMS if one.name in _BARRIERS)
