"""The page's one object, made of what the store holds now.

Numbers and the table of runs are made anew at every change.  Findings, audit and diagnoses take longer: they are made
beside, and the page has the last ones until then.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sonde.metrics.rows import empty
from sonde.show.figures.style import COLOR
from sonde.show.live.following import every
from sonde.show.report.assembly import contents
from sonde.show.report.charts import styled
from sonde.show.report.inline import asset
from sonde.show.report.page import page_data, page_parts, render
from sonde.show.report.parts import Contents
from sonde.show.report.pictures import Pictures
from sonde.show.report.runs import run_lines
from sonde.show.report.watched import WatchedPart, packed_run, watched_data, watched_parts
from sonde.store.run import Runs

MOST_VALUES = 300_000  # of watched runs; of a run with more, steps are left out
NOTHING = Runs(empty(), [])
ORDER = ("running", "stalled", "interrupted", "failed", "diverged", "complete")


class PageState:
    """What the page shows, from a source with this name."""

    def __init__(self, source: str, title: str) -> None:
        self.source, self.title = source, title
        self._last = self._contents(NOTHING)
        self._trouble: str | None = None
        self.page = render(  # before it was sent anything
            self._last,
            {},
            live=True,
            scripts=[asset("sonde.show.live", "live.js")],
            styles=[asset("sonde.show.live", "live.css")],
            allowed=["connect-src 'self'"],
        )
        self._reasons: list[str] = []  # of watched runs; places in it stay
        self._packed: dict[str, tuple[Any, dict[str, Any]]] = {}

    def think(self, stored: Runs) -> None:
        """Findings, audit and diagnoses of what is stored; where they cannot be made, the page says so."""
        try:
            self._last, self._trouble = self._contents(stored), None
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            self._trouble = f"findings and audit are not up to date ({why})"

    def made(
        self, stored: Runs, stamps: Mapping[str, str], steps: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Everything the page shows; of watched runs only those whose stamp changed are packed anew.

        `steps`: of watched runs, how many steps were watched, where rows of some are not held.
        """
        last = self._last
        belongs: dict[str, list[str]] = {run.id: [] for run in stored.runs}
        for section in last.sections:
            for run in section.runs:
                if not section.place and run in belongs:
                    belongs[run].append(section.anchor)
        found = {part.id: part.findings for part in last.watched}
        watched = watched_parts(stored, lambda run, rows: found.get(run.id))
        now = replace(
            last,
            runs=run_lines(stored.runs, belongs),
            rows=stored.rows,
            watched=watched,
        )
        return {
            **page_data(replace(now, watched=())),
            "watched": self._watched(watched, stamps, steps),
            "html": page_parts(now, {section.anchor: Pictures([], {}) for section in now.sections}),
            "colours": {name: COLOR[name] for name in styled(now.runs)},
            "states": _states(stored),
            "trouble": self._trouble,
        }

    def _contents(self, stored: Runs) -> Contents:
        return contents(stored, source=self.source, title=self.title)

    def _watched(self, parts: list[WatchedPart], stamps: Mapping[str, str], steps: Mapping[str, int]) -> dict[str, Any]:
        room = max(1, MOST_VALUES // max(1, len(parts)))
        packed = {}
        for part in parts:
            key = (stamps.get(part.id), room)
            known = self._packed.get(part.id)
            packed[part.id] = known if known and known[0] == key else (key, packed_run(part, self._reasons, room))
        self._packed = packed
        return watched_data([]) | {
            "runs": [run | {"watched": steps.get(id, run["watched"])} for id, (_, run) in packed.items()],
            "reasons": list(self._reasons),
        }


def _states(stored: Runs) -> list[list[Any]]:
    """How many runs are in each state, those first that need somebody."""
    counted: Counter[str] = Counter(run.status.state for run in every(stored))
    counted["broken"] = len(stored.broken)
    return [[state, counted[state]] for state in (*ORDER, "broken") if counted[state]]
