"""D3: is the credit better than chance at depth?  Asked of every layer 1 … L, of the cosine and of ρ."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sonde.audit.answer import Answer, Look, answer
from sonde.audit.null import Null, Nulls
from sonde.audit.subject import Subject
from sonde.audit.thresholds import Thresholds

MEASURES = {"credit_cosine": "cosine", "rho": "ρ"}


class LayerCredit(NamedTuple):
    """One measure of the credit at one layer, beside chance."""

    metric: str
    layer: int
    value: float
    null: Null
    excess: float  # over the null, in standard errors; NaN where undefined
    reason: str | None

    def above(self, thresholds: Thresholds) -> bool | None:
        return None if self.reason is not None else self.excess > thresholds.standard_errors


def credit(subject: Subject, nulls: Nulls, gradient: Answer, thresholds: Thresholds) -> Answer:
    """The smallest excess over the null in standard errors; fires where a layer does not exceed it.

    One layer is enough: the exact gradient that some rules give h_L, or one good layer, cannot carry the others.
    `gradient` is the answer to D2; where it fired, or is unknown, the cosine is not evidence.
    """
    if subject.rule == "frozen":
        return Answer(missing=f"no credit is assigned to layers {span(subject.layers)}", asked=False)
    if subject.rule == "bp":
        trivial = "its credit is the gradient itself"
        return Answer((Look(epoch=subject.epochs, value=math.nan, fired=False, note=trivial),))
    epochs = {metric: subject.epochs_of(metric, subject.layers) for metric in MEASURES}
    looks = []
    for epoch in sorted({epoch for known in epochs.values() for epoch in known}):
        barred = _barred(gradient.at(epoch))
        if barred:
            looks.append(Look(epoch=epoch, value=math.nan, fired=None, reason=barred))
            continue
        measured = [metric for metric in MEASURES if epoch in epochs[metric]]
        found = [
            layer for metric in measured for layer in at_layers(subject, nulls, metric, epoch, subject.layers)
        ]
        absent = [name for metric, name in MEASURES.items() if metric not in measured]
        note = f"{absent[0]} was not measured at epoch {epoch}" if absent else None
        looks.append(_judge(epoch, found, note, thresholds))
    return answer(looks, "credit_cosine and rho were not measured at layers 1 … L")


def at_layers(
    subject: Subject, nulls: Nulls, metric: str, epoch: int, layers: Sequence[int]
) -> list[LayerCredit]:
    """A measure of the credit at each layer, beside its null."""
    found = []
    values, chance = subject.across(metric, epoch, layers), nulls.across(metric, epoch, layers)
    for layer, value, null in zip(layers, values, chance, strict=True):
        reason = subject.at(metric, epoch, layer).reason if math.isnan(value) else null.reason
        excess = math.nan
        if reason is None:
            above = value - null.mean
            excess = (
                above / null.standard_error if null.standard_error > 0 else math.copysign(math.inf, above)
            )
            if not math.isfinite(above):
                reason, excess = "overflow: the excess over the null is infinite", math.nan
        found.append(LayerCredit(metric, layer, value, null, excess, reason))
    return found


def span(layers: Sequence[int]) -> str:
    """Layers in words: 1–4, or 1, 3."""
    if not layers:
        return "none"
    if len(layers) > 1 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}–{layers[-1]}"
    return ", ".join(str(layer) for layer in layers)


def _barred(gradient: Look | None) -> str | None:
    if gradient is None:
        return (
            "not evidence: D2 was not answered at this epoch, and it decides whether the cosine may be read"
        )
    if gradient.fired is None:
        return f"not evidence: D2 is undefined ({gradient.reason}), and it decides whether the cosine may be read"
    return "not evidence: the BP gradient has collapsed (D2)" if gradient.fired else None


def _judge(epoch: int, found: Sequence[LayerCredit], note: str | None, thresholds: Thresholds) -> Look:
    chance = tuple(sorted({layer.layer for layer in found if layer.above(thresholds) is False}))
    open_ = next((layer for layer in found if layer.reason is not None), None)
    least = min((layer.excess for layer in found if layer.reason is None), default=math.nan)
    if chance:
        return Look(epoch=epoch, value=least, fired=True, layers=chance, note=note)
    if open_ is not None:
        reason = f"{MEASURES[open_.metric]} at layer {open_.layer}: {open_.reason}"
        return Look(epoch=epoch, value=math.nan, fired=None, reason=reason, note=note)
    return Look(epoch=epoch, value=least, fired=False, note=note)
