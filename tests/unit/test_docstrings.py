"""Every public name says what it is: the reference and `sonde explain` are made of docstrings."""

import inspect

import pytest

import sonde
from sonde.cli import app
from sonde.explanations.by_name import EXPLANATIONS
from sonde.figures import FIGURES
from sonde.guests import OURS
from sonde.studies import STUDIES

TABLED = [
    (f"{kind} {name}", thing)
    for kind, table in OURS.items()
    if kind != "optimiser"  # one class under three names, and public itself
    for name, thing in table.items()
]
PUBLIC = [(f"sonde.{name}", getattr(sonde, name)) for name in sonde.__all__]
EXPORTED = [
    (f"{package.__name__}.{name}", getattr(package, name))
    for package in (sonde.models, sonde.rules, sonde.tasks, sonde.probes)
    for name in package.__all__
    if inspect.isclass(getattr(package, name)) or inspect.isfunction(getattr(package, name))
]


NAMES = [name for name, _ in PUBLIC + TABLED + EXPORTED]


@pytest.mark.parametrize(("name", "thing"), PUBLIC + TABLED + EXPORTED, ids=NAMES)
def test_a_public_name_has_a_docstring_of_its_own(name: str, thing: object) -> None:
    said = (thing.__doc__ or "").strip()
    assert said, f"{name} has no docstring"
    assert not said.startswith(f"{getattr(thing, '__name__', '')}("), (
        f"{name}: dataclass wrote that, nobody else"
    )


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda command: command.name)
def test_a_command_has_a_help_text(command: object) -> None:
    assert inspect.getdoc(command.callback)  # type: ignore[attr-defined]


def test_studies_figures_and_explanations_say_what_they_are() -> None:
    assert all(study.question for study in STUDIES.values())
    assert all(spec.title for spec in FIGURES.values())
    assert all(text.short and text.measured for text in EXPLANATIONS)
