"""Faults that limit how far a run comes: rate, number of steps, penalties, missing activations."""

import itertools
import statistics

from sonde.analysis.diagnosis.finding import Diagnosis, Finding, found
from sonde.analysis.diagnosis.flow_symptoms import FLOW_SYMPTOMS, flows, gradient_norms
from sonde.analysis.diagnosis.loop_faults import is_tiny, share_fresh
from sonde.analysis.diagnosis.run_evidence import FAILED, FEWEST_STEPS, HELPS, LEARNED, RunEvidence
from sonde.analysis.diagnosis.run_record import EARLY, LARGE_STEP, NEARLY_UNMOVED, WEIGHTED_KINDS
from sonde.analysis.diagnosis.task_faults import FAR_MOVED, USUAL_STEP
from sonde.core.formatting import number

OUTRAGEOUS = 1.0  # ‖ΔW‖/‖W‖
_FAR = 10.0  # norms by which weights moved in all steps
FADED_STEP = 1e-3  # of the largest of the first steps
_LOST_STEP = 1e-9  # ‖ΔW‖/‖W‖ of a step that rounding undoes
_LOST = 0.5  # share of a step that is left after rounding
_DECOUPLED = ("AdamW", "SGD", "Lion")  # optimisers that do not divide the decay by the size of gradients
_SAME = 1e-3  # relative difference of gradient norms that are clipped to one value
SLOW_STEP = 1e-3  # ‖ΔW‖/‖W‖ of a step: below it a run of few steps is slow, not short
LOSS_GREW = 10.0  # times the first loss
WEIGHTS_SHRUNK = 1 / 3  # of the initial norm
WEIGHTS_GONE = 0.1  # of the initial norm: whatever the loss is
USUAL_DECAY = 0.01  # PyTorch's default for AdamW
DECAY_SHARE = 0.5  # share of a step's change that comes from weight decay
FURTHER = 0.2  # score that fifty steps on one batch must gain


SYMPTOMS = frozenset(one.name for one in FLOW_SYMPTOMS) | {
    "attention_collapse",
    "not_learning",
    "masked_growth",
    "loss_spike",
}


def _slower_learns(s: RunEvidence) -> Finding | None:
    """A lower rate learns one batch where the run's rate does not."""
    name = s.helps("0.1", "0.01")
    if name is None:
        return None
    advice = f"Multiply the learning rate by {name}, or warm it up over the first steps."
    return found("likely" if s.learned else "certain", s.compared(name, f"at {name} times its rate"), advice=advice)


def _outrageous_steps(s: RunEvidence) -> Finding | None:
    least = 3 * OUTRAGEOUS if s.learned else OUTRAGEOUS  # from weights of zero, steps are as long as they
    if s.step_size is None or s.step_size < least or not _rate_may_be_high(s):
        return None
    return found("likely", f"In the first steps weights change by {number(s.step_size)} times their norm a step.")


def _is_stuck(s: RunEvidence) -> bool:
    return s.fell is None or s.fell < 0.1


def _large_steps(s: RunEvidence) -> Finding | None:
    worse = s.score is not None and s.score < -1  # than a constant answer, by far
    if not s.failed or s.step_size is None or s.step_size < LARGE_STEP or not (_is_stuck(s) or worse):
        return None
    said = (
        f"In the first steps weights change by {number(100 * s.step_size)} % of their norm a step, and "
        "the loss does not fall."
    )
    return found("likely", said)


def _moved_in_vain(s: RunEvidence) -> Finding | None:
    """Long steps that lead nowhere, where nothing else explains it."""
    far = (s.step_size or 0.0) >= USUAL_STEP and (s.moved or 0.0) >= _FAR
    if not far or not s.failed or s.beats_a_constant or not (_is_stuck(s) and _rate_may_be_high(s)) or not flows(s):
        return None
    said = (
        f"All {s.steps} steps together move weights by {number(s.moved or 0.0)} times their norm, the first by up to "
        f"{number(100 * (s.step_size or 0.0))} %, and the loss does not fall."
    )
    return found("likely", said, is_rest=True)


def _rate_may_be_high(s: RunEvidence) -> bool:
    """Whether no fit says otherwise: the run's own rate learns one batch, and lower ones do not learn more."""
    own = s.fit("1")
    return own is None or own < LEARNED or s.helps("0.1", "0.01") is not None


