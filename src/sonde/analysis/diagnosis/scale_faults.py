"""Faults of scale: initial weights, inputs, targets."""

import math
import operator
from collections.abc import Mapping
from typing import Any

from sonde.analysis.diagnosis.finding import LEVELS, Diagnosis, Finding, found
from sonde.analysis.diagnosis.network_faults import ONE_HOT_AT_START, sharp_attention
from sonde.analysis.diagnosis.run_evidence import DONE, POLICY_OPS, RunEvidence
from sonde.analysis.diagnosis.run_record import BINARY_LOSSES, CLASS_LOSSES, LINEAR_OPS, WEIGHTED_KINDS
from sonde.core.formatting import number

LARGE_RMS = 10.0  # RMS of inputs or targets; a mean relative to its spread
SMALL_RMS = 0.01  # RMS of inputs
OFFSET_RMS = 2.0  # RMS of inputs from which a mean far beyond its spread matters: not that of a margin's pixels
UNLIKE_SPREADS = 1000.0  # spread of one feature relative to another's
LARGE_GAIN, SMALL_GAIN = 3.0, 0.2  # spread of weights times √inputs; common initialisations: 0.5 to 1.5
_FAR_LOSS = 3.0  # first loss relative to that of a constant answer
_OUTRAGEOUS_LOSS = 10.0  # the same, from which even a run that learned had to recover
_FAR_OFF = -10.0  # score of a first loss that is far above that of a constant answer
_OF_OTHERS = CLASS_LOSSES | BINARY_LOSSES | POLICY_OPS | {*LINEAR_OPS}  # operations of losses that are no distance
DEAD_AT_START = 0.9  # share of a layer's units
_FADED = 0.01  # signal at the last hidden layer relative to the first


def gain(parameter: Mapping[str, Any]) -> float | None:
    """Spread of a weight matrix times √inputs: about the factor by which a layer scales its input."""
    shape, start = parameter["shape"] or [], parameter.get("start") or {}
    if len(shape) < 2 or start.get("std") is None:
        return None
    return float(math.hypot(start["std"], start["mean"]) * math.sqrt(math.prod(shape[1:])))


def _layers(s: RunEvidence) -> list[str]:
    return [m["name"] for m in s.leaves if m.get("kind") in WEIGHTED_KINDS]


def _weights(s: RunEvidence) -> list[dict[str, Any]]:
    """Weight matrices of layers."""
    layers = {*_layers(s)}
    return [p for p in s.parameters if len(p["shape"] or []) > 1 and s.owner(p["name"]) in layers]


def _units_alike(s: RunEvidence) -> list[dict[str, Any]]:
    last = _layers(s)[-1:]
    hidden = [p for p in _weights(s) if p["requires_grad"] and p["shape"][0] > 1 and [s.owner(p["name"])] != last]
    hidden = [p for p in hidden if len(p["shape"]) < 3 or p["shape"][1] > 1]  # not of one input each
    return [p for p in hidden if (p.get("start") or {}).get("row_spread") == 0]


def _all_alike(s: RunEvidence) -> Finding | None:
    """Units of a hidden layer that start with the same weights."""
    alike = _units_alike(s)
    same = [p for p in alike if p["start"]["std"] < 1e-6 * abs(p["start"]["mean"])]
    constant = same if len(alike) < len(_weights(s)) - 1 else alike
    if not constant and not (alike and s.failed):  # zeros in front of a sum may be meant
        return None
    said = "All units of these layers start with the same weights, and so stay alike."
    names = map(operator.itemgetter("name"), constant or alike)
    return found("certain", said, modules=map(s.owner, names))


def _shut_from_the_start(s: RunEvidence) -> Finding | None:
    """Biases that keep the units of a layer at zero for every input in step 0."""
    order = [m["name"] for m in s.leaves]
    for name, steps in s.series("dead_share").items() if s.failed and order else ():
        place = order.index(name) if name in order else 0
        below = order[place - 1]
        bias, size = _start_of_bias(s, below), s.at("out_rms", below)
        shut = place > 0 and steps.get(0, 0.0) >= DEAD_AT_START
        if shut and size and -bias > max(0.5 * size, 1.0):
            said = f"{number(100 * steps[0])} % of units are off in step 0: their biases start at {number(bias)}."
            return found("likely", said, modules=[below])
    return None


