"""Numbers, ranges and lists as text; thresholds of signal, gradient, loss and audit, and the words that go by them."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from sonde.core.errors import SondeError

HEALTHY_STD = 0.1
"""A layer's standard deviation below this carries a fading signal."""

SIGNAL_COLLAPSED = 1e-3
"""A signal below this share of the input's standard deviation has collapsed."""

GROWS = 10.0
"""A signal above this many times the input's, and a gradient above this many times the last layer's, grows."""

SIGNAL_EXPLODED = 1e2
"""A signal above this many times the input's standard deviation has exploded."""

GRADIENT_VANISHED = 1e-3
"""Gradient norm of the first layer relative to the last, below which the gradient vanishes: figures, findings of
studies, the playground and the diagnosis `vanishing_gradient` use it."""

GRADIENT_EXPLODED = 1e2
"""Gradient norm of layer 1 relative to the last layer, above which figures and findings of studies say that it
explodes.  The diagnosis `exploding_gradient` has its own threshold, because it also looks at signals and steps."""

FAILED_REDUCTION = 10.0
"""Per cent: a loss that fell by less has not been learned."""

LEARNED_REDUCTION = 50.0
"""Per cent: a loss that fell by as much, and to half the loss of the trivial answer, has been learned."""

HARDLY = 5.0
"""Points of BP over frozen blocks.  With fewer, depth hardly matters, and no rule can show much."""

LEAST_ERROR = 0.05
"""Per cent: a smaller standard error rounds to 0.0."""


STREAM_GREW = 10.0
"""A stream above this many times its norm at initialisation has grown."""

TENTH = 0.00095
"""Of an accuracy: a smaller spread rounds to less than 0.1 %."""