def _units_died(s: RunEvidence) -> Finding | None:
    died = [
        name
        for name, steps in s.series("dead_share").items()
        if steps[min(steps)] < 0.5 and steps[max(steps)] >= 0.9 and len(steps) > 3
    ]
    fastest = max((max(steps.values()) for steps in s.update_ratios), default=0.0)
    if not s.failed or not died or fastest < LARGE_STEP / 3 or not (_is_stuck(s) and _rate_may_be_high(s)):
        return None
    said = (
        f"Units that were alive died while weights changed by up to {number(100 * fastest)} % of their norm in a step."
    )
    return found("likely", said, modules=died)


def _loss_grew(s: RunEvidence) -> Finding | None:
    losses = list(s.losses.values())
    if not s.failed or s.broke == 0 or not losses or losses[0] <= 0 or max(losses) <= LOSS_GREW * losses[0]:
        return None
    if not (_is_stuck(s) or s.broke is not None) or not _rate_may_be_high(s):
        return None
    step = next(step for step, value in s.losses.items() if value > LOSS_GREW * losses[0])
    return found("likely", f"The loss grows from {number(losses[0])} to {number(max(losses))}.", step=step)


def _may_be_slow(s: RunEvidence) -> bool:
    """Whether the run failed, and its weights did not move far."""
    return s.failed and not (s.steps and (s.moved or 0.0) > FAR_MOVED)


def _faster_learns(s: RunEvidence) -> Finding | None:
    """A higher rate learns one batch where the run's rate does not."""
    name = s.helps("10", "100") if _may_be_slow(s) and (s.fit("1") or 0.0) < FAILED else None
    if name is None:
        return None
    said = s.compared(name, f"at {name} times its rate")
    return found("likely", said, advice=f"Multiply the learning rate by {name}.")


def _hardly_moved(s: RunEvidence) -> Finding | None:
    """All steps together move the weights by little."""
    begun = share_fresh(s.parameters) > 0.5 or is_tiny(s.parameters)  # fine-tuning may take small steps
    still_falls = _is_short(s) and (s.fell or 0.0) > 0.01
    if s.learned or not (begun and s.is_unmoved) or still_falls or not flows(s):
        return None
    said = f"All {s.steps} steps together move weights by {number(s.moved or 0.0)} of their norm."
    return found("likely", said)


def _steps_fade(s: RunEvidence) -> Finding | None:
    """A schedule that ends early: steps shrink to nothing while gradients do not."""
    sizes = _typical(_updates(s))
    early = max([0.0, *(value for step, value in sizes.items() if step < EARLY)])
    ended = [step for step, value in sizes.items() if value < FADED_STEP * early]
    if not ended or s.steps < FEWEST_STEPS or ended[0] > s.steps / 2 or s.has_large_steps:
        return None
    if len(ended) < 0.9 * (len(sizes) - list(sizes).index(ended[0])):
        return None
    longest = number(max(map(sizes.__getitem__, ended)) / early)
    said = (
        f"From step {ended[0]} of {s.steps} on steps are at most {longest} times as long as in the beginning; "
        "gradients are still there."
    )
    advice = "Let the schedule of the rate end with training: step it once per epoch, or give it the number of batches."
    return found("certain" if s.failed else "likely", said, step=ended[0], advice=advice)


def _updates(s: RunEvidence) -> list[dict[int, float]]:
    """step → ‖ΔW‖ of each weight matrix whose gradient is still there at the end."""
    grads, ratios, norms = (s.series(name) for name in ("weight_grad_norm", "update_ratio", "weight_norm"))
    alive = [
        p["name"]
        for p in s.parameters
        if len(p["shape"] or []) > 1 and (own := grads.get(p["name"])) and own[max(own)] > 0.05 * own[min(own)] > 0
    ]
    return [
        {step: ratio * norms[name][step] for step, ratio in ratios.get(name, {}).items() if step in norms.get(name, {})}
        for name in alive
    ]


def _typical(ratios: list[dict[int, float]]) -> dict[int, float]:
    """step → the median over weight matrices."""
    steps = sorted({step for known in ratios for step in known})
    return {step: statistics.median(known[step] for known in ratios if step in known) for step in steps}


