"""Faults of the network: branches, streams, attention, axes."""

import statistics
from collections.abc import Mapping
from typing import Any

from sonde.analysis.diagnosis.finding import Diagnosis, Finding, found
from sonde.analysis.diagnosis.flow_symptoms import INPUT_GREW, norm_inputs
from sonde.analysis.diagnosis.run_evidence import RunEvidence
from sonde.core.formatting import number

IDLE_GRADIENT = 1e-7  # of the other modules' gradients
ONE_HOT_SHARE = 0.9  # share of queries that attend to one place
ONE_HOT_AT_START = 0.5  # the same at the start, where attention of a healthy network is spread
LARGE_LOGIT = 30.0  # a softmax differs from one-hot by less than e⁻³⁰ there


def _gradients_by_module(s: RunEvidence, steps: list[int]) -> dict[str, list[float]]:
    """Module → the largest norm of a gradient of its parameters, at these steps."""
    grads: dict[str, list[float]] = {}
    for name, known in s.series("weight_grad_norm").items():
        own = grads.setdefault(s.owner(name), [0.0] * len(steps))
        grads[s.owner(name)] = [max(before, known.get(step, 0.0)) for before, step in zip(own, steps, strict=True)]
    return grads


def _has_dead_layer(s: RunEvidence) -> bool:
    return any(max(steps.values(), default=0.0) == 1 for steps in s.series("dead_share").values())


def _idle(s: RunEvidence) -> Finding | None:
    """Modules without a gradient among modules that have one."""
    later = [step for step in s.watched if step >= 1]
    grads = _gradients_by_module(s, later)
    order = [m["name"] for m in s.leaves if m["name"] in grads]
    alive = [name for name in order if min(grads[name], default=0.0) > 0]
    if len(later) < 3 or not alive or _has_dead_layer(s):
        return None
    usual = statistics.median(statistics.median(grads[name]) for name in alive)
    tops = {name: max(grads[name]) for name in order[order.index(alive[0]) :]}
    return _without_gradient(s, tops, usual)


def _without_gradient(s: RunEvidence, tops: Mapping[str, float], usual: float) -> Finding | None:
    most = IDLE_GRADIENT * min(usual, 1.0)  # beside a gradient that explodes, another is small
    idle = {name: top for name, top in tops.items() if top <= most and s.at("out_rms", name)}
    if not idle:
        return None
    said = (
        f"Their weights' gradients are at most {number(max(idle.values()))} "
        f"in every watched step; others, which run before them, have {number(usual)}."
    )
    still = [name for name, steps in s.series("stream_step").items() if steps and max(steps.values()) == 0]
    more = [f"{len(still)} modules return exactly what they are given."] if still else []
    return found("certain", said, *more, modules=idle)


def _grows_over_depth(s: RunEvidence) -> Finding | None:
    """Inputs of normalisation layers of one shape that grow from the first to the last, in step 0."""
    for sizes in norm_inputs(s):
        first, last = sizes[0][1], max(size for _, size in sizes[1:])
        if last >= INPUT_GREW * first:
            said = (
                f"What enters normalisation layers grows from {number(first)} to {number(last)} over {len(sizes)} "
                "of them, at step 0."
            )
            names = [name for name, size in sizes if size >= 10 * first]
            return found("certain" if last >= 10 * INPUT_GREW * first else "likely", said, modules=names)
    return None


def _grows_over_steps(s: RunEvidence) -> Finding | None:
    """The same over the steps of a run that did not learn, unless its steps are large: then the rate is the reason."""
    grown = {
        name: steps for name, steps in s.series("masked_growth").items() if steps and steps[max(steps)] >= INPUT_GREW
    }
    if not grown or s.learned or s.has_large_steps:
        return None
    step = min(min(step for step, value in steps.items() if value >= INPUT_GREW) for steps in grown.values())
    top = max(steps[max(steps)] for steps in grown.values())
    said = f"What enters {len(grown)} normalisation layers has grown up to {number(top)} times."
    return found("likely", said, modules=grown, step=step)


def _one_hot_in_copy(s: RunEvidence) -> Finding | None:
    """Attention of a copy: to one place from the start, or at the end of a run that failed."""
    for when, share, level in (
        ("traced_start", ONE_HOT_AT_START, "likely" if s.learned else "certain"),
        ("traced_now", ONE_HOT_SHARE, "likely"),
    ):
        sharp = sharp_attention(s, when, share)
        if sharp and (s.failed or when == "traced_start"):
            top = max(sharp, key=lambda one: one["max_logit"])
            time = " at the start" if when == "traced_start" else ""
            part, reach = number(100 * top["one_hot_share"]), number(top["max_logit"])
            said = f"{part} % of queries look at one place; logits reach {reach}{time}."
            return found(level, said, modules=[one["module"] for one in sharp])
    return None


