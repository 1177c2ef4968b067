"""Faults that limit how far a run comes: rate, number of steps, penalties, missing activations."""

import math
import statistics

from sonde.analysis.diagnosis.finding import FLOW, Diagnosis, Finding, found
from sonde.analysis.diagnosis.flow_symptoms import dead_units, saturated_units, vanishing_gradient
from sonde.analysis.diagnosis.loop_faults import is_tiny, share_fresh
from sonde.analysis.diagnosis.run_evidence import EARLY, FEWEST_STEPS, WEIGHTED_KINDS, RunEvidence
from sonde.core.formatting import number

_BETTER = 0.3  # score that another rate must gain in fifty steps
LARGE_STEP, OUTRAGEOUS = 0.3, 1.0  # ‖ΔW‖/‖W‖
NEARLY_UNMOVED, FAR_MOVED = 0.1, 0.5  # how far the weights moved, in their norms
SLOW_STEP = 1e-3  # ‖ΔW‖/‖W‖ of a step: below it a run of few steps is slow, not short
LOSS_GREW = 10.0  # times the first loss
WEIGHTS_SHRUNK = 1 / 3  # of the initial norm
WEIGHTS_GONE = 0.1  # of the initial norm: whatever the loss is
DECAY_SHARE = 0.5  # share of a step's change that comes from weight decay
FURTHER = 0.2  # score that fifty steps on one batch must gain


def _step_size(s: RunEvidence) -> float | None:
    """The median over weight matrices of the largest ‖ΔW‖/‖W‖ of the first ten steps."""
    early = [[value for step, value in steps.items() if step < EARLY] for steps in s.update_ratios]
    return statistics.median(largest) if (largest := [max(values) for values in early if values]) else None


def lr_too_high(s: RunEvidence) -> Finding | None:
    """Steps that are too large."""
    breaks_by_itself = s.trial("traced_start", "first_broken") is not None
    if s.learned or breaks_by_itself:
        return None
    own = s.fit("1")
    for name in ("0.1", "0.01"):
        lower = s.fit(name)
        if own is not None and lower is not None and lower >= _BETTER and lower - own >= _BETTER:
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
    fastest = max((max(steps.values()) for steps in s.update_ratios), default=0.0)
    if died and fastest >= LARGE_STEP / 3 and stuck:
        said = (
            f"Units that were alive died while weights changed by up to {number(100 * fastest)} % "
            "of their norm in a step."
        )
        return found("lr_too_high", "likely", said, modules=died)
    grew = bool(losses) and losses[0] > 0 and max(losses) > LOSS_GREW * losses[0]
    if grew and (stuck or s.broke is not None) and s.broke != 0:
        step = next(step for step, value in s.losses.items() if value > LOSS_GREW * losses[0])
        said = f"The loss grows from {number(losses[0])} to {number(max(losses))}."
        return found("lr_too_high", "likely", said, step=step)
    return None


def lr_too_low(s: RunEvidence) -> Finding | None:
    """Steps that are too small."""
    if not s.failed or s.broke is not None:
        return None
    own = s.fit("1")
    if s.moved is not None and s.moved > FAR_MOVED and s.steps:
        return None
    for name in ("10", "100"):
        higher = s.fit(name)
        if own is not None and own < 0.1 and higher is not None and higher >= _BETTER:
            said = (
                f"Fifty steps on one batch come {number(own)} of the way at the run's rate, and {number(higher)} "
                f"at {name} times it."
            )
            return found("lr_too_low", "likely", said)
    begun = share_fresh(s.parameters) > 0.5 or is_tiny(s.parameters)  # fine-tuning may take small steps
    still_falls = _is_short(s) and (s.fell or 0.0) > 0.01
    if begun and s.moved is not None and s.moved < NEARLY_UNMOVED and flows(s) and not still_falls:
        said = f"All {s.steps} steps together move weights by {number(s.moved)} of their norm, and the loss stays."
        return found("lr_too_low", "likely", said)
    return None


def flows(s: RunEvidence) -> bool:
    """Whether signal and gradient reach all layers, so that the rate may be the cause."""
    return all(find(s) is None for find in (vanishing_gradient, dead_units, saturated_units))


def _is_short(s: RunEvidence) -> bool:
    """Whether the run has few steps, of a sensible size."""
    return s.steps < FEWEST_STEPS and s.moved is not None and s.moved > SLOW_STEP * s.steps


def too_few_steps(s: RunEvidence) -> Finding | None:
    """A short run whose batch can be learned further."""
    own = s.fit("1")
    if s.steps >= FEWEST_STEPS or s.learned or s.broke is not None:
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


def _falls_still(s: RunEvidence) -> Finding | None:
    """From rows: few steps of a sensible size, and a loss that was falling at the end."""
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


