"""Faults of the task: targets, loss and output that do not fit each other, inputs and targets out of scale."""

import math
from typing import Any

from sonde.analysis.diagnosis.finding import Finding, found
from sonde.analysis.diagnosis.signs import BINARY, CLASSES, LINEAR, Signs
from sonde.core.formatting import number

SEVERAL = 16  # samples from which a batch of one answer says something
OUT_OF_REACH = 0.1  # of the way from the trivial to the lowest loss, that the output's range must not cost
OUT_OF_BOUNDS = 4.0  # squared distance that numbers between −1 and 1 can have
BELOW_ZERO = -2.0  # of a cross-entropy, beyond what a bonus could take off
SMALL = 0.01  # RMS of inputs
PAIRS = frozenset({"T", "Transpose", "Mm", "Bmm", "Cdist"})  # operations of losses that compare samples on purpose
LARGE = 10.0  # RMS of inputs or targets; a mean relative to its spread
UNLIKE = 1000.0  # spread of one feature relative to another's
AMONG_CLASSES = ("classes", "one-hot", "labels", "binary")


def wrong_label_shape(s: Signs) -> Finding | None:
    """Targets that broadcast against the output."""
    if s.trials is None:
        return _broadcasts(s)
    if not s.trial("loss", "ignores_pairing"):
        return None
    shapes = f"{tuple(s.trial('output', 'shape'))} against {tuple(s.trial('targets', 'shape'))}"
    said = f"The loss is the same whichever target belongs to which sample; output and target have the shapes {shapes}."
    return found("wrong_label_shape", "certain", said)


def _broadcasts(s: Signs) -> Finding | None:
    """From the operations of the loss: one output a sample became as many as there are samples, each way."""
    shape, largest = s.facts.get("output_shape") or [], s.facts.get("loss_shape") or []
    ops = set(s.facts.get("loss_ops") or [])
    if len(shape) != 2 or shape[1] != 1 or shape[0] < 2 or s.learned or ops & PAIRS:
        return None
    if largest != [shape[0], shape[0]]:
        return None
    said = f"Outputs of shape {tuple(shape)} become {tuple(largest)} in the loss: each is compared with every target."
    return found("wrong_label_shape", "certain" if s.failed else "likely", said)


def wrong_loss(s: Signs) -> Finding | None:
    """A loss that asks for other answers than the targets."""
    kind = s.trial("targets", "kind")
    if s.trials is None:
        return _below_zero(s)
    if s.trial("loss", "ignores_pairing"):
        return None
    if s.trial("loss", "over_the_batch"):
        said = (
            "Raising one class for all samples changes nothing: the softmax runs over the batch, not over the classes."
        )
        return found("wrong_loss", "certain", said)
    away = s.trial("loss", "pushes_away")
    if away is not None and away > 0.9 and (s.failed or kind in AMONG_CLASSES):
        said = f"Its gradient moves {number(100 * away)} % of outputs away from their targets: the sign is wrong."
        return found("wrong_loss", "certain", said)
    if s.trial("loss", "unbounded"):
        said = "It falls without end as the right output grows: raw scores where it expects log-probabilities."
        return found("wrong_loss", "certain", said)
    broken = s.trial("traced_start", "first_broken")
    if (
        broken is not None
        and broken["module"] == "the loss"
        and broken["operation"] in ("log", "log1p", "sqrt", "pow")
        and (broken["smallest_input"] or 0.0) < 0
    ):
        said = (
            f"It takes the {broken['operation']} of outputs as low as {number(broken['smallest_input'])}, "
            "which it is not made for."
        )
        return found("wrong_loss", "likely", said)
    if not s.failed:
        return None
    if s.trial("loss", "is_improper"):
        said = (
            "Where three targets in ten are 1 it asks for an answer that is neither 0.3 nor its logit: "
            "an absolute error on yes and no."
        )
        return found("wrong_loss", "likely", said)
    if s.trial("loss", "is_quadratic") and kind in ("classes", "one-hot", "labels"):
        many = (s.trial("output", "shape") or [0])[-1]
        if many > 1:
            return found(
                "wrong_loss",
                "likely",
                f"It is a squared error, on targets that name classes ({many} outputs).",
            )
    return None


def _below_zero(s: Signs) -> Finding | None:
    """From rows: a cross-entropy far below zero has the wrong sign, or was given no logarithms."""
    ops = set(s.facts.get("loss_ops") or [])
    if not ops & (CLASSES | BINARY) or s.last_loss is None or s.last_loss > BELOW_ZERO:
        return None
    raw = "NllLoss" in ops and not ops & {"LogSoftmax", "Log"} and s.facts.get("output_op") not in ("LogSoftmax", "Log")
    why = "it takes raw scores for log-probabilities" if raw else "its sign is wrong"
    return found("wrong_loss", "certain", f"A cross-entropy ends at {number(s.last_loss)}: {why}.")


