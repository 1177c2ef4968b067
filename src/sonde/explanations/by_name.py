"""Every explanation, by name."""

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from sonde.errors import SondeError, nearest
from sonde.explanations import good_and_bad
from sonde.explanations.audit_questions import QUESTIONS
from sonde.explanations.diagnoses import DIAGNOSES
from sonde.explanations.explanation import Explanation
from sonde.explanations.metrics import METRICS
from sonde.explanations.words import WORDS

EXPLANATIONS: tuple[Explanation, ...] = (*DIAGNOSES, *METRICS, *QUESTIONS, *WORDS)
NUMBERED = dict(zip(("d1", "d2", "d3", "d4"), QUESTIONS, strict=True))
"""The questions as tables and verdicts call them."""
SYMBOLS = {"ρ": "rho", "‖h‖": "hidden_norm", "‖g‖": "grad_norm", "chance": "null"}


def documented(kind: str, table: Mapping[str, Any]) -> list[Explanation]:
    """Things whose docstring is their explanation: rules, probes, models, tasks; optimisers share their class's."""
    kinds = {name: thing.func if isinstance(thing, partial) else thing for name, thing in table.items()}
    return [_documented(name, kind, inspect.getdoc(thing) or "") for name, thing in kinds.items()]


def _documented(name: str, kind: str, text: str) -> Explanation:
    """The first sentence, and what follows it."""
    first, *others = re.split(r"(?<! al)\. ", " ".join(text.split()), maxsplit=1)
    rest = "".join(others)
    looks = good_and_bad.PROBES[name]._asdict() if kind == "probe" and name in good_and_bad.PROBES else {}
    return Explanation(name=name, kind=kind, short=first if not rest else f"{first}.", measured=rest, **looks)


def explanations(name: str, known: Iterable[Explanation] = EXPLANATIONS) -> list[Explanation]:
    """What there is under a name; a name may stand for two things of different kinds."""
    known = list(known)
    wanted = name.replace("-", "_").replace(" ", "_").casefold()
    if wanted in NUMBERED:
        return [NUMBERED[wanted]]
    wanted = SYMBOLS.get(wanted, wanted)
    found = [text for text in known if text.name.casefold() == wanted]
    if not found:
        names = {text.name for text in known} | NUMBERED.keys()
        raise SondeError(f"nothing is named {name!r}: {nearest(wanted, names, 'sonde explain')}")
    return sorted(found, key=lambda text: text.kind != "word")  # what it is, before what is asked of it