def number(value: float, digits: int = 2) -> str:
    """A number in few significant digits: 0.58, 3.1e-14, 2.7e8."""
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        mantissa, exponent = f"{_decimal(value):.{digits - 1}e}".split("e")
        return f"{mantissa.replace('-', '−')}e{int(exponent)}"
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    text = f"{_decimal(value):.{max(0, digits - 1 - magnitude)}f}".replace("-", "−")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _decimal(value: float) -> Decimal:
    """The value in decimal, so that a share and its per cent round alike: .2375 to .238 and 23.8 %.

    Digits after the twelfth are dropped: means that are summed in another order give the same text.
    """
    return Decimal(f"{value:.12g}")


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign."""
    if math.isnan(value):
        return "undefined"
    return f"{'−' if value < 0 else '+' if value > 0 else ''}{number(abs(value), digits)}"


def accuracy(mean: float, std: float | None = None) -> str:
    """An accuracy in per cent with its spread over seeds, the same wherever it is quoted: "59.2 ± 0.4 %"."""
    if math.isnan(mean):
        return "undefined"
    known = std is not None and not math.isnan(std)
    digits = 2 if known and std < TENTH else 1  # type: ignore[operator]
    spread = f" ± {100 * _decimal(std):.{digits}f}" if known else ""  # type: ignore[arg-type]
    return f"{100 * _decimal(mean):.{digits}f}{spread} %"


def percent(value: float) -> str:
    """Per cent, with as many digits as it takes not to round up to 100."""
    if math.isnan(value):
        return "undefined"
    if abs(value) >= 1e4:
        return f"{number(value)} %"
    short = 100 - value
    digits = min(max(1, math.ceil(-math.log10(short))), 8) if 0 < short < 1 else 1
    return f"{_decimal(value):.{digits}f} %"


def reduction(initial: float, final: float) -> float:
    """By how many per cent a loss fell; negative where it rose, NaN where either is undefined."""
    return 100 * (initial - final) / initial if initial > 0 else math.nan


def last_steps(steps: int) -> range:
    """The last tenth of a run's steps: its final loss is the mean of their batches."""
    return range(steps - max(1, steps // 10) + 1, steps + 1)


@dataclass(frozen=True)
class LossChange:
    """First and final loss of a run, and by how many per cent it fell, counted from the lowest that it can reach."""

    initial: float  # of the first batch
    final: float  # mean of the batches of the last steps
    final_error: float  # its standard error
    fell: float  # NaN where either is undefined
    fell_error: float  # its standard error, by the noise of the batches


def loss_change(initial: float, last: Sequence[float], floor: float | None = None) -> LossChange:
    """From the loss of the first batch and those of the last steps.

    Batches differ.  How much is known from the last steps, and taken to be the same share of the first batch's loss.
    """
    from sonde.core.seed_statistics import summarise  # needs polars, which `sonde --help` does without

    final = statistics.fmean(last)
    noise = summarise(last).std if math.isfinite(final) else math.nan
    error = noise / math.sqrt(len(last))
    first, rest = initial - (floor or 0), final - (floor or 0)
    of_first = noise * initial / final if final > 0 else 0.0
    fell_error = 100 * math.hypot(error, of_first * rest / first) / first if first > 0 else math.nan
    return LossChange(initial, final, error, reduction(first, rest), fell_error)


def loss_status(fell: float, final: float, trivial: float | None = None, floor: float | None = None) -> str:
    """Whether a network learned, in a word or two.

    `fell` is the loss reduction in per cent, `final` the loss it ended with, `trivial` the loss of the answer that
    needs no learning and `floor` the lowest that the network can reach, where they are known.
    """
    if math.isnan(fell) or math.isnan(final):
        return "undefined"
    if fell < FAILED_REDUCTION or (trivial is not None and final >= trivial):
        return "failed to learn"
    if fell < LEARNED_REDUCTION or (trivial is not None and times_trivial(final, trivial, floor) > 0.5):
        return "learned little"
    return "learned"


def times_trivial(final: float, trivial: float, floor: float | None = None) -> float:
    """A loss ÷ that of the trivial answer, both counted from the floor."""
    return (final - (floor or 0)) / (trivial - (floor or 0))


def listed(values: Iterable[object], most: int | None = None, *, last: str = " and ") -> str:
    """Values with commas: "a, b and c".  Of more than `most`, the first ones and how many more: "a, b and 3 more"."""
    words = [str(value) for value in values]
    if most is not None and len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return last.join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def sentence_case(text: str) -> str:
    """The text with a capital first letter; a Greek one stays, as in µPC."""
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def number_range(numbers: Sequence[int]) -> str:
    """Whole numbers in order: "1–4" where they follow each other, else "1, 3"."""
    if not numbers:
        return "none"
    if len(numbers) > 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}–{numbers[-1]}"
    return ", ".join(map(str, numbers))


def weights(variant: str) -> str:
    """A variant of the residual study by what its weights are: drawn as they are, or divided by √L."""
    return {"raw": "weights × 1", "scaled": "weights × 1/√L"}.get(variant, variant)


def network(about: Mapping[str, Any]) -> str:
    """The network of a stored run, with its variant: "Residual MLP, weights × 1/√L"."""
    variant = about["variant"]
    return f"{about['label']}, {weights(variant)}" if variant else str(about["label"])


def loss_verdict(
    fell: float,
    final: float,
    trivial: float | None = None,
    floor: float | None = None,
    error: float = math.nan,
) -> str:
    """The status with its numbers: "learned: loss fell 99.6 %".  `error` is the standard error of `fell`."""
    status = loss_status(fell, final, trivial, floor)
    if status == "undefined":
        return "loss reduction undefined"
    change = f"{floored(floor)} {changed_by(fell, error)}"
    if trivial is None or status == "learned" or fell < FAILED_REDUCTION:
        return f"{status}: {change}"
    times = f"×{number(times_trivial(final, trivial, floor))} that of predicting zero"
    if final >= trivial:
        return f"{status} although its {change}: it is still {times}"
    return f"{status}: {change}, to {times}"


def floored(floor: float | None) -> str:
    """The loss as text; with its floor, where that is not 0."""
    return f"loss above its floor of {number(floor, 3)}" if floor else "loss"


def changed_by(fell: float, error: float = math.nan) -> str:
    """By how many per cent a loss fell or rose; within two standard errors, that it did not change."""
    known = not math.isnan(error)
    if known and abs(fell) < 2 * error:
        return f"did not change by more than its batches differ ({signed(-fell, 2)} ± {number(error, 2)} %)"
    spread = f" ± {error:.1f}" if known and error >= LEAST_ERROR else ""
    amount = f"{abs(fell):.1f}{spread} %" if spread else percent(abs(fell))
    return f"{'fell' if fell >= 0 else 'rose'} {amount}"


def signal_verdict(stds: Sequence[float], input_std: float) -> str:
    """Whether the signal collapses, explodes, grows, fades or holds, from the standard deviations of layers 1 … L."""
    layers = {layer: std for layer, std in enumerate(stds, 1) if not math.isnan(std)}
    if not layers:
        return "signal undefined"
    weakest = min(layers, key=lambda layer: layers[layer])
    strongest = max(layers, key=lambda layer: layers[layer])
    last = max(layers)
    if layers[weakest] < SIGNAL_COLLAPSED * input_std:
        end = "" if weakest == last else f", {number(layers[last])} at layer {last}"
        return f"signal collapses: {number(layers[weakest])} at layer {weakest}{end}"
    if layers[strongest] > GROWS * input_std:
        verb = "explodes" if layers[strongest] > SIGNAL_EXPLODED * input_std else "grows"
        times = number(layers[strongest] / input_std)
        return f"signal {verb}: {number(layers[strongest])} at layer {strongest}, ×{times} the input"
    if layers[last] < HEALTHY_STD:
        return f"signal fades: {number(layers[last])} at layer {last}"
    return f"signal holds: {number(layers[last])} at layer {last}, ×{number(layers[last] / input_std)} the input"


def gradient_status(ratio: float) -> str:
    """Whether the gradient vanishes, explodes, grows or arrives, from its norm at layer 1 relative to the last."""
    if math.isnan(ratio):
        return "gradient undefined"
    if ratio < GRADIENT_VANISHED:
        return "gradient vanishes"
    if ratio > GROWS:
        return "gradient explodes" if ratio > GRADIENT_EXPLODED else "gradient grows"
    return "gradient arrives"


def gradient_verdict(ratio: float) -> str:
    """The status with its number: "gradient vanishes: ×4.1e-14 from last layer to first"."""
    status = gradient_status(ratio)
    return status if math.isnan(ratio) else f"{status}: ×{number(ratio)} from last layer to first"


def stream_verdict(change: float) -> str:
    """Whether the residual stream grew, from its norm relative to initialisation."""
    if math.isnan(change):
        return "the change of ‖h_L‖ is undefined"
    if change > STREAM_GREW:
        return f"the stream grows, ‖h_L‖ ×{number(change)}"
    return f"the stream holds, ‖h_L‖ ×{number(change)}"


def gradient_change(norm: float, per_error: float, scale_free: float) -> str:
    """The change of the BP gradient at the top since initialisation: ‖g_L‖, ‖g_L‖/‖e‖, and ‖g_L‖·‖h_L‖/‖e‖.

    A network that has learned has a small error e, and so a small gradient.  Where h_L is normalised, the gradient
    also falls as ‖h_L‖ grows.  The last number is free of both effects.
    """
    if math.isnan(norm):
        return "the change of the BP gradient is undefined"
    if math.isnan(per_error):
        return f"‖g_L‖ ×{number(norm)}, not measured per output error"
    said = f"‖g_L‖ ×{number(norm)}, per output error ×{number(per_error)}"
    return f"{said}, that times ‖h_L‖ ×{number(scale_free)}"


def said_share(share: float, error: float = math.nan) -> str:
    """A share in per cent; for one seed with the error from the finite test set."""
    if math.isnan(share):
        return "undefined"
    around = "" if math.isnan(error) else f" ± {max(1, round(100 * error))}"
    return f"{round(100 * share)}{around} %".replace("-", "−")


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """When each question fires.  docs/calibration.md says how often the defaults err."""

    growth: float = 50.0  # D1 fires above: ‖h‖ after a block over ‖h‖ before it
    stream: float = 300.0  # D1 fires above: ‖h_L‖ over its value at init
    resolution: float = 0.9  # D2 fires below: cosine of the gradient in training's precision with float64's
    deviations: float = 3.0  # D3 fires unless the credit exceeds the null by more than this many standard deviations
    ceiling: float = 0.9  # ρ of BP's gradient: below it D2 fires, and D3 does not read the credit
    confidence: float = 0.95  # of D4's interval

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not math.isfinite(value):
                raise SondeError(f"audit threshold {name} = {value}: choose a finite number")
            if value < 0:
                raise SondeError(f"audit threshold {name} = {value}: choose a number that is not negative")
        if not 0 < self.confidence < 1:
            raise SondeError(f"audit threshold confidence = {self.confidence}: choose one between 0 and 1")

    @property
    def words(self) -> dict[str, str]:
        """Each question with the condition under which it fires."""
        return {
            "D1": f"does the scale hold? Fires where ‖h‖ grows more than {self.growth:g}× over a block or over all, or "
            f"where ‖h_L‖ exceeds {self.stream:g}× its value at init. A LayerNorm after h_L hides this from the loss",
            "D2": "is the BP gradient resolved? Fires where the cosine of the gradient in training's precision with "
            f"the float64 gradient is below {self.resolution:g} at a layer. It also fires where ρ of BP's gradient in "
            f"float64 is below {self.ceiling:g}",
            "D3": "is the credit better than chance at depth? Fires where cosine or ρ at a layer l ≥ 1 is not "
            f"above its null by {self.deviations:g} standard deviations (Student's t for the number of draws). Its "
            "null is the same rule with other random matrices. Layers where ρ of BP's own gradient is below "
            f"{self.ceiling:g} are skipped",
            "D4": "do the trained blocks help? The test accuracy is compared with frozen blocks, paired by seed. "
            f"Blocks help or hurt where the {100 * self.confidence:g} % t interval over seeds excludes 0, with Holm's "
            "correction for the rules of one recipe. Otherwise D4 is undecided",
        }
