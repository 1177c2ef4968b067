"""Every public name says what it is: the reference and `sonde explain` are made of docstrings."""

import functools
import inspect
import re

import pytest

import sonde
from sonde.analysis.diagnosis.finding import Finding, Findings
from sonde.analysis.explanations import EXPLANATIONS
from sonde.cli import app
from sonde.models.model import Model
from sonde.observe.precheck import Precheck
from sonde.observe.watch import Watch
from sonde.plugins import BUILT_IN
from sonde.rules.rule import Rule, RuleState
from sonde.show.figures import FIGURES
from sonde.show.figures.render import Rendered
from sonde.show.stored_runs import StoredRuns
from sonde.store.run import Run
from sonde.studies import STUDIES
from sonde.tasks.task import Data, Task

TABLED = [
    (f"{kind} {name}", thing)
    for kind, table in BUILT_IN.items()
    if kind != "optimiser"  # one class under three names, and public itself
    for name, thing in table.items()
]
PUBLIC = [(f"sonde.{name}", getattr(sonde, name)) for name in sonde.__all__]
EXPORTED = [
    (f"{package.__name__}.{name}", getattr(package, name))
    for package in (sonde.models, sonde.rules, sonde.tasks, sonde.metrics.probes)
    for name in package.__all__
    if inspect.isclass(getattr(package, name)) or inspect.isfunction(getattr(package, name))
]


NAMES = [name for name, _ in PUBLIC + TABLED + EXPORTED]
RETURNED = [StoredRuns, Run, Watch, Precheck, Findings, Finding, Rendered]
"""What the public functions give back, or what is in it."""
SHOWN = [thing for _, thing in PUBLIC + TABLED + EXPORTED if inspect.isclass(thing)]
CLASSES = list(dict.fromkeys([*SHOWN, *RETURNED]))
EQUATION = re.compile(r"[=‖∂√ΣΔ←·⟨]| / |cos\(|cosine of")
CONTRACTS = {"models": (Model,), "tasks": (Task, Data), "rules": (Rule, RuleState)}
"""The protocols of a package: what a member does is said there, once."""


def members(kind: type) -> list[str]:
    """Methods and properties of its own that a user may call."""
    called = (property, classmethod, staticmethod, functools.cached_property)
    return [
        name
        for name, member in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, called))
    ]


def said(kind: type, member: str) -> str:
    """By the class, by one that it derives from, or by a protocol of its package."""
    package = kind.__module__.split(".")[1]
    for one in (*kind.__mro__, *CONTRACTS.get(package, ())):
        found = vars(one).get(member)
        text = inspect.getdoc(getattr(found, "func", found)) if found is not None else None
        if text:
            return text
    return ""


@pytest.mark.parametrize(("name", "thing"), PUBLIC + TABLED + EXPORTED, ids=NAMES)
def test_a_public_name_has_a_docstring_of_its_own(name: str, thing: object) -> None:
    text = (thing.__doc__ or "").strip()
    assert text, f"{name} has no docstring"
    assert not text.startswith(f"{getattr(thing, '__name__', '')}("), f"{name}: dataclass wrote that, nobody else"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_what_can_be_called_on_a_public_class_says_what_it_does(kind: type) -> None:
    silent = [name for name in members(kind) if not said(kind, name)]
    assert not silent, f"{kind.__name__}: {', '.join(silent)} without a docstring"


@pytest.mark.parametrize("kind", ["rule", "probe"])
def test_what_computes_something_has_its_equation(kind: str) -> None:
    without = [name for name, thing in BUILT_IN[kind].items() if not EQUATION.search(inspect.getdoc(thing) or "")]
    assert not without


@pytest.mark.parametrize("kind", ["model", "task"])
def test_networks_and_data_say_what_they_are_in_more_than_their_name(kind: str) -> None:
    assert all(len((inspect.getdoc(thing) or "").split()) >= 8 for thing in BUILT_IN[kind].values())


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda command: command.name)
def test_a_command_has_a_help_text(command: object) -> None:
    assert inspect.getdoc(command.callback)  # type: ignore[attr-defined]


def test_studies_figures_and_explanations_say_what_they_are() -> None:
    assert all(study.question for study in STUDIES.values())
    assert all(spec.title for spec in FIGURES.values())
    assert all(text.short and text.measured for text in EXPLANATIONS)
