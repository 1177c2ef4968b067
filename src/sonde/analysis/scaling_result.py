"""What a study of sizes found: exponents, a verdict on each group, and whether the best rate moves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from sonde.core.formatting import listed, number, signed

STEPS = (0, 1, 2, 5, 10)
"""Steps at which runs of a scaling study are measured."""

PROMISES = {
    "mup": "every part learns equally at every size",
    "standard": "signals at initialisation do not depend on the size",
}
TOLERANCE = 0.25
"""An exponent further than this from what is asked is a deviation; faults change exponents by ½ or more."""

UNDECIDED = "undecided"
MODEL = "(model)"
_FAULT = 0.5  # by which a fault changes an exponent, at least


@dataclass(frozen=True)
class Measured:
    """One run: its facts and its rows."""

    facts: Mapping[str, Any]
    rows: pl.DataFrame

    @property
    def about(self) -> Mapping[str, Any]:
        """Which study, size, seed and rate it is of."""
        known: Mapping[str, Any] = self.facts["scaling"]
        return known


@dataclass(frozen=True, kw_only=True)
class Exponent:
    """The power of the size that a quantity follows, with its interval over seeds, and the size that was left out."""

    group: str
    quantity: str  # activation, change, gradient, input, update or effect
    step: int
    value: float
    low: float
    high: float
    seeds: int
    left_out: float  # measured ÷ extrapolated, at the largest size; NaN where that has no value

    def verdict(self, asked: float = 0.0) -> str:
        """`grows` or `vanishes` if it is further from what is asked than the tolerance, and the interval excludes that.

        Else `stable`; or `undecided`, where the interval is so wide that a fault would not show.
        """
        if abs(self.value - asked) > TOLERANCE and not self.low <= asked <= self.high:
            return "grows" if self.value > asked else "vanishes"
        is_sharp = self.high - self.low <= 2 * _FAULT
        return "stable" if is_sharp and abs(self.value - asked) <= TOLERANCE else UNDECIDED

    def __str__(self) -> str:
        if not math.isfinite(self.low):
            return signed(self.value, 2)
        return f"{signed(self.value, 2)} [{signed(self.low, 2)}, {signed(self.high, 2)}]"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One group: stable, grows, vanishes, frozen or undecided; by which exponent, and what would change that."""

    group: str
    verdict: str
    about: str = ""  # what grows, in words
    exponent: Exponent | None = None
    asked: float = 0.0
    remedy: str = ""
    is_cause: bool = False

    @property
    def is_wrong(self) -> bool:
        """Whether it is neither stable nor undecided."""
        return self.verdict not in ("stable", UNDECIDED)


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The loss after a few steps by rate and size, and how the best rate moves with the size."""

    losses: pl.DataFrame  # size, seed, rate, loss
    best: Mapping[int, float]  # size → geometric mean over seeds
    exponent: Exponent | None
    at_edge: bool

    @property
    def words(self) -> str:
        """Whether the best rate moves."""
        if self.at_edge:
            return "The best rate lies at the end of the range at some size: widen --lr."
        if self.exponent is None:
            return "No rate trains at every size."
        moves = not self.exponent.low <= 0 <= self.exponent.high
        verb = "moves" if moves else "does not move"
        ends = " to ".join(f"{number(rate)} at {size}" for size, rate in (*self.best.items(),)[:: len(self.best) - 1])
        return f"The best rate {verb} with the size: exponent {self.exponent}, from {ends}."


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Exponents of every group, verdicts, and whether the best rate moves, over one argument of a factory."""

    axis: str
    factory: str
    sizes: Sequence[int]
    is_width: bool
    optimiser: str
    promise: str
    values: pl.DataFrame  # group, quantity, step, seed, size, value: log₂ of the mean over members
    exponents: Sequence[Exponent]
    verdicts: Sequence[Verdict]
    transfer: Transfer | None = None
    notes: Sequence[str] = field(default_factory=list)

    def exponent(self, group: str, quantity: str, step: int) -> Exponent | None:
        """The exponent of one group, if it is known."""
        wanted = (group, quantity, step)
        return next((one for one in self.exponents if (one.group, one.quantity, one.step) == wanted), None)

    @property
    def causes(self) -> list[Verdict]:
        """The groups to begin with: a deviation elsewhere may follow from theirs."""
        return [one for one in self.verdicts if one.is_cause]

    @property
    def deviating(self) -> list[Verdict]:
        """Every group that grows, vanishes or is frozen."""
        return [one for one in self.verdicts if one.is_wrong]

    @property
    def table(self) -> pl.DataFrame:
        """A line for each exponent."""
        return pl.DataFrame([vars(one) for one in self.exponents])

    def words(self) -> list[str]:
        """What the exponents mean, in sentences."""
        kind = f"{self.optimiser}, {'µP' if self.promise == 'mup' else 'standard parametrisation'}"
        stable = sum(one.verdict == "stable" for one in self.verdicts)
        said = [
            f"{stable} of {len(self.verdicts)} groups are stable over {self.axis} ({kind}: {PROMISES[self.promise]})."
        ]
        for one in self.causes:
            said.append(f"{one.group} {one.verdict}: {self._power(one)}. {one.remedy}".strip())
        rest = [one for one in self.deviating if not one.is_cause]
        if rest:
            named = listed([f"{one.group} ({one.verdict})" for one in rest], 4)
            said.append(f"May follow from this: {named}. Change one thing and run again.")
        undecided = [one.group for one in self.verdicts if one.verdict == UNDECIDED]
        if undecided:
            said.append(f"Undecided, more seeds narrow the intervals: {listed(undecided, 4)}.")
        said += [self._left_out()]
        return [*said, *([self.transfer.words] if self.transfer is not None else []), *self.notes]

    def _power(self, one: Verdict) -> str:
        if one.exponent is None:
            return one.about
        return f"{one.about} follows {self.axis}^{one.exponent}, asked is {self.axis}^{signed(one.asked, 2)}"

    def _left_out(self) -> str:
        known = [one for one in self.exponents if math.isfinite(one.left_out)]
        if not known:
            return f"The largest size, {self.sizes[-1]}, has no values to compare with."
        near = sum(0.8 <= one.left_out <= 1.25 for one in known)
        worst = max(known, key=lambda one: abs(math.log(one.left_out)))
        furthest = f"the {worst.quantity} of {worst.group} at step {worst.step} is ×{number(worst.left_out)} of it"
        share = f"{near} of {len(known)} quantities lie within ×1.25 of the extrapolation"
        return f"{self.axis} {self.sizes[-1]} was left out of the fits: {share}; {furthest}."

    def as_dict(self) -> dict[str, Any]:
        """Everything but single values, for JSON."""
        verdicts = [
            {**vars(one), "exponent": None if one.exponent is None else one.exponent.value} for one in self.verdicts
        ]
        known: dict[str, Any] = {
            "axis": self.axis,
            "sizes": [*self.sizes],
            "optimiser": self.optimiser,
            "promise": self.promise,
        }
        moves: dict[str, Any] | None = None
        if self.transfer is not None:
            best = {str(size): rate for size, rate in self.transfer.best.items()}
            power = None if self.transfer.exponent is None else _finite(vars(self.transfer.exponent))
            moves = {"best": best, "words": self.transfer.words, "exponent": power}
        exponents = [_finite(vars(one)) for one in self.exponents]
        return {**known, "words": self.words(), "verdicts": verdicts, "transfer": moves, "exponents": exponents}


def _finite(known: Mapping[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in known.items()}
