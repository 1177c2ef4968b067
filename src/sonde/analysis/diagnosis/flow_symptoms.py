"""Symptoms in signal, gradient and loss: not finite, saturated, dead, vanishing, exploding, of one direction, noisy."""

import math
import statistics

import polars as pl

from sonde.analysis.diagnosis.finding import Diagnosis, Finding, found
from sonde.analysis.diagnosis.run_evidence import EARLY, WEIGHTED_KINDS, RunEvidence, describe_nonfinite
from sonde.core.formatting import GRADIENT_VANISHED, number

EXPLODED = 1e3
_DEEP = 4  # layers; in a network with fewer, the threshold is squared
SATURATED_SHARE = 0.5
COLLAPSED_RANK = 1.5
SPIKE, SPIKE_WINDOW = 10.0, 20  # times the median of this many steps before it
NOISY = 0.9  # 1 − cosine of the gradients of two halves of a batch
DEAD_SHARE, DIED_SHARE = 0.9, 0.8  # share of units at the end; the same where they were alive at the start


def nan_origin(s: RunEvidence) -> Finding | None:
    """The first value that is not finite."""
    if s.audited is not None and s.audited.diverged is not None:
        said = f"The loss or a weight was not finite after epoch {s.audited.diverged}, and training stopped."
        return found("nan_origin", "certain", said, epoch=s.audited.diverged)
    rows = s.rows.filter(pl.col("metric") == "nonfinite")
    if rows.is_empty():
        return None
    module, value, reason, step = (rows[column][0] for column in ("module", "value", "reason", "step"))
    said = f"In step {step} {describe_nonfinite(module, value, reason)}."
    broken = s.trial("traced_start", "first_broken")
    more = []
    if broken is not None:
        more = [
            f"At the start already: {broken['operation']} in {broken['module']}, of numbers as low as "
            f"{number(broken['smallest_input'] or 0.0)}."
        ]
    where = [broken["module"]] if broken is not None else [module] if module is not None else []
    return found("nan_origin", "certain", said, *more, modules=where, step=step)


def _flow(s: RunEvidence, step: int) -> tuple[str, float, str, float] | None:
    """The first and the last layer whose gradient is known in a step, each with the norm of its gradient."""
    norms = [(name, root * value) for name, root in s.depth if (value := s.at("grad_rms", name, step)) is not None]
    return (*norms[0], *norms[-1]) if len(norms) > 1 else None


def vanishing_gradient(s: RunEvidence) -> Finding | None:
    """A gradient that shrinks over depth or time, in a run that failed."""
    if not s.failed:
        return None
    flows = {step: flow for step in s.watched if step < EARLY and (flow := _flow(s, step)) is not None}
    if flows:
        ratios = {step: first / last if last > 0 else 0.0 for step, (_, first, _, last) in flows.items()}
        ratio = statistics.median(ratios.values())
        if ratio < (GRADIENT_VANISHED if len(s.depth) >= _DEEP else GRADIENT_VANISHED**2):
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
            "vanishing_gradient", "certain" if times["first"] < GRADIENT_VANISHED**3 * times["last"] else "likely", said
        )
    late = [(step, flow) for step in s.watched[-3:] if (flow := _flow(s, step)) is not None]
    if len(late) == 3 and all(flow[1] <= GRADIENT_VANISHED**2 * flow[3] for _, flow in late):
        name = late[-1][1][0]
        ends = s.series("grad_rms").get(name, {})
        step = min((step for step in ends if ends[step] == late[-1][1][1]), default=late[0][0])
        said = (
            f"In the last three measurements the gradient at {name} is {number(late[-1][1][1])}, at {late[-1][1][2]} "
            f"{number(late[-1][1][3])}."
        )
        return found("vanishing_gradient", "certain", said, modules=[name], step=step)
    return None


def exploding_gradient(s: RunEvidence) -> Finding | None:
    """Signal or gradient that grows over depth, time or steps, in a run that did not learn."""
    if s.learned and s.trials is not None:
        return None
    inputs = next((one["rms"] for one in s.facts.get("inputs", []) if one.get("rms")), None)
    outputs = [(name, value) for name, _ in s.depth if (value := s.at("out_rms", name)) is not None]
    if outputs:
        base = max(min(inputs, outputs[0][1]) if inputs else outputs[0][1], 1e-6)
        name, top = max(outputs, key=lambda one: one[1])
        beyond = s.trials is None and top > 10 * EXPLODED * base  # however far the loss fell
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


def _hidden_activations(s: RunEvidence) -> list[str]:
    """Activation modules that are followed by a module with weights."""
    last = max((place for place, m in enumerate(s.leaves) if m.get("kind") in WEIGHTED_KINDS), default=-1)
    return [m["name"] for m in s.leaves[:last] if m.get("kind") == "activation"]


def saturated_units(s: RunEvidence) -> Finding | None:
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
    if gates and gates["saturated"] >= SATURATED_SHARE:
        shares[gates["module"]] = gates["saturated"]
    worst = {name: share for name, share in shares.items() if share >= SATURATED_SHARE}
    if not worst:
        return None
    top = max(worst.values())
    said = (
        f"Up to {number(100 * top)} % of a layer's outputs lie at a bound in the first steps, of {len(worst)} layers."
    )
    return found("saturated_units", "certain" if top >= 0.9 else "likely", said, modules=worst)