def _start_of_bias(s: RunEvidence, module: str) -> float:
    """The mean of a module's first bias; 0 where it has none."""
    starts = [p.get("start") or {} for p in s.parameters if s.owner(p["name"]) == module and len(p["shape"] or []) == 1]
    return starts[-1].get("mean") or 0.0 if starts else 0.0


def _default_weights_help(own: float | None, fresh: float | None) -> list[str]:
    """A sentence, if default weights learn one batch further than these."""
    if fresh is None or own is None or not (fresh - max(own, -0.05) >= 0.1 or own < _FAR_OFF < fresh - 9):
        return []
    return [f"On one batch, a copy comes {number(fresh)} of the way from default weights, {number(own)} from these."]


class _Scale:
    """Gains of the weight matrices of a run, and what speaks for or against them."""

    def __init__(self, s: RunEvidence) -> None:
        self.gains = {p["name"]: known for p in _weights(s) if (known := gain(p)) is not None and known > 0}
        self.large = [name for name, known in self.gains.items() if known > LARGE_GAIN]
        self.small = [name for name, known in self.gains.items() if known < SMALL_GAIN]
        self.begun = s.score_of(s.trial("loss_start"))
        self.far = self.begun is not None and self.begun < _FAR_OFF
        self.own = s.fit("1")
        self.said = _default_weights_help(self.own, s.fit("fresh"))
        self.helped = bool(self.said)
        if self.far:
            first, trivial = s.trial("loss_start"), s.trial("loss", "trivial")
            self.said.append(f"The first loss is {number(first)}, that of a constant {number(trivial)}.")

    @property
    def most_large(self) -> bool:
        return len(self.large) > len(self.gains) / 2

    @property
    def top(self) -> str:
        return f"Weights are up to {number(max(self.gains.values()))}/√inputs"


def _large_weights(s: RunEvidence) -> Finding | None:
    scale = _Scale(s)
    shows = scale.far or (not s.learned and (scale.helped or scale.begun is None))
    if not scale.most_large or not shows:
        return None
    level = "likely" if scale.begun is None else "certain"
    return found(level, f"{scale.top}.", *scale.said, modules=map(s.owner, scale.large))


def _large_attention(s: RunEvidence) -> Finding | None:
    scale = _Scale(s)
    if not scale.large or not sharp_attention(s, "traced_start", ONE_HOT_AT_START):
        return None
    said = f"{scale.top}, and attention is one-hot from the start."
    return found("likely", said, modules=map(s.owner, scale.large))


def _first_loss_far_off(s: RunEvidence) -> Finding | None:
    """Large weights of embeddings or heads: a first loss far above that of equal shares, which default weights lack."""
    chance, first = s.loss_of_chance, s.losses.get(0)
    spread = [p["name"] for p in s.parameters if (gain(p) or 0.0) > LARGE_GAIN]
    if s.audited is not None or not chance or first is None or first < _FAR_LOSS * chance or not spread:
        return None
    if _has_inputs_off(s):  # which explain it as well
        return None
    said = f"The first loss is {number(first)}, that of a constant answer {number(chance)}."
    mild = s.learned and first < _OUTRAGEOUS_LOSS * chance
    return found("note" if mild else "likely", said, *_Scale(s).said[:1], modules=map(s.owner, spread))


def _small_weights(s: RunEvidence) -> Finding | None:
    scale = _Scale(s)
    signal = [v for name in _layers(s)[:-1] if (v := s.at("out_rms", name)) is not None]
    fades = len(signal) > 1 and signal[-1] < _FADED * signal[0]
    shows = (scale.helped and not s.learned) or (fades and s.failed)
    if len(scale.small) <= len(scale.gains) / 2 or not shows:
        return None
    said = [f"Weights are as small as {number(min(scale.gains.values()))}/√inputs.", *scale.said]
    if fades:
        said.append(f"The signal falls from {number(signal[0])} to {number(signal[-1])} over {len(signal)} layers.")
    return found("certain" if scale.helped else "likely", *said, modules=map(s.owner, scale.small))


