"""What a benchmark says: one row a measure, a ratio and the most it may be."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sonde.store.place import Place

KEYS = ("name", "ours", "reference", "limit", "ratio", "p10", "p90", "bar")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Seconds of ours, of what it is held against and of its matrix products alone; ours ÷ reference with its spread.

    `bar` is the most the ratio may be; without one the row only informs.  Seconds are of one step where the name
    does not say otherwise.
    """

    name: str
    ours: float | None = None
    reference: float | None = None
    limit: float | None = None
    ratio: float | None = None
    p10: float | None = None
    p90: float | None = None
    bar: float | None = None
    biotorch_of: str | None = None  # the row for whose rule and network BioTorch's loop is the reference
    profile: tuple[str, ...] = ()  # where the time goes, of a row above its bar
    skipped: str | None = None

    @property
    def above_bar(self) -> bool:
        return self.ratio is not None and self.bar is not None and self.ratio > self.bar

    def explained(self, profile: Callable[[], list[str]]) -> "Row":
        """With its profile, which is taken only of a row above its bar."""
        return replace(self, profile=tuple(profile())) if self.above_bar else self

    def to_json(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in KEYS}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a benchmark is run: how long, on which images, and whom it tells how far it is."""

    quick: bool = False
    data_root: Place | None = None
    on_round: Callable[[int, int], None] = lambda done, total: None

    def rounds(self, full: int) -> int:
        return max(3, full // 10) if self.quick else full