def over_regularised(s: RunEvidence) -> Finding | None:
    """Weights that decay, or too much dropout, in a run that did not learn."""
    if s.learned and s.trials is not None:
        return None
    layers = {m["name"] for m in s.leaves if m.get("kind") in WEIGHTED_KINDS}
    shrunk, many = {}, 0
    for name, steps in s.series("weight_norm").items():
        shape = next((p["shape"] for p in s.parameters if p["name"] == name), None) or []
        if len(shape) > 1 and s.owner(name) in layers and len(steps) > 1 and steps[min(steps)] > 0:
            many += 1
            ratio = steps[max(steps)] / steps[min(steps)]
            if ratio < WEIGHTS_SHRUNK:
                shrunk[name] = ratio
    decays = [group.get("weight_decay") or 0.0 for o in s.facts.get("optimisers", []) for group in o["groups"]]
    gone = [name for name, ratio in shrunk.items() if ratio < WEIGHTS_GONE]
    if len(gone) > many / 2 or (shrunk and len(shrunk) > many / 2 and not s.learned):
        said = (
            f"{len(shrunk)} of {many} weight matrices shrank, to {number(min(shrunk.values()))} of "
            f"their initial norm; weight decay is {number(max(decays, default=0.0))}."
        )
        return found("over_regularised", "certain", said, modules=map(s.owner, shrunk))
    if s.learned:
        return None
    pulled = _pulled(s)
    if pulled is not None and pulled >= DECAY_SHARE:
        said = f"Weight decay alone is {number(pulled)} of what a step changes; weight decay is {number(max(decays))}."
        return found("over_regularised", "likely", said, modules=map(s.owner, shrunk))
    if not s.failed:
        return None
    dropped = [m for m in s.leaves if (m.get("drops") or 0.0) > 0.8]
    if dropped:
        said = f"Dropout leaves {number(100 * (1 - max(m['drops'] for m in dropped)))} % of what enters it."
        return found("over_regularised", "likely", said, modules=[m["name"] for m in dropped])
    return None


def _pulled(s: RunEvidence) -> float | None:
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
    later = [value for steps in s.update_ratios for step, value in steps.items() if step >= EARLY]
    usual = statistics.median(later) if later else 0.0
    return max(pulls) / usual if pulls and usual > 0 else None


def missing_activation(s: RunEvidence) -> Finding | None:
    """Consecutive weight matrices without a non-linearity, in a run that failed."""
    pairs = s.facts.get("bare_pairs") or []
    layers = [m for m in s.leaves if m.get("kind") in WEIGHTED_KINDS]
    whole = len(pairs) >= len(layers) - 1 or (not s.facts.get("bends", True) and len(layers) > 2)
    if not pairs or s.learned or not (s.failed or (whole and s.trials is None)):
        return None
    names = [s.owner(name) for pair in pairs for name in pair]
    said = f"Nothing bends between {len(pairs)} pairs of layers that follow each other" + (
        ": the network is one linear map." if whole else "."
    )
    return found("missing_activation", "likely" if whole else "note", said, modules=names)


PACE_FAULTS = (
    Diagnosis(
        over_regularised,
        short="Weight decay, penalty or dropout so strong that the data no longer matter.",
        measured=(
            f"Most weight matrices shrink below {WEIGHTS_SHRUNK:.2g} of their initial norm (below {WEIGHTS_GONE:g} of "
            f"it whatever the loss says), weight decay makes up more than {DECAY_SHARE:g} of what a step changes, or "
            "dropout leaves less than a fifth, and the run did not learn."
        ),
        why="The penalty outweighs the data, and the network answers with the average.",
        remedy="Lower weight decay (1e-4 for SGD, 1e-2 for AdamW) or dropout (0.1–0.5).",
        reference="Krogh & Hertz (1991), A simple weight decay can improve generalization",
        explains=FLOW,
        hides_pace=True,
    ),
    Diagnosis(
        lr_too_high,
        short="Steps too large for the curvature.",
        measured=(
            "The run failed, and: a tenth of the rate learns one batch where the rate does not; or a step changes "
            f"weights by more than {100 * LARGE_STEP:g} % of their norm; or the loss grows {LOSS_GREW:g}-fold. "
            f"Whether or not it failed: the first steps change weights by more than {OUTRAGEOUS:g} times their norm."
        ),
        why="Steps beyond twice the inverse curvature overshoot, and each makes the loss larger.",
        remedy="Divide the learning rate by ten, or warm it up over the first steps.",
        reference=(
            "Cohen et al. (2021), Gradient descent on neural networks typically occurs at the edge "
            "of stability, arXiv:2103.00065"
        ),
        explains=FLOW | {"nan_origin", "loss_spike", "attention_collapse", "not_learning"},
        is_pace=True,
    ),
    Diagnosis(
        missing_activation,
        short="No non-linearity where layers need one between them.",
        measured=(
            "Autograd's graph leads from one weight matrix to the next without a non-linearity, the middle "
            "is no bottleneck, and the run failed."
        ),
        why="Linear layers in a row are one linear layer, whatever their number.",
        remedy="Put an activation between these layers.",
        reference=(
            "Saxe, McClelland & Ganguli (2014), Exact solutions to the nonlinear dynamics of learning "
            "in deep linear neural networks, arXiv:1312.6120"
        ),
        is_pace=True,
    ),
    Diagnosis(
        too_few_steps,
        short="Training is sound but stops long before it could be done.",
        measured=(
            f"Fewer than {FEWEST_STEPS} steps, no result yet, and fifty steps at the run's own rate on one batch "
            f"come {FURTHER:g} of the way further; without a batch, steps above {SLOW_STEP:g} of the weights and a "
            "loss that was still falling."
        ),
        why="The loss was still falling when training stopped.",
        remedy="Train longer, or in smaller batches: more steps for the same data.",
        reference="Hoffer, Hubara & Soudry (2017), Train longer, generalize better, arXiv:1705.08741",
        explains=frozenset({"lr_too_low"}),
        is_pace=True,
    ),
    Diagnosis(
        lr_too_low,
        short="Steps far too small to get anywhere in the steps given.",
        measured=(
            "The run failed, and fifty steps on one batch at ten or a hundred times the rate learn "
            f"what the rate itself does not, or all steps together move weights by less than {NEARLY_UNMOVED:g} of "
            f"their norm; never where they moved by more than {FAR_MOVED:g} of it."
        ),
        why="The weights end nearly where they began.",
        remedy="Multiply the learning rate by ten until the loss stops falling faster.",
        reference=(
            "Bengio (2012), Practical recommendations for gradient-based training of deep architectures, "
            "arXiv:1206.5533"
        ),
        is_pace=True,
    ),
)
"""Causes before their symptoms."""
