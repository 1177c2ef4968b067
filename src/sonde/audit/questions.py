"""D1 and D2: does the scale hold, is the reference gradient meaningful?"""

import math

from sonde.audit.answer import Answer, Look, answer
from sonde.audit.subject import Subject
from sonde.audit.thresholds import Thresholds


def scale(subject: Subject, thresholds: Thresholds) -> Answer:
    """D1: the growth of ‖h‖ over the block that grows it most.

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
    """D2: the median of ‖g_L‖/‖e‖ relative to its value at init.

    A network that has learned has a small error e and with it a small gradient; that is no collapse.
    """
    metric, top = "grad_per_error", subject.depth
    epochs = subject.epochs_of(metric, (top,))
    if not epochs:
        older = subject.epochs_of("grad_norm", (top,))
        why = ": the version that made this run measured ‖g_L‖ alone, train it anew" if older else ""
        return Answer(missing=f"{metric} was not measured at layer {top}{why}")
    init = subject.at(metric, 0, top)
    looks = []
    for epoch in epochs:
        here = subject.at(metric, epoch, top)
        reason = init.reason or here.reason
        value = here.value / init.value if reason is None and init.value > 0 else math.nan
        if reason is None and not math.isfinite(value):
            reason = "the gradient at init is zero" if init.value <= 0 else "overflow: the ratio is infinite"
        if reason is not None:
            looks.append(Look(epoch=epoch, value=math.nan, fired=None, reason=reason))
        else:
            looks.append(Look(epoch=epoch, value=value, fired=value < thresholds.gradient))
    return answer(looks, f"{metric} was not measured")
