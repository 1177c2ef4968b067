"""Faults of the network and of the scale of its data: branches, initial weights, streams, attention, inputs."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from sonde.analysis.diagnosis.finding import FLOW, Diagnosis, Finding, found
from sonde.analysis.diagnosis.run_evidence import WEIGHTED_KINDS, RunEvidence
from sonde.core.formatting import number

LARGE_RMS = 10.0  # RMS of inputs or targets; a mean relative to its spread
SMALL_RMS = 0.01  # RMS of inputs
UNLIKE_SPREADS = 1000.0  # spread of one feature relative to another's
IDLE_GRADIENT = 1e-7  # of the other modules' gradients
INPUT_GREW = 100.0  # the input of normalisation layers, over depth or steps
ONE_HOT_SHARE = 0.9  # share of queries that attend to one place
ONE_HOT_AT_START = 0.5  # the same at the start, where attention of a healthy network is spread
LARGE_LOGIT = 30.0  # a softmax differs from one-hot by less than e⁻³⁰ there
LARGE_GAIN, SMALL_GAIN = 3.0, 0.2  # spread of weights times √inputs; common initialisations: 0.5 to 1.5
_FAR_OFF = -10.0  # score of a first loss that is far above that of a constant answer
DEAD_AT_START = 0.9  # share of a layer's units
_FADED = 0.01  # signal at the last hidden layer relative to the first


def idle_branch(s: RunEvidence) -> Finding | None:
    """Modules without a gradient among modules that have one."""
    later = [step for step in s.watched if step >= 1]
    if len(later) < 3:
        return None
    grads: dict[str, list[float]] = {}
    for name, steps in s.series("weight_grad_norm").items():
        known = grads.setdefault(s.owner(name), [0.0] * len(later))
        for place, step in enumerate(later):
            known[place] = max(known[place], steps.get(step, 0.0))
    order = [m["name"] for m in s.leaves if m["name"] in grads]
    alive = [name for name in order if min(grads[name]) > 0]
    if not alive:
        return None
    usual = statistics.median(statistics.median(grads[name]) for name in alive)
    idle = [
        name
        for place, name in enumerate(order)
        if max(grads[name]) <= IDLE_GRADIENT * usual
        and (s.at("out_rms", name) or 0.0) > 0
        and any(other in alive for other in order[:place])
    ]
    dead = any(share == 1 for steps in s.series("dead_share").values() for share in steps.values())
    if not idle or dead:
        return None
    said = (
        f"Their weights' gradients are at most {number(max(max(grads[name]) for name in idle))} "
        f"in every watched step; others, which run before them, have {number(usual)}."
    )
    still = [name for name, steps in s.series("stream_step").items() if steps and max(steps.values()) == 0]
    more = [f"{len(still)} modules return exactly what they are given."] if still else []
    return found("idle_branch", "certain", said, *more, modules=idle)


def masked_growth(s: RunEvidence) -> Finding | None:
    """Inputs of normalisation layers that grow over depth, or over steps."""
    shapes = {m["name"]: tuple(m["input_shape"]) for m in s.leaves if m.get("kind") == "norm"}
    by_shape: dict[tuple[int, ...], list[tuple[str, float]]] = {}
    for module in s.leaves:
        name = module["name"]
        start = s.at("norm_in_rms", name)
        if name in shapes and start is not None and start > 0:
            by_shape.setdefault(shapes[name], []).append((name, start))
    for sizes in by_shape.values():
        first, last = sizes[0][1], max(size for _, size in sizes[1:]) if len(sizes) > 2 else 0.0
        if last >= INPUT_GREW * first:
            said = (
                f"What enters normalisation layers grows from {number(first)} to {number(last)} over {len(sizes)} "
                "of them, at step 0."
            )
            names = [name for name, size in sizes if size >= 10 * first]
            return found(
                "masked_growth", "certain" if last >= 10 * INPUT_GREW * first else "likely", said, modules=names
            )
    grown = {
        name: steps for name, steps in s.series("masked_growth").items() if steps and steps[max(steps)] >= INPUT_GREW
    }
    if not grown or s.learned:
        return None
    step = min(min(step for step, value in steps.items() if value >= INPUT_GREW) for steps in grown.values())
    top = max(steps[max(steps)] for steps in grown.values())
    said = f"What enters {len(grown)} normalisation layers has grown up to {number(top)} times."
    return found("masked_growth", "likely", said, modules=grown, step=step)


def attention_collapse(s: RunEvidence) -> Finding | None:
    """Attention to one place from the start, or at the end of a run that failed."""
    for when, level in (("traced_start", "certain"), ("traced_now", "likely")):
        heard = [one for one in s.trial(when, "attention") or [] if (one["max_logit"] or 0.0) >= LARGE_LOGIT]
        sharp = [
            one
            for one in heard
            if one["one_hot_share"] >= (ONE_HOT_AT_START if when == "traced_start" else ONE_HOT_SHARE)
        ]
        level = "likely" if s.learned else level
        if sharp and (s.failed or when == "traced_start"):
            top = max(sharp, key=lambda one: one["max_logit"])
            time = " at the start" if when == "traced_start" else ""
            share, reach = number(100 * top["one_hot_share"]), number(top["max_logit"])
            said = f"{share} % of queries look at one place; logits reach {reach}{time}."
            return found("attention_collapse", level, said, modules=[one["module"] for one in sharp])
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
    return found("attention_collapse", "likely", said, modules=[one[0] for one in flat], step=step)


def gain(parameter: Mapping[str, Any]) -> float | None:
    """Spread of a weight matrix times √inputs: about the factor by which a layer scales its input."""
    shape, start = parameter["shape"] or [], parameter.get("start") or {}
    if len(shape) < 2 or start.get("std") is None:
        return None
    return float(math.hypot(start["std"], start["mean"]) * math.sqrt(math.prod(shape[1:])))


def bad_init(s: RunEvidence) -> Finding | None:
    """Weights that start too large, too small or all alike."""
    layers = [m["name"] for m in s.leaves if m.get("kind") in WEIGHTED_KINDS]
    weights = [p for p in s.parameters if len(p["shape"] or []) > 1 and s.owner(p["name"]) in layers]
    if not weights:
        return None
    alike = [
        p
        for p in weights
        if (p.get("start") or {}).get("row_spread") == 0 and p["shape"][0] > 1 and s.owner(p["name"]) != layers[-1]
    ]
    constant = [p for p in alike if p["start"]["std"] < 1e-6 * abs(p["start"]["mean"])]
    if constant or (alike and not s.learned):
        alike = constant or alike
        said = "All units of these layers start with the same weights, and so stay alike."
        return found("bad_init", "certain", said, modules=[s.owner(p["name"]) for p in alike])
    return _wrong_scale(s, layers, weights) or _shut_from_the_start(s)


def _shut_from_the_start(s: RunEvidence) -> Finding | None:
    """Biases that keep the units of a layer at zero for every input in step 0."""
    if not s.failed:
        return None
    order = [m["name"] for m in s.leaves]
    for name, steps in s.series("dead_share").items():
        place = order.index(name) if name in order else 0
        if not place or steps.get(0, 0.0) < DEAD_AT_START:
            continue
        below = order[place - 1]
        starts = {len(p["shape"] or []): p.get("start") or {} for p in s.parameters if s.owner(p["name"]) == below}
        bias, size = starts.get(1, {}).get("mean"), s.at("out_rms", below)
        if bias is not None and size and -bias > 0.5 * size and -bias > 1:
            said = f"{number(100 * steps[0])} % of units are off in step 0: their biases start at {number(bias)}."
            return found("bad_init", "likely", said, modules=[below])
    return None


def _wrong_scale(s: RunEvidence, layers: list[str], weights: list[dict[str, Any]]) -> Finding | None:
    """Weights that are mostly too large or too small, confirmed by signal, first loss or a fit from default weights."""
    gains = {p["name"]: known for p in weights if (known := gain(p)) is not None and known > 0}
    large = [name for name, known in gains.items() if known > LARGE_GAIN]
    small = [name for name, known in gains.items() if known < SMALL_GAIN]
    fresh, own = s.fit("fresh"), s.fit("1")
    said = []
    if fresh is not None and own is not None and (fresh - max(own, -0.05) >= 0.1 or own < _FAR_OFF < fresh - 9):
        said = [
            f"Fifty steps on one batch come {number(fresh)} of the way from default weights, {number(own)} from these."
        ]
    helped = bool(said)
    begun = s.score_of(s.trial("loss_start"))
    far = begun is not None and begun < _FAR_OFF
    if far:
        first, trivial = s.trial("loss_start"), s.trial("loss", "trivial")
        said.append(f"The first loss is {number(first)}, that of a constant {number(trivial)}.")
    if len(large) > len(gains) / 2 and (far or (not s.learned and (helped or begun is None))):
        top = number(max(gains[name] for name in large))
        level = "likely" if begun is None else "certain"
        return found("bad_init", level, f"Weights are up to {top}/√inputs.", *said, modules=map(s.owner, large))
    sharp = [
        one
        for one in s.trial("traced_start", "attention") or []
        if one["one_hot_share"] >= ONE_HOT_AT_START and (one["max_logit"] or 0.0) >= LARGE_LOGIT
    ]
    if sharp and large:
        top = number(max(gains[name] for name in large))
        said = [f"Weights are up to {top}/√inputs, and attention is one-hot from the start."]
        return found("bad_init", "likely", *said, modules=map(s.owner, large))
    signal = [v for name in layers[:-1] if (v := s.at("out_rms", name)) is not None]
    fades = len(signal) > 1 and signal[-1] < _FADED * signal[0]
    if fades:
        said.append(f"The signal falls from {number(signal[0])} to {number(signal[-1])} over {len(signal)} layers.")
    if len(small) > len(gains) / 2 and s.failed and (helped or fades):
        low = number(min(gains[name] for name in small))
        level = "certain" if helped else "likely"
        return found("bad_init", level, f"Weights are as small as {low}/√inputs.", *said, modules=map(s.owner, small))
    if helped and s.failed and (own or 0.0) < _FAR_OFF:
        return found("bad_init", "likely", *said, modules=layers)
    return None


def _inputs(s: RunEvidence) -> list[dict[str, Any]]:
    known = s.trial("inputs") or s.facts.get("inputs") or []
    return [one for one in known if str(one.get("dtype", "")).startswith(("float", "bfloat")) and one.get("rms")]


def unnormalised_input(s: RunEvidence) -> Finding | None:
    """Inputs far from mean 0 and spread 1, in a run that failed."""
    first = next((m for m in s.leaves if m.get("kind") is not None), None)
    if s.learned or not (s.failed or s.trials) or first is None or first.get("kind") in ("norm", "embedding"):
        return None
    more = _gain(s, "standardised", "standardised inputs")
    for one in _inputs(s):
        offset = one.get("feature_offset") or 0.0
        unlike = (one.get("feature_std_max") or 0.0) / (one.get("feature_std_min") or 1.0)
        if not (s.failed or more) and one["rms"] < 10 * LARGE_RMS:
            continue
        if one["rms"] < SMALL_RMS and more:
            said = f"Inputs have an RMS of {number(one['rms'])}."
            return found("unnormalised_input", "certain", said, *more, modules=[first["name"]])
        if one["rms"] > LARGE_RMS or (offset > LARGE_RMS and one["rms"] > 1) or unlike > UNLIKE_SPREADS:
            said = (
                f"Inputs have an RMS of {number(one['rms'])} and a mean up to {number(offset)} times its "
                f"feature's spread; spreads differ by a factor of {number(unlike)}."
            )
            return found("unnormalised_input", "certain" if more else "likely", said, *more, modules=[first["name"]])
    return None


def unnormalised_target(s: RunEvidence) -> Finding | None:
    """Regression targets that are large, in a run that failed."""
    targets = s.targets
    more = _gain(s, "scaled targets", "standardised targets")
    if not (s.failed or (more and not s.learned)):
        return None
    if not targets and s.trials is None:
        return _far_targets(s)
    if targets.get("kind", "real") != "real" or (targets.get("rms") or 0.0) <= LARGE_RMS:
        return None
    if not s.trial("targets") and not str(targets.get("dtype", "")).startswith("float"):
        return None
    said = f"Targets have an RMS of {number(targets['rms'])} and reach {number(targets['max'])}."
    return found("unnormalised_target", "certain" if more else "likely", said, *more)


def _far_targets(s: RunEvidence) -> Finding | None:
    """From rows: a first loss that is much larger than the first outputs shows large targets."""
    last = s.leaves[-1]["name"] if s.leaves else ""
    size, loss = s.at("out_rms", "(model)") or s.at("out_rms", last), s.losses.get(0)
    if not s.is_distance or loss is None or size is None or loss <= 0:
        return None
    apart = math.sqrt(loss) if "MseLoss" in s.facts["loss_ops"] else loss
    if apart <= LARGE_RMS or size > apart / 3:
        return None
    said = f"The first outputs have an RMS of {number(size)} and are {number(apart)} away from their targets."
    return found("unnormalised_target", "likely", said)


def _gain(s: RunEvidence, fit: str, words: str) -> list[str]:
    """A sentence, if one batch is learned with this change and not without it."""
    with_it, without = s.fit(fit), s.fit("1")
    if with_it is None or without is None or with_it < 0.5 or with_it - max(without, 0.0) < 0.2:
        return []
    return [f"Fifty steps on one batch come {number(with_it)} of the way with {words}, {number(without)} without."]


NETWORK_FAULTS = (
    Diagnosis(
        idle_branch,
        short="A residual or parallel branch that contributes nothing and cannot start to.",
        measured=(
            f"The gradient of its weights is zero (below {number(IDLE_GRADIENT, 1)} of the others') in every watched "
            "step after the first, while modules that run before it have one."
        ),
        why="The weights of the branch never change, and the network is as deep as if it were not there.",
        remedy="Make the gate or gain that closes the branch a parameter, and start it where its gradient is not zero.",
        reference="Bachlechner et al. (2021), ReZero is all you need, arXiv:2003.04887",
        explains=frozenset({"vanishing_gradient"}),
        hides_pace=True,
    ),
    Diagnosis(
        unnormalised_target,
        short="Regression targets on a scale that the network cannot reach.",
        measured=(
            f"Targets with an RMS above {LARGE_RMS:g}, and the run failed; with a batch, fifty steps learn the "
            "standardised targets and not these. Where targets are not seen: first outputs that are "
            f"more than {LARGE_RMS:g}, and three times their size, away from them."
        ),
        why="Errors, gradients and the right step size grow with the targets.",
        remedy="Standardise the targets, and scale predictions back.",
        reference="van Hasselt et al. (2016), Learning values across many orders of magnitude, arXiv:1602.07714",
        explains=frozenset({"exploding_gradient", "nan_origin", "lr_too_low", "rank_collapse", "loss_spike"}),
    ),
    Diagnosis(
        unnormalised_input,
        short="Inputs on a scale, or with an offset, that the network cannot work with.",
        measured=(
            f"Inputs with an RMS above {LARGE_RMS:g}, a feature whose mean is {LARGE_RMS:g} times its spread, or "
            f"features whose spreads differ by more than {UNLIKE_SPREADS:g}, and the run failed; or an RMS below "
            f"{SMALL_RMS:g} where one batch is learned with standardised inputs alone."
        ),
        why=(
            "Large or one-sided inputs saturate or kill units, and make the loss steep in one direction "
            "and flat in all others."
        ),
        remedy="Standardise each input feature to mean 0 and spread 1, with the training set's statistics.",
        reference="LeCun, Bottou, Orr & Müller (1998), Efficient BackProp",
        explains=FLOW | {"nan_origin", "lr_too_low", "loss_spike"},
    ),
    Diagnosis(
        masked_growth,
        short="A residual stream that grows by orders of magnitude over depth, hidden by normalisation layers.",
        measured=(
            f"Inputs of normalisation layers of one shape grow {INPUT_GREW:g}-fold from the first to the last, or over "
            "the steps."
        ),
        why="Early blocks are drowned in the sum, and what later blocks add no longer matters.",
        remedy="Scale the last layer of each branch by 1/√(number of blocks), the same for every block.",
        reference=(
            "De & Smith (2020), Batch normalization biases residual blocks towards the identity function, "
            "arXiv:2002.10444"
        ),
        explains=frozenset({"vanishing_gradient", "exploding_gradient"}),
    ),
    Diagnosis(
        bad_init,
        short="Initial weights of the wrong scale, or all equal.",
        measured=(
            f"Weights whose spread times √inputs is above {LARGE_GAIN:g} or below {SMALL_GAIN:g}, with a signal that "
            "grows or fades on its way or a first loss far above that of a constant; all units of a hidden layer "
            f"alike; biases that keep {100 * DEAD_AT_START:g} % of a layer's units off in step 0; or default weights "
            "learn one batch where these do not."
        ),
        why="Signal and gradient grow or shrink by the same factor in each layer.",
        remedy=(
            "Draw weights with variance 2/inputs before ReLU, 1/inputs otherwise, and zero biases; "
            "or leave PyTorch's defaults."
        ),
        reference="He et al. (2015), Delving deep into rectifiers, arXiv:1502.01852",
        explains=FLOW | {"nan_origin", "attention_collapse", "lr_too_low"},
    ),
    Diagnosis(
        attention_collapse,
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