def _clipped(s: RunEvidence) -> Finding | None:
    """A gradient that is clipped to one small norm in every step, of an optimiser that does not divide by it."""
    norms = [value for value in gradient_norms(s).values() if value > 0]
    kinds = {one["type"] for one in s.facts.get("optimisers", [])}
    if kinds != {"SGD"} or len(norms) < EARLY or max(norms) > (1 + _SAME) * min(norms):
        return None
    if not _may_be_slow(s) or not s.is_unmoved:
        return None
    said = (
        f"The gradient of all weights has the norm {number(norms[-1])} in each of {len(norms)} watched steps, as if "
        f"clipped to it; all steps together move weights by {number(s.moved or 0.0)} of their norm."
    )
    return found(
        "likely", said, advice="Clip the norm of the gradient at a value that most steps do not reach, such as 1."
    )


def _is_short(s: RunEvidence) -> bool:
    """Whether the run has few steps, of a sensible size."""
    return s.steps < FEWEST_STEPS and s.moved is not None and s.moved > SLOW_STEP * s.steps


def _batch_goes_further(s: RunEvidence) -> Finding | None:
    """A short run whose batch can be learned further."""
    own = s.fit("1")
    if own is None or s.score is None or (s.fell or 0.0) < 0 or own - s.score < (FURTHER if s.failed else 0.5):
        return None
    said = (
        f"After {s.steps} steps the run is {number(s.score)} of the way; {s.fit_steps()} steps on one "
        f"batch come {number(own)}."
    )
    return found("likely", said)


def _falls_still(s: RunEvidence) -> Finding | None:
    """From rows: few steps of a sensible size, and a loss that was falling at the end."""
    losses = list(s.losses.values())
    if s.trials is not None or len(losses) < 6 or not _is_short(s) or not 0.01 < (s.fell or 0.0) < 0.5:
        return None
    third = len(losses) // 3
    early, middle, late = (statistics.fmean(part) for part in (losses[:third], losses[third:-third], losses[-third:]))
    if not (early > middle > late or late < 0.95 * early) or not flows(s):
        return None
    parts = ", ".join(map(number, (early, middle, late)))
    return found("likely", f"After {s.steps} steps the loss was still falling: {parts} by thirds.")


def _weights_shrink(s: RunEvidence) -> Finding | None:
    """Most weight matrices shrink."""
    ends = _end_norms(s)
    shrunk = {name: ratio for name, ratio in ends.items() if ratio < WEIGHTS_SHRUNK}
    gone = [name for name, ratio in shrunk.items() if ratio < WEIGHTS_GONE]
    if not (len(gone) > len(ends) / 2 or (len(shrunk) > len(ends) / 2 and not s.learned)):
        return None
    said = (
        f"{len(shrunk)} of {len(ends)} weight matrices shrank, to {number(min(shrunk.values()))} of "
        f"their initial norm; weight decay is {number(max(s.decays, default=0.0))}."
    )
    return found("certain", said, modules=map(s.owner, shrunk))


def _end_norms(s: RunEvidence) -> dict[str, float]:
    """Weight matrix of a layer → its last norm relative to its first."""
    layers = {m["name"] for m in s.leaves if m.get("kind") in WEIGHTED_KINDS}
    matrices = {p["name"] for p in s.parameters if len(p["shape"] or []) > 1 and s.owner(p["name"]) in layers}
    return {
        name: steps[max(steps)] / steps[min(steps)]
        for name, steps in s.series("weight_norm").items()
        if name in matrices and len(steps) > 1 and steps[min(steps)] > 0
    }


def _decays_no_more(s: RunEvidence) -> Finding | None:
    """A copy without weight decay learns one batch further; a usual decay is not too strong if a lower rate helps."""
    if s.learned or s.helps("no decay") is None:
        return None
    if max(s.decays, default=0.0) <= USUAL_DECAY and s.helps("0.1", "0.01"):
        return None
    said = s.compared("no decay", "without weight decay")
    return found("certain", said, f"Weight decay is {number(max(s.decays, default=0.0))}.")


def _decay_dominates(s: RunEvidence) -> Finding | None:
    """Not in a run that may have learned, whose steps become small as the rate falls."""
    pulled = _pulled(s) if s.learned is False and (s.step_size or 0.0) < LARGE_STEP else None
    if pulled is None or pulled < DECAY_SHARE:
        return None
    share, decay = number(pulled), number(max(s.decays))
    return found("likely", f"Weight decay alone is {share} of what a step changes; weight decay is {decay}.")


