"""Faults of pace: steps too large, too small or too few, and penalties that outweigh the data."""

import math
import statistics

from sonde.analysis.diagnosis import flow_symptoms
from sonde.analysis.diagnosis.finding import Finding, found
from sonde.analysis.diagnosis.loop_faults import is_tiny, share_fresh
from sonde.analysis.diagnosis.signs import EARLY, FEW, WEIGHTED, Signs
from sonde.core.formatting import number

BETTER = 0.3  # of the way to the lowest loss, that another rate must come further in fifty steps
LARGE_STEP, OUTRAGEOUS = 0.3, 1.0  # ‖ΔW‖/‖W‖
NEAR, FAR = 0.1, 0.5  # way of the weights in their norms: nearly where they began; well away from it
SLOW = 1e-3  # ‖ΔW‖/‖W‖ of a step: with less, a short run is slow rather than short
GREW = 10.0  # a loss
SHRUNK = 1 / 3  # of the initial norm
GONE = 0.1  # of the initial norm: whatever the loss says
PULL = 0.5  # of a step's change that weight decay may make up
FURTHER = 0.2


def _step_size(s: Signs) -> float | None:
    """The median over weight matrices of the largest ‖ΔW‖/‖W‖ of the first ten steps."""
    matrices = _matrices(s)
    ratios = []
    for name, steps in s.series("update_ratio").items():
        early = [value for step, value in steps.items() if step < EARLY]
        if name in matrices and early:
            ratios.append(max(early))
    return statistics.median(ratios) if ratios else None


def _matrices(s: Signs) -> set[str]:
    return {p["name"] for p in s.parameters if len(p["shape"] or []) > 1}


def lr_too_high(s: Signs) -> Finding | None:
    """Steps that overshoot."""
    breaks_by_itself = s.trial("traced_start", "first_broken") is not None
    if s.learned or breaks_by_itself:
        return None
    own = s.fit("1")
    for name in ("0.1", "0.01"):
        lower = s.fit(name)
        if own is not None and lower is not None and lower >= BETTER and lower - own >= BETTER:
            reached = "diverge" if own == -math.inf else f"come {number(own)} of the way"
            said = f"Fifty steps on one batch {reached} at the run's rate, and {number(lower)} at {name} times it."
            return found("lr_too_high", "certain", said)
    size = _step_size(s)
    if size is not None and size >= OUTRAGEOUS and not s.learned and flows(s):
        said = f"In the first steps weights change by {number(size)} times their norm a step."
        return found("lr_too_high", "likely", said)
    if not s.failed:
        return None
    losses = list(s.losses.values())
    stuck = s.fell is None or s.fell < 0.1
    worse = s.score is not None and s.score < -1  # than a constant answer, by far
    if size is not None and size >= LARGE_STEP and (stuck or worse):
        said = (
            f"In the first steps weights change by {number(100 * size)} % of their norm a step, and "
            "the loss does not fall."
        )
        return found("lr_too_high", "likely", said)
    died = [
        name
        for name, steps in s.series("dead_share").items()
        if steps[min(steps)] < 0.5 and steps[max(steps)] >= 0.9 and len(steps) > 3
    ]
    fastest = max(
        (max(steps.values()) for name, steps in s.series("update_ratio").items() if name in _matrices(s)),
        default=0.0,
    )
    if died and fastest >= LARGE_STEP / 3 and stuck:
        said = (
            f"Units that were alive died while weights changed by up to {number(100 * fastest)} % "
            "of their norm in a step."
        )
        return found("lr_too_high", "likely", said, modules=died)
    grew = bool(losses) and losses[0] > 0 and max(losses) > GREW * losses[0]
    if grew and (stuck or s.broke is not None) and s.broke != 0:
        step = next(step for step, value in s.losses.items() if value > GREW * losses[0])
        said = f"The loss grows from {number(losses[0])} to {number(max(losses))}."
        return found("lr_too_high", "likely", said, step=step)
    return None


def lr_too_low(s: Signs) -> Finding | None:
    """Steps that lead nowhere."""
    if not s.failed or s.broke is not None:
        return None
    own = s.fit("1")
    if s.moved is not None and s.moved > FAR and s.steps:
        return None
    for name in ("10", "100"):
        higher = s.fit(name)
        if own is not None and own < 0.1 and higher is not None and higher >= BETTER:
            said = (
                f"Fifty steps on one batch come {number(own)} of the way at the run's rate, and {number(higher)} "
                f"at {name} times it."
            )
            return found("lr_too_low", "likely", said)
    begun = share_fresh(s.parameters) > 0.5 or is_tiny(s.parameters)  # what was trained before may take small steps
    still_falls = _is_short(s) and (s.fell or 0.0) > 0.01
    if begun and s.moved is not None and s.moved < NEAR and flows(s) and not still_falls:
        said = f"All {s.steps} steps together move weights by {number(s.moved)} of their norm, and the loss stays."
        return found("lr_too_low", "likely", said)
    return None


def flows(s: Signs) -> bool:
    """Whether signal and gradient come through, so that a rate can be blamed."""
    looks = (flow_symptoms.vanishing_gradient, flow_symptoms.dead_units, flow_symptoms.saturated_units)
    return all(look(s) is None for look in looks)


def _is_short(s: Signs) -> bool:
    """Fewer steps than a run needs, of a size that could lead somewhere."""
    return s.steps < FEW and s.moved is not None and s.moved > SLOW * s.steps