def wrong_output_activation(s: Signs) -> Finding | None:
    """A last activation that cannot give what the loss asks for; that of an encoder need not, which a head follows."""
    if {*(s.facts.get("loss_ops") or []), *(s.trial("output", "operations_after") or [])} & {*LINEAR}:
        return None
    operation = str(s.trial("output", "operation") or s.facts.get("output_op") or "")
    floor, trivial, reach = (s.trial("loss", key) for key in ("floor", "trivial", "floor_in_range"))
    modules = [m["name"] for m in s.leaves[-1:] if m.get("kind") == "activation"]
    bounded = operation in ("Softmax", "Sigmoid", "Tanh", "Relu", "LogSoftmax", "Softplus", "Threshold")
    known = None not in (floor, trivial, reach)
    if bounded and known and trivial > floor and reach - floor > OUT_OF_REACH * (trivial - floor):
        said = (
            f"With any outputs the loss falls to {number(floor)}, with those of the last activation "
            f"({operation.lower()}) to no less than {number(reach)}; a constant gives {number(trivial)}."
        )
        return found("wrong_output_activation", "certain", said, modules=modules)
    beyond = _out_of_bounds(s, operation)
    if beyond:
        return found("wrong_output_activation", "certain", beyond, modules=modules)
    shape, after = s.facts.get("output_shape") or [], s.facts.get("loss_ops") or []
    own = "LogSoftmax" in after
    said = ""
    if s.trial("output", "sums_over_batch"):
        said = "The softmax runs over the samples of the batch, not over the outputs of a sample."
    elif operation == "Softmax" and shape and shape[-1] == 1:
        said = "A softmax over one unit is 1 whatever it is given."
    elif operation in ("Softmax", "Sigmoid", "Tanh") and own:
        said = f"The model ends in {operation.lower()}, and the loss applies a softmax of its own."
    elif operation == "Sigmoid" and "BinaryCrossEntropyWithLogits" in after:
        said = "The model ends in a sigmoid, and the loss applies another."
    if said:
        return found("wrong_output_activation", "certain", said, modules=modules)
    if operation == "Softmax" and "BinaryCrossEntropy" in after and s.failed and s.trials is None:
        said = "A softmax makes the outputs of a sample compete, and the loss judges each by itself."
        return found("wrong_output_activation", "likely", said, modules=modules)
    if operation in ("Relu", "Threshold") and (
        own or "NllLoss" in after or s.trial("targets", "kind") in ("classes", "one-hot")
    ):
        said = "Class scores end in ReLU: a class below zero gets no gradient."
        return found("wrong_output_activation", "likely", said, modules=modules)
    return None


def _out_of_bounds(s: Signs, operation: str) -> str:
    """A distance that outputs between −1 and 1 could not have from targets of their range."""
    if operation not in ("Softmax", "Sigmoid", "Tanh") or not s.is_distance or s.trials is not None:
        return ""
    if s.last_loss is None or s.last_loss <= OUT_OF_BOUNDS:
        return ""
    return (
        f"The last activation ({operation.lower()}) stays between −1 and 1, and the loss, a distance, at "
        f"{number(s.last_loss)}: the targets lie outside."
    )


def wrong_labels(s: Signs) -> Finding | None:
    """Targets that are constant, or that have nothing to do with the inputs."""
    targets = s.trial("targets") or next(iter(s.facts.get("targets", [])), None) or {}
    samples = s.trial("samples") or next(iter(targets.get("shape") or [0]), 0)
    outputs = s.trial("output", "shape") or s.facts.get("output_shape") or []
    if samples >= SEVERAL and targets.get("std") == 0:
        several = f", where there are {outputs[-1]} outputs" if len(outputs) > 1 and outputs[-1] > 1 else ""
        said = f"All targets of a batch of {samples} are {number(targets['mean'])}{several}."
        return found("wrong_labels", "certain", said)
    near, score = s.trial("neighbours"), s.score
    if targets.get("kind") == "real":
        return _unrelated_numbers(s)
    alone = max((known for known in (s.fit("1"), s.fit("10")) if known is not None), default=None)
    of_classes = targets.get("kind") in ("classes", "one-hot", "binary")
    if near is None or not of_classes or alone is None or score is None or s.steps < 100:
        return None
    noise = 2 * (max(near["by_chance"], 0.25) / near["n"]) ** 0.5
    if alone > 0.5 and score < 0.1 and abs(s.fell or 0.0) < 0.2 and near["agree"] < near["by_chance"] + noise:
        said = (
            f"One batch is learned by heart in fifty steps (to {number(alone)} of the way), the run "
            f"is at {number(score)}; nearest inputs share a label in {number(100 * near['agree'])} "
            f"% of cases, any two in {number(100 * near['by_chance'])} %."
        )
        return found("wrong_labels", "likely", said)
    return None


