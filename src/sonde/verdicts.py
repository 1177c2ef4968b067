"""Words that state a result, computed from the numbers they stand on."""

import math
from collections.abc import Sequence

HEALTHY_STD = 0.1
"""A layer's standard deviation below this carries a fading signal."""

SIGNAL_COLLAPSED = 1e-3
"""Of the input's standard deviation."""

SIGNAL_EXPLODED = 10.0
"""Times the input's standard deviation."""

GRADIENT_VANISHED = 1e-2
"""Gradient norm of layer 1 relative to the last layer."""

GRADIENT_EXPLODED = 1e2
"""Gradient norm of layer 1 relative to the last layer."""

FAILED_REDUCTION = 10.0
"""Per cent: a loss that fell by less has not been learned."""

LEARNED_REDUCTION = 50.0
"""Per cent: a loss that fell by as much, and to half the loss of the trivial answer, has been learned."""


STREAM_GREW = 10.0
"""Times its norm at initialisation."""

GRADIENT_COLLAPSED = 1e-4
"""Of its norm at initialisation: below this the gradient is no reference any more."""


def number(value: float, digits: int = 2) -> str:
    """A number in few significant digits: 0.58, 3.1e-14, 2.7e8."""
    if math.isnan(value):
        return "undefined"
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    text = f"{value:.{max(0, digits - 1 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float) -> str:
    """Per cent, with as many digits as it takes not to round up to 100."""
    if math.isnan(value):
        return "undefined"
    if abs(value) >= 1e4:
        return f"{number(value)} %"
    short = 100 - value
    digits = min(max(1, math.ceil(-math.log10(short))), 8) if 0 < short < 1 else 1
    return f"{value:.{digits}f} %"


def reduction(initial: float, final: float) -> float:
    """By how many per cent a loss fell; negative where it rose, NaN where either is undefined."""
    return 100 * (initial - final) / initial if initial > 0 else math.nan


def loss_status(fell: float, final: float, trivial: float | None = None) -> str:
    """Whether a network learned, in a word or two.

    `fell` is the loss reduction in per cent, `final` the loss it ended with and `trivial` the loss of
    the answer that needs no learning, where there is one.
    """
    if math.isnan(fell) or math.isnan(final):
        return "undefined"
    if fell < FAILED_REDUCTION or (trivial is not None and final >= trivial):
        return "failed to learn"
    if fell < LEARNED_REDUCTION or (trivial is not None and final > trivial / 2):
        return "learned little"
    return "learned"


def loss_verdict(fell: float, final: float, trivial: float | None = None) -> str:
    """The status with its numbers: "learned: loss fell 99.6 %"."""
    status = loss_status(fell, final, trivial)
    if status == "undefined":
        return "loss reduction undefined"
    change = f"loss {'fell' if fell >= 0 else 'rose'} {percent(abs(fell))}"
    if trivial is None or status == "learned" or fell < FAILED_REDUCTION:
        return f"{status}: {change}"
    return f"{status}: {change}, to ×{number(final / trivial)} that of predicting zero"


def signal_verdict(stds: Sequence[float], input_std: float) -> str:
    """What becomes of the signal on its way up, from the standard deviations of layers 1 … L."""
    layers = {layer: std for layer, std in enumerate(stds, 1) if not math.isnan(std)}
    if not layers:
        return "signal undefined"
    weakest = min(layers, key=lambda layer: layers[layer])
    strongest = max(layers, key=lambda layer: layers[layer])
    last = max(layers)
    if layers[weakest] < SIGNAL_COLLAPSED * input_std:
        end = "" if weakest == last else f", {number(layers[last])} at layer {last}"
        return f"signal collapses: {number(layers[weakest])} at layer {weakest}{end}"
    if layers[strongest] > SIGNAL_EXPLODED * input_std:
        times = number(layers[strongest] / input_std)
        return f"signal explodes: {number(layers[strongest])} at layer {strongest}, ×{times} the input"
    if layers[last] < HEALTHY_STD:
        return f"signal fades: {number(layers[last])} at layer {last}"
    return (
        f"signal holds: {number(layers[last])} at layer {last}, ×{number(layers[last] / input_std)} the input"
    )


def gradient_status(ratio: float) -> str:
    """What becomes of the gradient on its way back, from its norm at layer 1 relative to the last."""
    if math.isnan(ratio):
        return "gradient undefined"
    if ratio < GRADIENT_VANISHED:
        return "gradient vanishes"
    return "gradient explodes" if ratio > GRADIENT_EXPLODED else "gradient arrives"


def gradient_verdict(ratio: float) -> str:
    """The status with its number: "gradient vanishes: ×4.1e-14 from last layer to first"."""
    status = gradient_status(ratio)
    return status if math.isnan(ratio) else f"{status}: ×{number(ratio)} from last layer to first"


def stream_verdict(change: float) -> str:
    """What became of the residual stream, from its norm relative to initialisation."""
    if math.isnan(change):
        return "the change of ‖h_L‖ is undefined"
    if change > STREAM_GREW:
        return f"the stream grows, ‖h_L‖ ×{number(change)}"
    return f"the stream holds, ‖h_L‖ ×{number(change)}"


def collapse_verdict(change: float) -> str:
    """What became of the BP gradient at the top, from its norm relative to initialisation."""
    if math.isnan(change):
        return "the change of the BP gradient is undefined"
    if change < GRADIENT_COLLAPSED:
        return f"the BP gradient collapses, ‖g_L‖ ×{number(change)}"
    return f"the BP gradient stays a reference, ‖g_L‖ ×{number(change)}"