def too_few_steps(s: Signs) -> Finding | None:
    """A short run that one batch shows could go on."""
    own = s.fit("1")
    if s.steps >= FEW or s.learned or s.broke is not None:
        return None
    if s.trials is None:
        return _falls_still(s)
    if own is None or s.score is None:
        return None
    if own - s.score < (FURTHER if s.failed else 0.5) or (s.fell or 0.0) < 0:
        return None
    said = (
        f"After {s.steps} steps the run is {number(s.score)} of the way; fifty steps on one batch come {number(own)}."
    )
    return found("too_few_steps", "likely", said)


def _falls_still(s: Signs) -> Finding | None:
    """From rows alone: few steps of a sensible size, and a loss that was still falling at the end."""
    losses = list(s.losses.values())
    if not len(losses) >= 6 or not _is_short(s) or not flows(s) or not 0.01 < (s.fell or 0.0) < 0.5:
        return None
    third = len(losses) // 3
    early, middle, late = (statistics.fmean(part) for part in (losses[:third], losses[third:-third], losses[-third:]))
    if not (early > middle > late or late < 0.95 * early):
        return None
    parts = ", ".join(map(number, (early, middle, late)))
    said = f"After {s.steps} steps the loss was still falling: {parts} by thirds."
    return found("too_few_steps", "likely", said)


def over_regularised(s: Signs) -> Finding | None:
    """Weights that shrink away, or dropout that leaves nothing, in a run that did not learn."""
    if s.learned and s.trials is not None:
        return None
    layers = {m["name"] for m in s.leaves if m.get("kind") in WEIGHTED}
    shrunk, many = {}, 0
    for name, steps in s.series("weight_norm").items():
        shape = next((p["shape"] for p in s.parameters if p["name"] == name), None) or []
        if len(shape) > 1 and s.owner(name) in layers and len(steps) > 1 and steps[min(steps)] > 0:
            many += 1
            ratio = steps[max(steps)] / steps[min(steps)]
            if ratio < SHRUNK:
                shrunk[name] = ratio
    decays = [group.get("weight_decay") or 0.0 for o in s.facts.get("optimisers", []) for group in o["groups"]]
    gone = [name for name, ratio in shrunk.items() if ratio < GONE]
    if len(gone) > many / 2 or (shrunk and len(shrunk) > many / 2 and not s.learned):
        said = (
            f"{len(shrunk)} of {many} weight matrices shrank, to {number(min(shrunk.values()))} of "
            f"their initial norm; weight decay is {number(max(decays, default=0.0))}."
        )
        return found("over_regularised", "certain", said, modules=map(s.owner, shrunk))
    if s.learned:
        return None
    pulled = _pulled(s)
    if pulled is not None and pulled >= PULL:
        said = f"Weight decay alone is {number(pulled)} of what a step changes; weight decay is {number(max(decays))}."
        return found("over_regularised", "likely", said, modules=map(s.owner, shrunk))
    if not s.failed:
        return None
    dropped = [m for m in s.leaves if (m.get("drops") or 0.0) > 0.8]
    if dropped:
        said = f"Dropout leaves {number(100 * (1 - max(m['drops'] for m in dropped)))} % of what enters it."
        return found("over_regularised", "likely", said, modules=[m["name"] for m in dropped])
    return None


def _pulled(s: Signs) -> float | None:
    """Rate times weight decay, relative to the median ‖ΔW‖/‖W‖ of weight matrices after the first steps.

    Where an optimiser adds the decay to the gradient and then divides by its size, this says nothing; nor in a run
    that may have learned, whose steps become small as the rate falls.
    """
    if s.learned is not False:
        return None
    pulls = [
        (group.get("weight_decay") or 0.0) * (group.get("lr") or 0.0)
        for o in s.facts.get("optimisers", [])
        for group in o["groups"]
        if o["type"] in ("AdamW", "SGD", "Lion")
        or (o["type"] in ("NAdam", "RAdam") and group.get("decoupled_weight_decay"))
    ]
    matrices = _matrices(s)
    later = [
        value
        for name, steps in s.series("update_ratio").items()
        if name in matrices
        for step, value in steps.items()
        if step >= EARLY
    ]
    usual = statistics.median(later) if later else 0.0
    return max(pulls) / usual if pulls and usual > 0 else None


def loss_spike(s: Signs) -> Finding | None:
    """A loss that jumps and comes back; a note."""
    losses = list(s.losses.items())
    for place in range(20, len(losses)):
        before = statistics.median(value for _, value in losses[place - 20 : place])
        step, value = losses[place]
        if before > 0 and value > 10 * before and (s.last_loss or 0.0) < value / 2 and value > 0.1 * abs(losses[0][1]):
            units = "steps" if s.audited is None else "epochs"
            said = f"In {s.when(step)} the loss is {number(value)}, "
            said += f"the median of the 20 {units} before it {number(before)}."
            return found("loss_spike", "note", said, step=step)
    return None


def gradient_noise(s: Signs) -> Finding | None:
    """Halves of the batch that disagree, while the loss no longer falls; a note."""
    noise = s.series("grad_noise").get("(model)", {})
    later = [value for step, value in noise.items() if step > 0]
    if len(later) < 2 or min(later) < 0.9 or s.learned is not False or (s.fell or 0.0) > 0.1:
        return None
    said = f"Gradients of the two halves of a batch have a cosine of {number(1 - min(later))} at most."
    return found("gradient_noise", "note", said)