def _pulled(s: RunEvidence) -> float | None:
    """Rate times weight decay, relative to the median ‖ΔW‖/‖W‖ of weight matrices after the first steps.

    Where an optimiser adds the decay to the gradient and then divides by its size, this says nothing.
    """
    pulls = [
        group.get("weight_decay", 0.0) * group.get("lr", 0.0)
        for one in s.facts.get("optimisers", [])
        for group in one["groups"]
        if one["type"] in _DECOUPLED or group.get("decoupled_weight_decay")
    ]
    later = [value for steps in s.update_ratios for step, value in steps.items() if step >= EARLY]
    usual = statistics.median(later or [0.0])
    return max(pulls) / usual if pulls and usual > 0 else None


def _much_dropout(s: RunEvidence) -> Finding | None:
    dropped = [m for m in s.leaves if (m.get("drops") or 0.0) > 0.8]
    if s.learned or not dropped:
        return None
    said = f"Dropout leaves {number(100 * (1 - max(m['drops'] for m in dropped)))} % of what enters it."
    return found("likely" if s.failed else "note", said, modules=[m["name"] for m in dropped])


def _nothing_bends(s: RunEvidence) -> Finding | None:
    """Consecutive weight matrices without a non-linearity, in a run that failed."""
    pairs = s.facts.get("bare_pairs") or []
    layers = sum(m.get("kind") in WEIGHTED_KINDS for m in s.leaves)
    whole = len(pairs) >= layers - 1 or (not s.facts.get("bends", True) and layers > 2)
    if not pairs or not (s.failed or whole):
        return None
    end, level = (": the network is one linear map.", "likely") if whole else (".", "note")
    said = f"Nothing bends between {len(pairs)} pairs of layers that follow each other{end}"
    return found(level, said, modules=map(s.owner, itertools.chain(*pairs)))


def _rounded_away(s: RunEvidence) -> Finding | None:
    """Parameters of low precision that get a gradient and a step, and hardly change."""
    low = [p["name"] for p in s.parameters if p.get("dtype") in ("bfloat16", "float16") and len(p["shape"] or []) > 1]
    shares = _typical([_share_of_step(s, name) for name in low])
    lost = [step for step, share in shares.items() if share < _LOST]
    if len(lost) < max(EARLY, 0.8 * len(shares)):
        return None
    said = (
        f"In {len(lost)} of {len(shares)} watched steps {len(low)} weight matrices in 16 bits change by "
        f"{number(100 * statistics.median(shares.values()))} % of rate times gradient, in the median."
    )
    return found("certain" if s.failed else "likely", said, modules=map(s.owner, low))


def _share_of_step(s: RunEvidence, name: str) -> dict[int, float]:
    """step → ‖ΔW‖ of a weight matrix relative to rate times gradient, which SGD takes, or more with momentum."""
    kinds = {one["type"] for one in s.facts.get("optimisers", [])}
    rate = max([0.0, *(group.get("lr") or 0.0 for one in s.facts.get("optimisers", []) for group in one["groups"])])
    ratios, norms, grads = (
        s.series(kind).get(name, {}) for kind in ("update_ratio", "weight_norm", "weight_grad_norm")
    )
    if kinds != {"SGD"}:  # all or nothing: other optimisers divide by the size of gradients
        return {step: ratio / _LOST_STEP for step, ratio in ratios.items() if grads.get(step)}
    return {
        step: ratio * norms[step] / (rate * grads[step]) for step, ratio in ratios.items() if rate * grads.get(step, 0)
    }


