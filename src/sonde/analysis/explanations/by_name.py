"""Every explanation, by name."""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sonde.analysis.explanations.audit_questions import QUESTIONS
from sonde.analysis.explanations.diagnoses import DIAGNOSES
from sonde.analysis.explanations.explanation import Explanation
from sonde.analysis.explanations.words import WORDS
from sonde.core.errors import SondeError, nearest
from sonde.metrics import ALIASES, TRAINED, WATCHED, Metric


def _of_metric(metric: Metric) -> Explanation:
    return Explanation(
        name=metric.name,
        kind="metric",
        short=metric.definition,
        measured=metric.measured,
        good=metric.good,
        bad=metric.bad,
        reference=metric.reference,
    )


OF_PROBES = {metric.probe: metric for metric in reversed(TRAINED.values()) if metric.probe}
"""What each probe measures; of several metrics the first."""

METRICS = tuple(
    _of_metric(metric)
    for metric in (*WATCHED.values(), *TRAINED.values())
    if metric.name not in OF_PROBES  # the probe of that name explains it
)

EXPLANATIONS: tuple[Explanation, ...] = (*DIAGNOSES, *METRICS, *QUESTIONS, *WORDS)
NUMBERED = dict(zip(("d1", "d2", "d3", "d4"), QUESTIONS, strict=True))
"""The questions as tables and verdicts call them."""


def _as_key(name: str) -> str:
    return name.replace("-", "_").replace(" ", "_").casefold()


SYMBOLS = (
    {"chance": "null"}
    | ALIASES
    | {_as_key(metric.symbol): metric.name for metric in (*WATCHED.values(), *TRAINED.values()) if metric.symbol}
)
"""Other ways to ask for a name."""


def documented(kind: str, table: Mapping[str, Any]) -> list[Explanation]:
    """Things whose docstring is their explanation: rules, probes, models, tasks; optimisers share their class's.

    What a probe of the package measures is said by the table of metrics, and how by its docstring.
    """
    kinds = {name: thing.func if isinstance(thing, partial) else thing for name, thing in table.items()}
    texts = {name: inspect.getdoc(thing) or "" for name, thing in kinds.items()}
    return [
        replace(_of_metric(OF_PROBES[name]), name=name, kind=kind, measured=" ".join(text.split()))
        if kind == "probe" and name in OF_PROBES
        else _documented(name, kind, text)
        for name, text in texts.items()
    ]


def _documented(name: str, kind: str, text: str) -> Explanation:
    """The first sentence, and what follows it."""
    first, *others = re.split(r"(?<! al)\. ", " ".join(text.split()), maxsplit=1)
    rest = "".join(others)
    return Explanation(name=name, kind=kind, short=first if not rest else f"{first}.", measured=rest)


def explanations(name: str, known: Iterable[Explanation] = EXPLANATIONS) -> list[Explanation]:
    """What there is under a name; a name may stand for two things of different kinds."""
    known = list(known)
    wanted = _as_key(name)
    if wanted in NUMBERED:
        return [NUMBERED[wanted]]
    wanted = SYMBOLS.get(wanted, wanted)
    found = [text for text in known if text.name.casefold() == wanted]
    if not found:
        names = {text.name for text in known} | NUMBERED.keys()
        raise SondeError(f"nothing is named {name!r}: {nearest(wanted, names, 'sonde explain')}")
    return sorted(found, key=lambda text: text.kind != "word")  # what it is, before what is asked of it
