"""Where the time of a slow row goes."""

import os
import time
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

LINES = 8
ROUNDS = 5


def operators(run: Callable[[], object], steps: int) -> list[str]:
    """The operators that take longest themselves, a step, and what is spent outside of them all.

    A profile counts wall time: of several, the fastest is the one least disturbed.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes to stderr
    spent, found = min((_profiled(run) for _ in range(ROUNDS)), key=lambda taken: taken[0])
    found.sort(key=lambda event: event.self_cpu_time_total, reverse=True)
    inside = sum(event.self_cpu_time_total for event in found) / 1e3
    parts = [
        (event.self_cpu_time_total / 1e3, f"{event.key}, {event.count / steps:g} times")
        for event in found[:LINES]
    ]
    parts.append((sum(event.self_cpu_time_total for event in found[LINES:]) / 1e3, "other operators"))
    parts.append((max(spent - inside, 0.0), "outside of operators"))
    return [f"{ms / steps:8.3f} ms {ms / max(spent, inside):6.1%}  {what}" for ms, what in parts]


def _profiled(run: Callable[[], object]) -> tuple[float, list[Any]]:
    """Milliseconds, and the operators with theirs."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        begin = time.perf_counter()
        run()
        spent = time.perf_counter() - begin
    return 1e3 * spent, list(seen.key_averages())