PACE_FAULTS = (
    Diagnosis(
        name="over_regularised",
        of_degree=True,
        signs=(_weights_shrink, _decays_no_more, _decay_dominates, _much_dropout),
        asked=lambda s: not (s.learned and s.trials is not None),
        fits=("no decay",),
        short="Weight decay, penalty or dropout so strong that the data no longer matter.",
        measured=(
            f"Most weight matrices shrink below {WEIGHTS_SHRUNK:.2g} of their initial norm (below {WEIGHTS_GONE:g} of "
            f"it whatever the loss says), weight decay makes up more than {DECAY_SHARE:g} of what a step changes, or "
            "dropout leaves less than a fifth, and the run did not learn; or a copy without weight decay comes "
            f"{HELPS:g} of the way further in fifty steps on one batch (for a decay up to {USUAL_DECAY:g}: and a lower "
            "rate does not)."
        ),
        why="The penalty outweighs the data, and the network answers with the average.",
        remedy="Lower weight decay (1e-4 for SGD, 1e-2 for AdamW) or dropout (0.1–0.5).",
        reference="Krogh & Hertz (1991), A simple weight decay can improve generalization",
        hides_pace=True,
    ),
    Diagnosis(
        name="lr_too_high",
        of_degree=True,
        signs=(_slower_learns, _outrageous_steps, _large_steps, _units_died, _loss_grew, _moved_in_vain),
        asked=lambda s: s.trial("traced_start", "first_broken") is None,
        fits=("0.1", "0.01"),
        role="pace",
        consequences=SYMPTOMS,
        short="Steps too large for the curvature.",
        measured=(
            f"A tenth of the rate, or a hundredth, comes {HELPS:g} of the way further in fifty steps on one batch. "
            f"Without a batch the run failed, and a step changes weights by more than {100 * LARGE_STEP:g} % of their "
            f"norm or the loss grows {LOSS_GREW:g}-fold; or the first steps change weights by more than "
            f"{OUTRAGEOUS:g} times their norm ({3 * OUTRAGEOUS:g} times, if it learned). Or, if nothing else is found, "
            f"all steps of a run that failed move weights by {_FAR:g} times their norm, the first by {USUAL_STEP:g}."
        ),
        why="Steps beyond twice the inverse curvature overshoot, and each makes the loss larger.",
        remedy="Divide the learning rate by ten, or warm it up over the first steps.",
        reference=(
            "Cohen et al. (2021), Gradient descent on neural networks typically occurs at the edge "
            "of stability, arXiv:2103.00065"
        ),
    ),
    Diagnosis(
        name="missing_activation",
        signs=(_nothing_bends,),
        asked=lambda s: not s.learned,
        role="pace",
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
    ),
    Diagnosis(
        name="too_few_steps",
        of_degree=True,
        signs=(_batch_goes_further, _falls_still),
        asked=lambda s: s.steps < FEWEST_STEPS and not s.learned and s.broke is None,
        role="pace",
        consequences=frozenset({"lr_too_low", "not_learning"}),
        short="Training is sound but stops long before it could be done.",
        measured=(
            f"Fewer than {FEWEST_STEPS} steps, no result yet, and fifty steps at the run's own rate on one batch "
            f"come {FURTHER:g} of the way further; without a batch, steps above {SLOW_STEP:g} of the weights and a "
            "loss that was still falling."
        ),
        why="The loss was still falling when training stopped.",
        remedy="Train longer, or in smaller batches: more steps for the same data.",
        reference="Hoffer, Hubara & Soudry (2017), Train longer, generalize better, arXiv:1705.08741",
    ),
    Diagnosis(
        name="lr_too_low",
        of_degree=True,
        signs=(_steps_fade, _faster_learns, _clipped, _hardly_moved),
        asked=lambda s: not s.learned and s.broke is None,
        fits=("10", "100"),
        role="pace",
        consequences=frozenset({"not_learning"}),
        short="Steps far too small to get anywhere in the steps given.",
        measured=(
            "The run failed, weights moved by no more than "
            f"{FAR_MOVED:g} of their norm, and fifty steps on one batch at ten or a hundred times the rate learn what "
            "the rate itself does not. Or the run did not learn, and all steps together move freshly drawn weights by "
            f"less than {NEARLY_UNMOVED:g} of their norm."
        ),
        why="The weights end nearly where they began.",
        remedy="Multiply the learning rate by ten until the loss stops falling faster.",
        reference=(
            "Bengio (2012), Practical recommendations for gradient-based training of deep architectures, "
            "arXiv:1206.5533"
        ),
    ),
    Diagnosis(
        name="low_precision",
        signs=(_rounded_away,),
        asked=lambda s: not s.learned,
        hides_pace=True,
        short="Weights of 16 bits that steps cannot change: each update is smaller than half of the last bit.",
        measured=(
            f"In 80 % of the watched steps weight matrices of bfloat16 or float16 change by less than {_LOST:g} of "
            "rate times gradient, and the run did not learn. For optimisers other than SGD: they do not change at all."
        ),
        why="A number of bfloat16 has eight bits: what changes it by less than 0.2 % is rounded away.",
        remedy="Keep weights in float32 and compute under torch.autocast, or use an optimiser with float32 copies.",
        reference="Micikevicius et al. (2018), Mixed precision training, arXiv:1710.03740",
    ),
)
"""Causes before their symptoms."""
