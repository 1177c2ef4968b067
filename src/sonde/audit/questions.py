"""D1, D2 and D4: does the scale hold, is the reference gradient meaningful, do the blocks earn their keep?"""

import math

from sonde.audit.answer import Answer, Look, answer
from sonde.audit.subject import Subject
from sonde.audit.thresholds import Thresholds


def scale(subject: Subject, thresholds: Thresholds) -> Answer:
    """D1: the largest growth of ‖h‖ over a block.

    A block without a value leaves the question open unless another block fires it.
    """
    blocks = range(subject.depth)
    looks = []
    for epoch in subject.epochs_of("growth", blocks):
        values = subject.across("growth", epoch, blocks)
        known = [value for value in values if not math.isnan(value)]
        largest = max(known, default=math.nan)
        if largest > thresholds.growth:
            over = tuple(block for block, value in enumerate(values) if value > thresholds.growth)
            looks.append(Look(epoch=epoch, value=largest, fired=True, layers=over))
        elif len(known) < len(values):
            block = next(block for block, value in enumerate(values) if math.isnan(value))
            gap = f"block {block}: {subject.at('growth', epoch, block).reason}"
            looks.append(Look(epoch=epoch, value=math.nan, fired=None, reason=gap))
        else:
            looks.append(Look(epoch=epoch, value=largest, fired=False))
    return answer(looks, "growth was not measured")


def gradient(subject: Subject, thresholds: Thresholds) -> Answer:
    """D2: ‖g_L‖ relative to its value at init."""
    top = subject.depth
    epochs = subject.epochs_of("grad_norm", (top,))
    if not epochs:
        return Answer(missing=f"grad_norm was not measured at layer {top}")
    init = subject.at("grad_norm", 0, top)
    looks = []
    for epoch in epochs:
        here = subject.at("grad_norm", epoch, top)
        reason = init.reason or here.reason
        value = here.value / init.value if reason is None and init.value > 0 else math.nan
        if reason is None and not math.isfinite(value):
            reason = "the gradient at init is zero" if init.value <= 0 else "overflow: the ratio is infinite"
        if reason is not None:
            looks.append(Look(epoch=epoch, value=math.nan, fired=None, reason=reason))
        else:
            looks.append(Look(epoch=epoch, value=value, fired=value < thresholds.gradient))
    return answer(looks, "grad_norm was not measured")


def margin(subject: Subject, frozen: Subject | None, why_none: str, thresholds: Thresholds) -> Answer:
    """D4: test accuracy over the frozen run of the same recipe and seed, in points, once training has begun."""
    if subject.rule == "frozen":
        return Answer(missing="it is the baseline", asked=False)
    epochs = [epoch for epoch in subject.epochs_of("test_acc") if epoch > 0]
    if not epochs:
        return Answer(missing="test_acc was not measured")
    if frozen is None:
        return Answer(missing=why_none)
    looks = []
    for epoch in epochs:
        own, base = subject.at("test_acc", epoch), frozen.at("test_acc", epoch)
        reason = own.reason or (f"frozen baseline: {base.reason}" if base.reason else None)
        if reason is not None:
            looks.append(Look(epoch=epoch, value=math.nan, fired=None, reason=reason))
            continue
        points = round(100 * (own.value - base.value), 9)  # 0.57 − 0.55 is two points, not a little less
        looks.append(Look(epoch=epoch, value=points, fired=points < thresholds.points))
    return answer(looks, "test_acc was not measured")