def _default_weights_learn(s: RunEvidence) -> Finding | None:
    scale = _Scale(s)
    if not scale.gains or not scale.helped or not s.failed or (scale.own or 0.0) >= _FAR_OFF:
        return None
    return found("likely", *scale.said, modules=_layers(s))


def _inputs(s: RunEvidence) -> list[dict[str, Any]]:
    known = s.trial("inputs") or s.facts.get("inputs") or []
    return [one for one in known if str(one.get("dtype", "")).startswith(("float", "bfloat")) and one.get("rms")]


def _takes_raw_inputs(s: RunEvidence) -> bool:
    """Whether the run did not learn all of it and its first layer neither normalises nor looks up its input."""
    first = _first_layer(s) or {"kind": ""}
    return (s.failed or (s.score or 0.0) < DONE) and first["kind"] not in ("norm", "embedding")


def _first_layer(s: RunEvidence) -> dict[str, Any] | None:
    return next((m for m in s.leaves if m.get("kind") is not None), None)


def _entered(s: RunEvidence) -> list[str]:
    first = _first_layer(s)
    return [] if first is None else [first["name"]]


def _small_inputs(s: RunEvidence) -> Finding | None:
    more = _compared(s, "standardised", "standardised inputs")
    for one in _inputs(s):
        if one["rms"] < SMALL_RMS and (more or (s.trials is None and s.failed)):
            said = f"Inputs have an RMS of {number(one['rms'])}."
            return found("certain" if more else "likely", said, *more, modules=_entered(s))
    return None


def _offset_and_spreads(one: Mapping[str, Any]) -> tuple[float, float]:
    """The largest mean of a feature relative to its spread, and the largest spread relative to the smallest.

    Where the largest is ordinary, small ones are features that are rarely there, such as pixels of a margin.
    """
    largest = one.get("feature_std_max") or 0.0
    unlike = largest / (one.get("feature_std_min") or 1.0) if largest > LARGE_RMS / 3 else 1.0
    return one.get("feature_offset") or 0.0, unlike


def _large_inputs(s: RunEvidence) -> Finding | None:
    more = _compared(s, "standardised", "standardised inputs")
    for one in _inputs(s):
        offset, unlike = _offset_and_spreads(one)
        if _is_off(one["rms"], offset, unlike) and (s.failed or more or one["rms"] >= 10 * LARGE_RMS):
            said = (
                f"Inputs have an RMS of {number(one['rms'])} and a mean up to {number(offset)} times its "
                f"feature's spread; spreads differ by a factor of {number(unlike)}."
            )
            level = LEVELS[bool(more) + (not s.learned)]
            return found(level, said, *more, modules=_entered(s))
    return None


def _has_inputs_off(s: RunEvidence) -> bool:
    return any(_is_off(one["rms"], *_offset_and_spreads(one)) for one in _inputs(s))


def _is_off(rms: float, offset: float, unlike: float) -> bool:
    return rms > LARGE_RMS or (offset > LARGE_RMS and rms > OFFSET_RMS) or unlike > UNLIKE_SPREADS


def _large_targets(s: RunEvidence) -> Finding | None:
    """Regression targets that are large, in a run that failed, or did not learn what their standardised twins show."""
    size = _size_of_targets(s)
    more = _compared(s, "scaled targets", "standardised targets")
    stuck = s.failed or more or (not s.learned and size >= 10 * LARGE_RMS)
    if not stuck or size <= LARGE_RMS:
        return None
    said = f"Targets have an RMS of {number(size)} and reach {number(s.targets['max'])}."
    return found("certain" if more and not s.learned else "likely", said, *more)


def _size_of_targets(s: RunEvidence) -> float:
    """The RMS of numeric targets; 0 where they are not known to be numbers."""
    numeric = s.trial("targets") or str(s.targets.get("dtype", "")).startswith("float")
    return (s.targets.get("rms") or 0.0) if numeric and s.targets.get("kind", "real") == "real" else 0.0


