"""Diagnoses of a run that Sonde trained: whether it learned, and the audit's questions — scale, gradient, credit, worth
of the blocks.

When a question fires is the audit's business (`analysis/thresholds.py`); here its answers become findings.
"""

import math

from sonde.analysis.credit_question import LayerCredit
from sonde.analysis.diagnosis.finding import Finding, found
from sonde.analysis.diagnosis.signs import FAILED, FEW, Signs
from sonde.analysis.questions import Answer
from sonde.analysis.verdict import points
from sonde.core.formatting import number


def not_learning(s: Signs) -> Finding | None:
    """A loss that ends where one constant answer stands.  Frozen blocks are there to be compared with, not to learn."""
    if s.audited is None or s.audited.run is None or s.audited.rule.rule == "frozen":
        return None
    if s.steps < FEW or s.loss_of_chance is None or s.last_loss is None or not s.failed:
        return None
    of_test = s.of_run("test_loss")
    beside = f", on test samples {number(of_test[max(of_test)], 3)}" if of_test else ""
    said = (
        f"After {s.steps} steps the loss on training samples is {number(s.last_loss, 3)}{beside}; "
        f"one constant answer has {number(s.loss_of_chance, 3)}."
    )
    hits = s.of_run("train_acc")
    more = [f"{number(100 * hits[max(hits)])} % of the answers to training samples are right."] if hits else []
    came = [step for step, loss in s.losses.items() if 1 - loss / s.loss_of_chance >= FAILED]
    since = next((step for step in s.losses if step > max(came)), 0) if came else 0
    return found("not_learning", "likely", said, *more, step=since)


def _fired(s: Signs, question: str) -> Answer | None:
    known = None if s.audited is None or s.audited.run is None else s.audited.run.answers[question]
    return known if known is not None and known.fired else None


def _level(answer: Answer) -> str:
    """Certain where it fired whenever it was asked from some epoch on, and at two epochs at least."""
    since = answer.since
    asked = [look for look in answer.looks if since is not None and look.epoch >= since and look.fired]
    return "certain" if len(asked) > 1 else "likely"


def growth(s: Signs) -> Finding | None:
    """Hidden states that explode over a block, or at the top since init."""
    answer = _fired(s, "D1")
    if answer is None or s.audited is None:
        return None
    limits = s.audited.rule.thresholds
    said = (
        f"At epoch {answer.epoch} ‖h‖ grows {number(answer.value)}× over the block that grows it most; "
        f"the limit is {limits.growth:g}×."
    )
    top = f"‖h_L‖ is {number(answer.beside)}× its value at init; the limit is {limits.stream:g}×."
    evidence = [said] if math.isnan(answer.beside) else [said, top]
    blocks = [f"block {block}" for block in answer.layers] or [f"layer {s.audited.rule.depth}"]
    return found("growth", _level(answer), *evidence, modules=blocks, epoch=answer.since)


def gradient(s: Signs) -> Finding | None:
    """A BP gradient that the precision of training does not resolve, or that does not foretell the loss."""
    answer = _fired(s, "D2")
    if answer is None or s.audited is None:
        return None
    limits, evidence = s.audited.rule.thresholds, []
    if answer.value < limits.resolution:
        evidence.append(
            f"At epoch {answer.epoch} the BP gradient in the precision of training has a cosine of "
            f"{number(answer.value)} with the one in float64; the limit is {limits.resolution:g}."
        )
    if answer.beside < limits.ceiling:
        evidence.append(
            f"At epoch {answer.epoch} ρ of BP's gradient in float64 is {number(answer.beside)}; "
            f"the limit is {limits.ceiling:g}."
        )
    layers = [f"layer {layer}" for layer in answer.layers]
    return found("gradient", _level(answer), *evidence, modules=layers, epoch=answer.since)


def credit(s: Signs) -> Finding | None:
    """Credit that is no better than chance."""
    answer = _fired(s, "D3")
    if answer is None or s.audited is None or s.audited.run is None:
        return None
    layers = [one for one in s.audited.run.credits if one.layer in answer.layers]
    worst = min(layers, key=lambda one: min(one.cosine.excess, one.rho.excess))
    said = f"At epoch {answer.epoch} the credit is not above chance at {len(layers)} of {s.audited.rule.depth} layers."
    names = [f"layer {layer}" for layer in answer.layers]
    return found("credit", _level(answer), said, _beside_chance(worst), modules=names, epoch=answer.since)


def _beside_chance(layer: LayerCredit) -> str:
    parts = [
        f"{name} is {number(one.value)}, by chance {number(one.null, 1)} ± {number(one.null_std, 1)}"
        for name, one in (("the cosine", layer.cosine), ("ρ", layer.rho))
    ]
    return f"At layer {layer.layer} {' and '.join(parts)}."


def worth(s: Signs) -> Finding | None:
    """Blocks that cost accuracy."""
    if s.audited is None or s.audited.run is None or s.audited.rule.margin.outcome != "hurts":
        return None
    rule, run = s.audited.rule, s.audited.run.run
    said = (
        f"{rule.label}: {points(rule)} points of test accuracy over frozen blocks, paired by seed, "
        f"n = {rule.margin.points.n}."
    )
    return found("worth", "likely", said, epoch=run.epochs)