def sharp_attention(s: RunEvidence, when: str, share: float) -> list[dict[str, Any]]:
    """Attention with large logits in which so many queries look at one place."""
    known = s.trial(when, "attention") or []
    return [one for one in known if (one["max_logit"] or 0.0) >= LARGE_LOGIT and one["one_hot_share"] >= share]


def _one_hot_in_rows(s: RunEvidence) -> Finding | None:
    flat = []
    for name, steps in s.series("attention_max_logit").items():
        entropy = s.series("attention_entropy").get(name, {})
        early = [step for step in steps if step < 10 and steps[step] >= LARGE_LOGIT and entropy.get(step, 1.0) < 0.05]
        if len(early) >= 3 and 0 in early:
            flat.append((name, steps[early[0]], entropy[early[0]], early[0]))
    if not flat:
        return None
    name, largest, entropy_there, step = flat[0]
    said = f"Attention has an entropy of {number(entropy_there)} and logits up to {number(largest)} in the first steps."
    return found("likely", said, modules=[one[0] for one in flat], step=step)


def _samples_as_places(s: RunEvidence) -> Finding | None:
    """Modules that read the first axis as time, where the model has one answer for each of its entries."""
    wrong = _read_across(s, *(s.facts.get("output_shape") or [0]))
    if not wrong:
        return None
    shape = tuple(wrong[0]["input_shape"])
    said = (
        f"The model has {shape[0]} answers for a batch of {shape[0]}. These modules get the shape {shape} and read "
        "its first axis as time: samples are read as one sequence."
    )
    return found("certain" if s.failed else "likely", said, modules=[m["name"] for m in wrong])


def _read_across(s: RunEvidence, samples: int, *features: int) -> list[dict[str, Any]]:
    """Modules with batch_first=False whose input has the samples of inputs and outputs along its first axis."""
    if len(features) > 1 or {tuple(one["shape"][:1]) for one in s.facts.get("inputs", [])} != {(samples,)}:
        return []
    reading = [m for m in s.leaves if m.get("batch_first") is False and len(m["input_shape"]) == 3]
    return [m for m in reading if m["input_shape"][0] == samples and m["input_shape"][1] not in (1, samples, *features)]


NETWORK_FAULTS = (
    Diagnosis(
        name="wrong_axis",
        signs=(_samples_as_places,),
        short="A recurrent or attention module reads the samples of a batch as places of a sequence.",
        measured=(
            "A module with batch_first=False gets an input whose first axis is that of the samples, and the model has "
            "one answer per sample."
        ),
        why="Each sample is one place: its own sequence is not read, and answers depend on the other samples.",
        remedy="Make the module with batch_first=True, or transpose its input: x.transpose(0, 1).",
        reference="PyTorch documentation, torch.nn.LSTM, argument batch_first",
        hides_pace=True,
    ),
    Diagnosis(
        name="idle_branch",
        signs=(_idle,),
        short="A residual or parallel branch that contributes nothing and cannot start to.",
        measured=(
            f"The gradient of its weights is zero (below {number(IDLE_GRADIENT, 1)} of the others') in every watched "
            "step after the first, while modules that run before it have one."
        ),
        why="The weights of the branch never change, and the network is as deep as if it were not there.",
        remedy="Make the gate or gain that closes the branch a parameter, and start it where its gradient is not zero.",
        reference="Bachlechner et al. (2021), ReZero is all you need, arXiv:2003.04887",
        hides_pace=True,
    ),
    Diagnosis(
        name="masked_growth",
        signs=(_grows_over_depth, _grows_over_steps),
        short="A residual stream that grows by orders of magnitude over depth, hidden by normalisation layers.",
        measured=(
            f"Inputs of normalisation layers of one shape grow {INPUT_GREW:g}-fold from the first to the last, or over "
            "the steps."
        ),
        why="A few blocks make up almost all of the sum; what the others add hardly changes it.",
        remedy="Scale the last layer of each branch by 1/√(number of blocks), the same for every block.",
        reference=(
            "De & Smith (2020), Batch normalization biases residual blocks towards the identity function, "
            "arXiv:2002.10444"
        ),
    ),
    Diagnosis(
        name="attention_collapse",
        signs=(_one_hot_in_copy, _one_hot_in_rows),
        role="symptom",
        short="Attention logits so large that the softmax is one-hot and passes no gradient.",
        measured=(
            f"At the start {100 * ONE_HOT_AT_START:g} % of the queries give 99 % of their weight to one place, with "
            f"logits above {LARGE_LOGIT:g}; later, {100 * ONE_HOT_SHARE:g} % in a run that failed."
        ),
        why="A one-hot softmax has no slope, so what attends to what can no longer be learned.",
        remedy="Divide logits by √(head width), normalise queries and keys, and start their weights smaller.",
        reference=(
            "Zhai et al. (2023), Stabilizing transformer training by preventing attention entropy "
            "collapse, arXiv:2303.06296"
        ),
    ),
)
"""Causes before their symptoms."""
