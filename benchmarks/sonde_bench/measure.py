"""Time several variants of the same work against each other: interleaved, shuffled, round after round.

What comes out are rows: a ratio, the most it may be and, above that, where the time goes.
"""

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.profiler import ProfilerActivity, profile

from sonde.store.files import Place

PROFILE_LINES = 8  # operators named one by one
PROFILES = 5  # of which the fastest is shown
KEYS = ("name", "ours", "reference", "limit", "ratio", "p10", "p90", "bar", "compiling")


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
    compiling: float | None = None  # what the reference took before its first step, by the clock
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


@dataclass(frozen=True)
class Variant:
    """Some work, and how many steps of training it stands for."""

    run: Callable[[], object]
    steps: int = 1


class Times:
    """Seconds a step of every variant, one for each round."""

    def __init__(self, seconds: Mapping[str, list[float]]) -> None:
        self.seconds = seconds

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def row(self, name: str, ours: str, reference: str, **more: Any) -> Row:
        """The median of the ratios of the rounds, and the range that holds the middle 80 % of them."""
        pairs = zip(self.seconds[ours], self.seconds[reference], strict=True)
        p10, ratio, p90 = np.percentile([a / b for a, b in pairs], [10, 50, 90]).tolist()
        return Row(
            name=name,
            ours=self.median(ours),
            reference=self.median(reference),
            ratio=ratio,
            p10=p10,
            p90=p90,
            **more,
        )


def measure(
    variants: Mapping[str, Variant],
    rounds: int,
    *,
    clock: Callable[[], float] = time.process_time,
    on_round: Callable[[int, int], None] = lambda done, total: None,
) -> Times:
    """Run every variant once unmeasured, then once a round, in a new order each round."""
    rng = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for variant in variants.values():
        variant.run()
    for done in range(rounds):
        on_round(done, rounds)
        for name in rng.sample(list(variants), len(variants)):
            begin = clock()
            variants[name].run()
            seconds[name].append((clock() - begin) / variants[name].steps)
    on_round(rounds, rounds)
    return Times(seconds)


def operators(run: Callable[[], object], steps: int) -> list[str]:
    """The operators that take longest themselves, a step, and what is spent outside of them all.

    A profile counts wall time: of several, the fastest is the one least disturbed.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes to stderr
    spent, found = min((_profiled(run) for _ in range(PROFILES)), key=lambda taken: taken[0])
    found.sort(key=lambda event: event.self_cpu_time_total, reverse=True)
    inside = sum(event.self_cpu_time_total for event in found) / 1e3
    parts = [
        (event.self_cpu_time_total / 1e3, f"{event.key}, {event.count / steps:g} times")
        for event in found[:PROFILE_LINES]
    ]
    parts.append((sum(event.self_cpu_time_total for event in found[PROFILE_LINES:]) / 1e3, "other operators"))
    parts.append((max(spent - inside, 0.0), "outside of operators"))
    return [f"{ms / steps:8.3f} ms {ms / max(spent, inside):6.1%}  {what}" for ms, what in parts]


def _profiled(run: Callable[[], object]) -> tuple[float, list[Any]]:
    """Milliseconds, and the operators with theirs."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        begin = time.perf_counter()
        run()
        spent = time.perf_counter() - begin
    return 1e3 * spent, list(seen.key_averages())
