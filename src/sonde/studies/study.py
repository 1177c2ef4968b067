"""What a study is: the runs it needs, and what it finds in their rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.config import RunConfig
from sonde.studies.evidence import Gathered


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A sentence computed from rows, the numbers in it, and the runs they come from."""

    sentence: str
    shown: dict[str, str]  # heading → cell, for a table of the study's findings
    numbers: dict[str, Any]
    runs: tuple[str, ...]
    seeds: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question, the configurations that answer it, and the answer's computation."""

    question: str
    seeds: dict[str, tuple[int, ...]]  # by default, at each scale
    configs: Callable[[str, Sequence[int]], list[RunConfig]]  # (scale, seeds) → complete configurations
    findings: Callable[[Gathered], list[Finding]]
