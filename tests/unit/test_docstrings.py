"""Every public name says what it is: the reference and `sonde explain` are made of docstrings.

python tests/unit/test_docstrings.py                    # write undocumented.txt again: it may only shrink
python tests/unit/test_docstrings.py --from-scratch     # after a merge that moved code between rooms
"""

import ast
import functools
import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from leftovers import assert_only_these, rewrite

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


SOURCE = Path(sonde.__file__).parent
LEFT = Path(__file__).with_name("undocumented.txt")
OF_PYTORCH = {"forward", "backward", "setup_context", "vmap", "jvp", "state_dict", "load_state_dict"}
"""Methods that PyTorch's documentation describes."""
Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def is_public(node: ast.AST) -> bool:
    return isinstance(node, Def) and not node.name.startswith("_")


def names_of(nodes: list[ast.expr]) -> set[str]:
    """The last names of base classes or decorators."""
    found = set()
    for node in nodes:
        node = node.func if isinstance(node, ast.Call) else node
        node = node.value if isinstance(node, ast.Subscript) else node
        found |= {node.id} if isinstance(node, ast.Name) else {node.attr} if isinstance(node, ast.Attribute) else set()
    return found


@functools.cache
def undocumented() -> Counter[str]:
    """`room: name` of every public function, class and method without a docstring.

    Exempt are private and nested names; methods that a base class, or a Protocol or base class of the same room,
    describes; methods of PyTorch; overloads and setters.
    """
    classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
    modules = [
        (file.relative_to(SOURCE).parts[0].removesuffix(".py"), ast.parse(file.read_text()))
        for file in sorted(SOURCE.rglob("*.py"))
    ]
    described: dict[str, set[str]] = defaultdict(set)  # by room, the methods that its contracts describe
    for room, tree in modules:
        for node in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            classes[node.name].append(node)
            if names_of(node.bases) & {"Protocol", "ABC"} or (room == "rules" and node.name in ("Rule", "RuleState")):
                described[room] |= set(documented_methods(node))

    def inherited(node: ast.ClassDef, seen: frozenset[str] = frozenset()) -> set[str]:
        bases = [base for name in names_of(node.bases) - seen for base in classes[name]]
        below = (inherited(base, seen | {node.name}) for base in bases)
        return {method for base in bases for method in documented_methods(base)}.union(*below)

    found = Counter[str]()
    for room, tree in modules:
        for node in filter(is_public, tree.body):
            assert isinstance(node, Def)
            if ast.get_docstring(node) is None and "overload" not in names_of(node.decorator_list):
                found[f"{room}: {node.name}"] += 1
            if isinstance(node, ast.ClassDef):
                exempt = OF_PYTORCH | described[room] | inherited(node)
                found.update(f"{room}: {node.name}.{name}" for name in silent_methods(node) if name not in exempt)
    return found


def documented_methods(node: ast.ClassDef) -> Iterator[str]:
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and ast.get_docstring(one):
            yield one.name


def silent_methods(node: ast.ClassDef) -> Iterator[str]:
    for one in filter(is_public, node.body):
        assert isinstance(one, Def)
        if ast.get_docstring(one) is None and not names_of(one.decorator_list) & {"overload", "setter"}:
            yield one.name


def test_nothing_public_is_undocumented_beyond_the_list_of_leftovers() -> None:
    assert_only_these(undocumented(), LEFT)


def test_the_commands_are_documented_without_exception() -> None:
    assert not [name for name in undocumented() if name.startswith("cli: ")]


if __name__ == "__main__":
    rewrite(undocumented(), LEFT)