def dead_units(s: RunEvidence) -> Finding | None:
    """Hidden units that are zero for the whole batch at the end of a run that failed."""
    if not s.failed:
        return None
    hidden, gone, since = set(_hidden_activations(s)), {}, []
    for name, steps in s.series("dead_share").items():
        if name.split("#")[0] not in hidden or len(steps) < 3:
            continue
        ends = [steps[step] for step in sorted(steps)[-3:]]
        start = steps[min(steps)]
        if min(ends) >= DEAD_SHARE or (min(ends) >= DIED_SHARE and start < DIED_SHARE / 4):
            gone[name] = min(ends)
            since.append(min(step for step, value in steps.items() if value >= min(ends)))
    if not s.series("dead_share"):
        now, then = s.trial("traced_now", "dead") or {}, s.trial("traced_start", "dead") or {}
        gone = {
            k: v for k, v in now.items() if v >= DEAD_SHARE or (v >= DIED_SHARE and then.get(k, 1.0) < DIED_SHARE / 4)
        }
    if not gone:
        return None
    said = (
        f"{number(100 * max(gone.values()))} % of a layer's units are off for the whole batch, of {len(gone)} layers."
    )
    return found(
        "dead_units",
        "certain" if max(gone.values()) >= DEAD_SHARE else "likely",
        said,
        modules=gone,
        step=min(since, default=0),
    )


def rank_collapse(s: RunEvidence) -> Finding | None:
    """Outputs that point in one direction for all samples; a note."""
    if not s.failed:
        return None
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
    return found("rank_collapse", "note", said, modules=flat)


def loss_spike(s: RunEvidence) -> Finding | None:
    """A loss that jumps and comes back; a note."""
    losses = list(s.losses.items())
    for place in range(SPIKE_WINDOW, len(losses)):
        before = statistics.median(value for _, value in losses[place - SPIKE_WINDOW : place])
        step, value = losses[place]
        if (
            before > 0
            and value > SPIKE * before
            and (s.last_loss or 0.0) < value / 2
            and value > 0.1 * abs(losses[0][1])
        ):
            units = "steps" if s.audited is None else "epochs"
            said = f"In {s.when(step)} the loss is {number(value)}, "
            said += f"the median of the {SPIKE_WINDOW} {units} before it {number(before)}."
            return found("loss_spike", "note", said, step=step)
    return None


def gradient_noise(s: RunEvidence) -> Finding | None:
    """Gradients of two halves of a batch that disagree while the loss does not fall; a note."""
    noise = s.series("grad_noise").get("(model)", {})
    later = [value for step, value in noise.items() if step > 0]
    if len(later) < 2 or min(later) < NOISY or s.learned is not False or (s.fell or 0.0) > 0.1:
        return None
    said = f"Gradients of the two halves of a batch have a cosine of {number(1 - min(later))} at most."
    return found("gradient_noise", "note", said)


FLOW_SYMPTOMS = (
    Diagnosis(
        nan_origin,
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
        saturated_units,
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
        dead_units,
        short="ReLU-like units that are off for every input and stay off.",
        measured=(
            f"Of a hidden layer's units {DEAD_SHARE:g} are zero for the whole batch at the end ({DIED_SHARE:g}, if "
            "they were alive at the start), and the run failed."
        ),
        why="A unit that is off for every input gets no gradient and cannot come back.",
        remedy="Lower the learning rate, or use LeakyReLU or GELU.",
        reference="Lu et al. (2019), Dying ReLU and initialization, arXiv:1903.06733",
    ),
    Diagnosis(
        vanishing_gradient,
        short="Gradients shrink by orders of magnitude on their way back, or are zero from some layer on.",
        measured=(
            f"The norm of the gradient at the first weighted layer is below {GRADIENT_VANISHED:g} of that at the last "
            f"in the first {EARLY} steps, or exactly zero; of the first place of a sequence below the square of it; "
            "and the run failed."
        ),
        why="Layers that get no gradient keep their random weights.",
        remedy="Use residual connections or normalisation, and weights that keep the size of the signal.",
        reference="Glorot & Bengio (2010), Understanding the difficulty of training deep feedforward neural networks",
        explains=frozenset({"not_learning", "state_explosion"}),
    ),
    Diagnosis(
        exploding_gradient,
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
        explains=frozenset({"nan_origin", "not_learning", "state_explosion"}),
    ),
    Diagnosis(
        rank_collapse,
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
        loss_spike,
        short="The loss jumps far above its recent values and comes back.",
        measured=(
            f"A loss {SPIKE:g} times the median of the {SPIKE_WINDOW} steps before it, after the first "
            f"{SPIKE_WINDOW}; a note."
        ),
        why="A spike undoes some of what was learned, and announces a rate at the edge.",
        remedy="Clip the norm of the gradient, or lower the rate.",
        reference="Chowdhery et al. (2022), PaLM: scaling language modeling with pathways, arXiv:2204.02311",
    ),
    Diagnosis(
        gradient_noise,
        short="Gradients of the two halves of a batch point in unrelated directions.",
        measured=(
            f"1 − cosine of the two halves' gradients at the model's output above {NOISY:g} at each costly "
            "step, while the loss no longer falls; a note."
        ),
        why="A step follows the samples of the batch, not the data.",
        remedy="Use larger batches, accumulate gradients, or lower the rate.",
        reference="McCandlish et al. (2018), An empirical model of large-batch training, arXiv:1812.06162",
        is_pace=True,
    ),
)
"""Causes before their symptoms."""