def _far_targets(s: RunEvidence) -> Finding | None:
    """From rows: a first loss that is much larger than the first outputs shows large targets."""
    last = s.leaves[-1]["name"] if s.leaves else ""
    size, loss = s.at("out_rms", "(model)") or s.at("out_rms", last), s.losses.get(0, 0.0)
    told = s.targets or s.trials is not None or s.is_unmoved  # then the rate is reason enough
    if told or not (s.failed and _is_of_numbers(s) and size):
        return None
    apart = math.sqrt(max(loss, 0.0)) if s.loss_ops & {"MseLoss", "Pow"} else loss
    if apart <= LARGE_RMS or size > apart / 3:
        return None
    said = f"The first outputs have an RMS of {number(size)} and are {number(apart)} away from their targets."
    return found("likely", said)


def _is_of_numbers(s: RunEvidence) -> bool:
    """Whether the loss is a distance, or takes differences and has no operation of another kind of loss."""
    return s.is_distance or ("Sub" in s.loss_ops and not s.loss_ops & _OF_OTHERS)


def _compared(s: RunEvidence, fit: str, words: str) -> list[str]:
    return [s.compared(fit, f"with {words}")] if s.helps(fit) else []


SCALE_FAULTS = (
    Diagnosis(
        name="unnormalised_target",
        of_degree=True,
        signs=(_large_targets, _far_targets),
        fits=("scaled targets",),
        consequences=frozenset({"lr_too_low"}),
        short="Regression targets on a scale that the network cannot reach.",
        measured=(
            f"Targets with an RMS above {LARGE_RMS:g}, and the run failed; with a batch, fifty steps learn the "
            "standardised targets and not these. Where targets are not seen: first outputs that are "
            f"more than {LARGE_RMS:g}, and three times their size, away from them."
        ),
        why="Errors, gradients and the right step size grow with the targets.",
        remedy="Standardise the targets, and scale predictions back.",
        reference="van Hasselt et al. (2016), Learning values across many orders of magnitude, arXiv:1602.07714",
    ),
    Diagnosis(
        name="unnormalised_input",
        of_degree=True,
        signs=(_small_inputs, _large_inputs),
        asked=_takes_raw_inputs,
        fits=("standardised",),
        consequences=frozenset({"lr_too_low"}),
        short="Inputs on a scale, or with an offset, that the network cannot work with.",
        measured=(
            f"Inputs with an RMS above {LARGE_RMS:g}, a feature whose mean is {LARGE_RMS:g} times its spread, or "
            f"features whose spreads differ by more than {UNLIKE_SPREADS:g}, and the run failed, or one batch is "
            f"learned further with standardised inputs; or an RMS below {SMALL_RMS:g} where it is learned with these "
            "alone."
        ),
        why=(
            "Large or one-sided inputs saturate or kill units, and make the loss steep in one direction "
            "and flat in all others."
        ),
        remedy="Standardise each input feature to mean 0 and spread 1, with the training set's statistics.",
        reference="LeCun, Bottou, Orr & Müller (1998), Efficient BackProp",
    ),
    Diagnosis(
        name="bad_init",
        of_degree=True,
        signs=(
            _all_alike,
            _large_weights,
            _large_attention,
            _first_loss_far_off,
            _small_weights,
            _default_weights_learn,
            _shut_from_the_start,
        ),
        fits=("fresh",),
        consequences=frozenset({"lr_too_low"}),
        short="Initial weights of the wrong scale, or all equal.",
        measured=(
            f"Weights whose spread times √inputs is above {LARGE_GAIN:g} or below {SMALL_GAIN:g}, with a signal that "
            "grows or fades on its way or a first loss far above that of a constant; all units of a hidden layer "
            f"alike (of zeros: if the run failed); biases that keep {100 * DEAD_AT_START:g} % of a layer's units off "
            "in step 0; or default weights learn one batch where these do not."
        ),
        why="Signal and gradient grow or shrink by the same factor in each layer.",
        remedy=(
            "Draw weights with variance 2/inputs before ReLU, 1/inputs otherwise, and zero biases; "
            "or leave PyTorch's defaults."
        ),
        reference="He et al. (2015), Delving deep into rectifiers, arXiv:1502.01852",
    ),
)
"""Causes before their symptoms."""