def _unrelated_numbers(s: Signs) -> Finding | None:
    """Numbers that neither a nearest input nor a straight line foretells, though they are learned by heart."""
    near = s.trial("relation")
    alone = max((known for known in (s.fit("1"), s.fit("10")) if known is not None), default=None)
    if not near or "n" not in near or alone is None or s.score is None or s.steps < 100:
        return None
    noise = 2 / near["n"] ** 0.5
    unrelated = max(near["nearest"], near["line"]) < noise
    if alone > 0.5 and s.score < 0.1 and abs(s.fell or 0.0) < 0.2 and unrelated:
        said = (
            f"One batch is learned by heart in fifty steps (to {number(alone)} of the way), the run is at "
            f"{number(s.score)}; targets of nearest inputs correlate by {number(near['nearest'])}, and a line through "
            f"the others foretells a target with a correlation of {number(near['line'])} (n = {near['n']})."
        )
        return found("wrong_labels", "likely", said)
    return None


def _inputs(s: Signs) -> list[dict[str, Any]]:
    known = s.trial("inputs") or s.facts.get("inputs") or []
    return [one for one in known if str(one.get("dtype", "")).startswith(("float", "bfloat")) and one.get("rms")]


def unnormalised_input(s: Signs) -> Finding | None:
    """Inputs far from mean 0 and spread 1, in a run that failed."""
    first = next((m for m in s.leaves if m.get("kind") is not None), None)
    if s.learned or not (s.failed or s.trials) or first is None or first.get("kind") in ("norm", "embedding"):
        return None
    more = _gain(s, "standardised", "standardised inputs")
    for one in _inputs(s):
        offset = one.get("feature_offset") or 0.0
        unlike = (one.get("feature_std_max") or 0.0) / (one.get("feature_std_min") or 1.0)
        if not (s.failed or more) and one["rms"] < 10 * LARGE:
            continue
        if one["rms"] < SMALL and more:
            said = f"Inputs have an RMS of {number(one['rms'])}."
            return found("unnormalised_input", "certain", said, *more, modules=[first["name"]])
        if one["rms"] > LARGE or (offset > LARGE and one["rms"] > 1) or unlike > UNLIKE:
            said = (
                f"Inputs have an RMS of {number(one['rms'])} and a mean up to {number(offset)} times its "
                f"feature's spread; spreads differ by a factor of {number(unlike)}."
            )
            return found("unnormalised_input", "certain" if more else "likely", said, *more, modules=[first["name"]])
    return None


def unnormalised_target(s: Signs) -> Finding | None:
    """Regression targets that are large, in a run that failed."""
    targets = s.trial("targets") or next(iter(s.facts.get("targets", [])), None) or {}
    more = _gain(s, "scaled targets", "standardised targets")
    if not (s.failed or (more and not s.learned)):
        return None
    if not targets and s.trials is None:
        return _far_targets(s)
    if targets.get("kind", "real") != "real" or (targets.get("rms") or 0.0) <= LARGE:
        return None
    if not s.trial("targets") and not str(targets.get("dtype", "")).startswith("float"):
        return None
    said = f"Targets have an RMS of {number(targets['rms'])} and reach {number(targets['max'])}."
    return found("unnormalised_target", "certain" if more else "likely", said, *more)


def _far_targets(s: Signs) -> Finding | None:
    """From rows: a first distance that is much larger than the first outputs is the size of the targets."""
    last = s.leaves[-1]["name"] if s.leaves else ""
    size, loss = s.at("out_rms", "(model)") or s.at("out_rms", last), s.losses.get(0)
    if not s.is_distance or loss is None or size is None or loss <= 0:
        return None
    apart = math.sqrt(loss) if "MseLoss" in s.facts["loss_ops"] else loss
    if apart <= LARGE or size > apart / 3:
        return None
    said = f"The first outputs have an RMS of {number(size)} and are {number(apart)} away from their targets."
    return found("unnormalised_target", "likely", said)


def _gain(s: Signs, fit: str, words: str) -> list[str]:
    """A sentence where one batch is learned with this change and not without it."""
    with_it, without = s.fit(fit), s.fit("1")
    if with_it is None or without is None or with_it < 0.5 or with_it - max(without, 0.0) < 0.2:
        return []
    return [f"Fifty steps on one batch come {number(with_it)} of the way with {words}, {number(without)} without."]
