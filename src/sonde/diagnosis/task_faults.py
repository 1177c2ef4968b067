"""Faults of the task: targets, loss and output that do not fit each other, inputs and targets out of scale."""

from typing import Any

from sonde.diagnosis.evidence import Evidence
from sonde.diagnosis.finding import Finding, found
from sonde.verdicts import number

SEVERAL = 16  # samples from which a batch of one answer says something
OUT_OF_REACH = 0.1  # of the way from the trivial to the lowest loss, that the output's range must not cost
LARGE = 10.0  # RMS of inputs or targets; a mean relative to its spread
UNLIKE = 1000.0  # spread of one feature relative to another's
AMONG_CLASSES = ("classes", "one-hot", "labels", "binary")


def wrong_label_shape(e: Evidence) -> Finding | None:
    """Targets that broadcast against the output."""
    if not e.trial("loss", "ignores_pairing"):
        return None
    shapes = f"{tuple(e.trial('output', 'shape'))} against {tuple(e.trial('targets', 'shape'))}"
    said = f"The loss is the same whichever target belongs to which sample; output and target have the shapes {shapes}."
    return found("wrong_label_shape", "certain", said)


def wrong_loss(e: Evidence) -> Finding | None:
    """A loss that asks for other answers than the targets."""
    kind = e.trial("targets", "kind")
    if e.trial("loss", "ignores_pairing"):
        return None
    if e.trial("loss", "over_the_batch"):
        said = "Raising one class for all samples changes nothing: the softmax runs over the batch, not over the classes."
        return found("wrong_loss", "certain", said)
    away = e.trial("loss", "pushes_away")
    if away is not None and away > 0.9 and e.failed:
        said = f"Its gradient moves {number(100 * away)} % of outputs away from their targets: the sign is wrong."
        return found("wrong_loss", "certain", said)
    if e.trial("loss", "unbounded"):
        said = (
            "It falls without end as the right output grows: raw scores where it expects log-probabilities."
        )
        return found("wrong_loss", "certain", said)
    broken = e.trial("traced_start", "first_broken")
    if (
        broken is not None
        and broken["module"] == "the loss"
        and broken["operation"] in ("log", "log1p", "sqrt", "pow")
    ):
        if (broken["smallest_input"] or 0.0) < 0:
            said = f"It takes the {broken['operation']} of outputs as low as {number(broken['smallest_input'])}, which it is not made for."
            return found("wrong_loss", "likely", said)
    if not e.failed:
        return None
    if e.trial("loss", "is_improper"):
        said = "Where three targets in ten are 1 it asks for an answer that is neither 0.3 nor its logit: an absolute error on yes and no."
        return found("wrong_loss", "likely", said)
    if e.trial("loss", "is_quadratic") and kind in ("classes", "one-hot", "labels"):
        many = (e.trial("output", "shape") or [0])[-1]
        if many > 1:
            return found(
                "wrong_loss",
                "likely",
                f"It is a squared error, on targets that name classes ({many} outputs).",
            )
    return None


def wrong_output_activation(e: Evidence) -> Finding | None:
    """A last activation that cannot give what the loss asks for."""
    operation = e.trial("output", "operation") or e.facts.get("output_op")
    floor, trivial, reach = (e.trial("loss", key) for key in ("floor", "trivial", "floor_in_range"))
    modules = [m["name"] for m in e.leaves[-1:] if m.get("kind") == "activation"]
    if operation in ("Softmax", "Sigmoid", "Tanh", "Relu", "LogSoftmax", "Softplus", "Threshold"):
        if None not in (floor, trivial, reach) and trivial > floor:
            share = (reach - floor) / (trivial - floor)
            if share > OUT_OF_REACH:
                said = f"With any outputs the loss falls to {number(floor)}, with those of the last activation ({operation.lower()}) to no less than {number(reach)}; a constant gives {number(trivial)}."
                return found("wrong_output_activation", "certain", said, modules=modules)
    shape, after = e.facts.get("output_shape") or [], e.facts.get("loss_ops") or []
    own = "LogSoftmax" in after
    said = ""
    if e.trial("output", "sums_over_batch"):
        said = "The softmax runs over the samples of the batch, not over the outputs of a sample."
    elif operation == "Softmax" and shape and shape[-1] == 1:
        said = "A softmax over one unit is 1 whatever it is given."
    elif operation in ("Softmax", "Sigmoid", "Tanh") and own:
        said = f"The model ends in {operation.lower()}, and the loss applies a softmax of its own."
    elif operation == "Sigmoid" and "BinaryCrossEntropyWithLogits" in after:
        said = "The model ends in a sigmoid, and the loss applies another."
    if said:
        return found("wrong_output_activation", "certain", said, modules=modules)
    if operation in ("Relu", "Threshold") and (own or e.trial("targets", "kind") in ("classes", "one-hot")):
        said = "Class scores end in ReLU: a class below zero gets no gradient."
        return found("wrong_output_activation", "likely", said, modules=modules)
    return None


