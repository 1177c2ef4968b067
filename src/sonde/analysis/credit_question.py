"""D3: is the credit better than chance at depth?  Asked of every layer 1 … L, of the cosine and of ρ together.

Chance is what the rule scores when it draws its matrices or networks anew: the mean and the standard deviation s over
n draws in the same snapshot.  Were the rule's own draw but one more of these, (value − mean)/(s·√(1 + 1/n)) would
follow Student's t with n − 1 degrees of freedom; a measure is above chance where that exceeds the quantile whose
probability is that of `deviations` standard deviations of a normal variable (3: one in 741), and below likewise.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple

from sonde.analysis.questions import Answer, Look, answer
from sonde.analysis.thresholds import Thresholds
from sonde.core.formatting import number
from sonde.core.seed_statistics import t_quantile
from sonde.metrics import TRAINED
from sonde.store.run import Run

MEASURES = {name: TRAINED[name].symbol for name in ("credit_cosine", "rho")}
EXACT = 1e-9  # what does not scatter and does not differ by more does not depend on the draw

Side = Literal["above", "at", "below", "given"]
"""Of chance; `given` where credit does not depend on what the rule draws, as FA's exact gradient at the top."""


class Measure(NamedTuple):
    """One measure of the credit at one layer, beside chance."""

    metric: str
    value: float
    null: float  # mean over draws
    null_std: float
    draws: int
    excess: float  # over the null, as Student's t; NaN where undefined
    side: Side | None  # None: undefined, and `reason` says why
    reason: str | None


class LayerCredit(NamedTuple):
    """The credit of one layer: where both measures put it, or that they disagree."""

    layer: int
    ceiling: float  # ρ of BP's own gradient
    cosine: Measure
    rho: Measure
    standing: Side | Literal["disagree"] | None
    reason: str | None  # why there is no standing

    @property
    def barred(self) -> bool:
        """Whether BP's gradient is no reference here."""
        return (self.reason or "").startswith("not evidence")


def credit(run: Run, thresholds: Thresholds) -> Answer:
    """The smallest excess over the null; fires where a layer is not above it by cosine and by ρ.

    One layer is enough: one good layer cannot carry the others.  ρ of BP's gradient, the ceiling, decides whether
    a layer may be read.
    """
    if run.rule == "frozen":
        return Answer(reason=f"no credit is assigned to layers {span(run.layers)}", asked=False)
    if run.rule == "bp":
        trivial = "its credit is the gradient itself"
        return answer([Look(epoch=run.epochs, value=math.nan, fired=False, note=trivial)], "")
    epochs = {metric: run.epochs_of(metric, run.layers) for metric in MEASURES}
    both = sorted(set(epochs["credit_cosine"]) & set(epochs["rho"]))
    absent = [name for metric, name in MEASURES.items() if not epochs[metric]]
    missing = (
        f"{' and '.join(absent)} not measured at layers {span(run.layers)}"
        if absent
        else "cosine and ρ were never measured at one epoch"
    )
    return answer([_look(epoch, at_layers(run, epoch, thresholds)) for epoch in both], missing)


def at_layers(run: Run, epoch: int, thresholds: Thresholds) -> list[LayerCredit]:
    """The credit of each layer 1 … L at one epoch."""
    return [_layer(run, epoch, layer, thresholds) for layer in run.layers]


def span(layers: Sequence[int]) -> str:
    """Layers in words: 1–4, or 1, 3."""
    if not layers:
        return "none"
    if len(layers) > 1 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}–{layers[-1]}"
    return ", ".join(str(layer) for layer in layers)


def _look(epoch: int, found: Sequence[LayerCredit]) -> Look:
    short = tuple(layer.layer for layer in found if layer.standing in ("at", "below", "disagree"))
    open_ = next((layer for layer in found if layer.reason is not None), None)
    judged = [layer for layer in found if layer.standing not in (None, "given")]
    least = min((m.excess for layer in judged for m in (layer.cosine, layer.rho)), default=math.nan)
    if short:
        return Look(epoch=epoch, value=least, fired=True, layers=short)
    if open_ is not None:
        return Look(epoch=epoch, value=math.nan, fired=None, reason=open_.reason)
    if not judged:
        why = "the credit does not depend on what the rule draws"
        return Look(epoch=epoch, value=math.nan, fired=False, note=why)
    return Look(epoch=epoch, value=least, fired=False)


def _layer(run: Run, epoch: int, layer: int, thresholds: Thresholds) -> LayerCredit:
    cosine, rho = (_measure(run, metric, epoch, layer, thresholds) for metric in MEASURES)
    ceiling = run.at("rho/bp", epoch, layer)
    standing: Side | Literal["disagree"] | None = None
    if ceiling.reason is not None:
        reason = f"not evidence: ρ of BP's own gradient is undefined at layer {layer} ({ceiling.reason})"
    elif ceiling.value < thresholds.ceiling:
        reason = (
            f"not evidence: ρ of BP's own gradient is {number(ceiling.value)} at layer {layer}, "
            f"below {thresholds.ceiling:g}"
        )
    else:
        gap = next((m for m in (cosine, rho) if m.reason is not None), None)
        if gap is None:
            standing = cosine.side if cosine.side == rho.side else "disagree"
            return LayerCredit(layer, ceiling.value, cosine, rho, standing, None)
        reason = f"{MEASURES[gap.metric]} at layer {layer}: {gap.reason}"
    return LayerCredit(layer, ceiling.value, cosine, rho, standing, reason)


def _measure(run: Run, metric: str, epoch: int, layer: int, thresholds: Thresholds) -> Measure:
    own, null, std = (run.at(f"{metric}{ending}", epoch, layer) for ending in ("", "/null", "/null_std"))
    reason = own.reason or null.reason
    if reason is None and std.reason is not None:
        drawn = run.epochs_of(f"{metric}/null_std", (layer,))
        old = "its null is one random vector a sample, not drawn as the rule draws: train it anew"
        reason = std.reason if drawn else old
    draws = std.samples
    if reason is None and draws < 2:
        reason = f"{metric}/null_std does not say from how many draws"
    if reason is not None:
        return Measure(metric, own.value, null.value, std.value, draws, math.nan, None, reason)
    above = own.value - null.value
    if std.value <= EXACT and abs(above) <= EXACT:
        return Measure(metric, own.value, null.value, std.value, draws, 0.0, "given", None)
    excess = above / (std.value * math.sqrt(1 + 1 / draws)) if std.value > 0 else math.copysign(math.inf, above)
    if math.isnan(excess) or not math.isfinite(above):
        why = "overflow: the excess over the null is infinite"
        return Measure(metric, own.value, null.value, std.value, draws, math.nan, None, why)
    limit = critical(thresholds.deviations, draws)
    side: Side = "above" if excess > limit else "below" if excess < -limit else "at"
    return Measure(metric, own.value, null.value, std.value, draws, excess, side, None)


@lru_cache
def critical(deviations: float, draws: int) -> float:
    """The quantile of Student's t that is as rare as so many standard deviations of a normal variable."""
    return -t_quantile(NormalDist().cdf(-deviations), draws - 1)
