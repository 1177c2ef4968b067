"""Time several variants of the same work against each other: interleaved, shuffled, round after round."""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sonde.bench.rows import Row


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
