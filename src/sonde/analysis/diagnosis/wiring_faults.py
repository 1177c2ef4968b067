"""Faults of the network itself: branches, activations, initial weights, streams, attention."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from sonde.analysis.diagnosis.finding import Finding, found
from sonde.analysis.diagnosis.signs import WEIGHTED, Signs
from sonde.core.formatting import number

IDLE = 1e-7  # of the other modules' gradients
GREW = 100.0  # the input of normalisation layers, over depth or steps
ONE_HOT = 0.9  # share of queries that look at one place; half of them at the start, where healthy ones look around
HALF = 0.5
LOGIT = 30.0  # from which softmax differs from one-hot by less than e⁻³⁰
LARGE_GAIN, SMALL_GAIN = (
    3.0,
    0.2,
)  # spread of weights times √inputs; common initialisations lie between 0.5 and 1.5
FAR_OFF = -10.0  # a first loss this many times the distance from trivial to lowest loss above the trivial one
DEAD_AT_START = 0.9  # share of a layer's units
FADED = 0.01  # signal at the last hidden layer relative to the first


def idle_branch(s: Signs) -> Finding | None:
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
        if max(grads[name]) <= IDLE * usual
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


def missing_activation(s: Signs) -> Finding | None:
    """Weight matrices in a row, in a run that failed."""
    pairs = s.facts.get("bare_pairs") or []
    layers = [m for m in s.leaves if m.get("kind") in WEIGHTED]
    whole = len(pairs) >= len(layers) - 1 or (not s.facts.get("bends", True) and len(layers) > 2)
    if not pairs or s.learned or not (s.failed or (whole and s.trials is None)):
        return None
    names = [s.owner(name) for pair in pairs for name in pair]
    said = f"Nothing bends between {len(pairs)} pairs of layers that follow each other" + (
        ": the network is one linear map." if whole else "."
    )
    return found("missing_activation", "likely" if whole else "note", said, modules=names)


def masked_growth(s: Signs) -> Finding | None:
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
        if last >= GREW * first:
            said = (
                f"What enters normalisation layers grows from {number(first)} to {number(last)} over {len(sizes)} "
                "of them, at step 0."
            )
            names = [name for name, size in sizes if size >= 10 * first]
            return found("masked_growth", "certain" if last >= 10 * GREW * first else "likely", said, modules=names)
    grown = {name: steps for name, steps in s.series("masked_growth").items() if steps and steps[max(steps)] >= GREW}
    if not grown or s.learned:
        return None
    step = min(min(step for step, value in steps.items() if value >= GREW) for steps in grown.values())
    top = max(steps[max(steps)] for steps in grown.values())
    said = f"What enters {len(grown)} normalisation layers has grown up to {number(top)} times."
    return found("masked_growth", "likely", said, modules=grown, step=step)


def attention_collapse(s: Signs) -> Finding | None:
    """Attention that looks at one place from the start, or in the end of a run that failed."""
    for when, level in (("traced_start", "certain"), ("traced_now", "likely")):
        heard = [one for one in s.trial(when, "attention") or [] if (one["max_logit"] or 0.0) >= LOGIT]
        sharp = [one for one in heard if one["one_hot_share"] >= (HALF if when == "traced_start" else ONE_HOT)]
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
        early = [step for step in steps if step < 10 and steps[step] >= LOGIT and entropy.get(step, 1.0) < 0.05]
        if len(early) >= 3 and 0 in early:
            flat.append((name, steps[early[0]], entropy[early[0]], early[0]))
    if not flat:
        return None
    name, largest, entropy_there, step = flat[0]
    said = f"Attention has an entropy of {number(entropy_there)} and logits up to {number(largest)} in the first steps."
    return found("attention_collapse", "likely", said, modules=[one[0] for one in flat], step=step)


def gain(parameter: Mapping[str, Any]) -> float | None:
    """Spread of a weight matrix times √inputs: what a layer multiplies the size of its input by, about."""
    shape, start = parameter["shape"] or [], parameter.get("start") or {}
    if len(shape) < 2 or start.get("std") is None:
        return None
    return float(math.hypot(start["std"], start["mean"]) * math.sqrt(math.prod(shape[1:])))


def bad_init(s: Signs) -> Finding | None:
    """Weights that start too large, too small or all alike."""
    layers = [m["name"] for m in s.leaves if m.get("kind") in WEIGHTED]
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


def _shut_from_the_start(s: Signs) -> Finding | None:
    """Biases that keep the units of a layer off for every input, in the first step already."""
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


def _wrong_scale(s: Signs, layers: list[str], weights: list[dict[str, Any]]) -> Finding | None:
    """Most weights too large or too small, and a signal, a first loss or default weights that show it."""
    gains = {p["name"]: known for p in weights if (known := gain(p)) is not None and known > 0}
    large = [name for name, known in gains.items() if known > LARGE_GAIN]
    small = [name for name, known in gains.items() if known < SMALL_GAIN]
    fresh, own = s.fit("fresh"), s.fit("1")
    said = []
    if fresh is not None and own is not None and (fresh - max(own, -0.05) >= 0.1 or own < FAR_OFF < fresh - 9):
        said = [
            f"Fifty steps on one batch come {number(fresh)} of the way from default weights, {number(own)} from these."
        ]
    helped = bool(said)
    begun = s.score_of(s.trial("loss_start"))
    far = begun is not None and begun < FAR_OFF
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
        if one["one_hot_share"] >= HALF and (one["max_logit"] or 0.0) >= LOGIT
    ]
    if sharp and large:
        top = number(max(gains[name] for name in large))
        said = [f"Weights are up to {top}/√inputs, and attention is one-hot from the start."]
        return found("bad_init", "likely", *said, modules=map(s.owner, large))
    signal = [v for name in layers[:-1] if (v := s.at("out_rms", name)) is not None]
    fades = len(signal) > 1 and signal[-1] < FADED * signal[0]
    if fades:
        said.append(f"The signal falls from {number(signal[0])} to {number(signal[-1])} over {len(signal)} layers.")
    if len(small) > len(gains) / 2 and s.failed and (helped or fades):
        low = number(min(gains[name] for name in small))
        level = "certain" if helped else "likely"
        return found("bad_init", level, f"Weights are as small as {low}/√inputs.", *said, modules=map(s.owner, small))
    if helped and s.failed and (own or 0.0) < FAR_OFF:
        return found("bad_init", "likely", *said, modules=layers)
    return None