def wrong_labels(e: Evidence) -> Finding | None:
    """Targets that are constant, or that have nothing to do with the inputs."""
    targets = e.trial("targets") or next(iter(e.facts.get("targets", [])), None) or {}
    samples = e.trial("samples") or next(iter(targets.get("shape") or [0]), 0)
    outputs = e.trial("output", "shape") or e.facts.get("output_shape") or []
    if samples >= SEVERAL and targets.get("std") == 0:
        several = len(outputs) > 1 and outputs[-1] > 1
        said = f"All targets of a batch of {samples} are {number(targets['mean'])}{f', where there are {outputs[-1]} outputs' if several else ''}."
        return found("wrong_labels", "certain", said)
    near, score = e.trial("neighbours"), e.score
    alone = max((known for known in (e.fit("1"), e.fit("10")) if known is not None), default=None)
    of_classes = targets.get("kind") in ("classes", "one-hot", "binary")
    if near is None or not of_classes or alone is None or score is None or e.steps < 100:
        return None
    noise = 2 * (max(near["by_chance"], 0.25) / near["n"]) ** 0.5
    if alone > 0.5 and score < 0.1 and abs(e.fell or 0.0) < 0.2 and near["agree"] < near["by_chance"] + noise:
        said = f"One batch is learned by heart in fifty steps (to {number(alone)} of the way), the run is at {number(score)}; nearest inputs share a label in {number(100 * near['agree'])} % of cases, any two in {number(100 * near['by_chance'])} %."
        return found("wrong_labels", "likely", said)
    return None


def _inputs(e: Evidence) -> list[dict[str, Any]]:
    known = e.trial("inputs") or e.facts.get("inputs") or []
    return [
        one for one in known if str(one.get("dtype", "")).startswith(("float", "bfloat")) and one.get("rms")
    ]


def unnormalised_input(e: Evidence) -> Finding | None:
    """Inputs far from mean 0 and spread 1, in a run that failed."""
    first = next((m for m in e.leaves if m.get("kind") is not None), None)
    if e.learned or not (e.failed or e.trials) or first is None or first.get("kind") in ("norm", "embedding"):
        return None
    more = _gain(e, "standardised", "standardised inputs")
    for one in _inputs(e):
        offset = one.get("feature_offset") or 0.0
        unlike = (one.get("feature_std_max") or 0.0) / (one.get("feature_std_min") or 1.0)
        if not (e.failed or more) and one["rms"] < 10 * LARGE:
            continue
        if one["rms"] > LARGE or (offset > LARGE and one["rms"] > 1) or unlike > UNLIKE:
            said = f"Inputs have an RMS of {number(one['rms'])} and a mean up to {number(offset)} times its feature's spread; spreads differ by a factor of {number(unlike)}."
            return found(
                "unnormalised_input", "certain" if more else "likely", said, *more, modules=[first["name"]]
            )
    return None


def unnormalised_target(e: Evidence) -> Finding | None:
    """Regression targets that are large, in a run that failed."""
    targets = e.trial("targets") or next(iter(e.facts.get("targets", [])), None) or {}
    more = _gain(e, "scaled targets", "standardised targets")
    if not (e.failed or (more and not e.learned)):
        return None
    if targets.get("kind", "real") != "real" or (targets.get("rms") or 0.0) <= LARGE:
        return None
    if not e.trial("targets") and not str(targets.get("dtype", "")).startswith("float"):
        return None
    said = f"Targets have an RMS of {number(targets['rms'])} and reach {number(targets['max'])}."
    return found("unnormalised_target", "certain" if more else "likely", said, *more)


def _gain(e: Evidence, fit: str, words: str) -> list[str]:
    """A sentence where one batch is learned with this change and not without it."""
    with_it, without = e.fit(fit), e.fit("1")
    if with_it is None or without is None or with_it < 0.5 or with_it - max(without, 0.0) < 0.2:
        return []
    return [
        f"Fifty steps on one batch come {number(with_it)} of the way with {words}, {number(without)} without."
    ]
