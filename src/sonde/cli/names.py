"""`sonde list` and `sonde explain`: the names that commands accept, and what a name means."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import typer

from sonde.cli.options import Json, complete_term

_Listed = Literal["models", "rules", "tasks", "probes", "studies", "figures"]


def list_command(
    kind: Annotated[_Listed | None, typer.Argument(help="List only these.")] = None, json: Json = False
) -> None:
    """List the models, rules, tasks, probes, studies and figures that can be named in commands.

    Plugins that are installed with an entry point are listed after the built-in ones.
    """
    from sonde.cli.terminal import print_json, print_text

    kinds = [kind] if kind else list(_SOURCES)
    if json:
        print_json(_SOURCES[kind]() if kind else {name: _SOURCES[name]() for name in kinds})
        return
    for name in kinds:
        print_names(name)
        if name != kinds[-1]:
            print_text()


def print_names(kind: str) -> None:
    """Print the names of a kind, like `studies`, and what each is."""
    from sonde.cli.terminal import print_table

    rows = [[entry["name"], entry["about"]] for entry in _SOURCES[kind]()]
    print_table(kind, {"name": "left", "about": "left"}, rows, wrapped="about")


def _first_paragraph(documented: object) -> str:
    return " ".join((inspect.getdoc(documented) or "").split("\n\n", 1)[0].split())


def _entries(part: str) -> list[dict[str, Any]]:
    """The built-in entries, then the plugins; probes have no options."""
    from sonde.config import defaults
    from sonde.plugins import BUILT_IN, available

    present = [*BUILT_IN[part].items(), *((plugin.name, plugin.kind) for plugin in available(part))]
    return [
        {"name": name, "about": _first_paragraph(entry)} | ({"options": defaults(entry)} if part != "probe" else {})
        for name, entry in present
    ]


def _studies() -> list[dict[str, Any]]:
    from sonde.studies import STUDIES

    return [{"name": name, "about": study.question, "seeds": study.seeds} for name, study in STUDIES.items()]


def _figures() -> list[dict[str, Any]]:
    from sonde.show.figures import figures_by_study

    return [
        {"name": name, "about": figure.title, "study": study, "path": figure.paths[study]}
        for study, name, figure in figures_by_study()
    ]


_SOURCES: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "models": partial(_entries, "model"),
    "rules": partial(_entries, "rule"),
    "tasks": partial(_entries, "task"),
    "probes": partial(_entries, "probe"),
    "studies": _studies,
    "figures": _figures,
}


def explain_command(
    name: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_term,
            help="A diagnosis, metric, probe, rule, model, task, optimiser, question of the audit or term.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Explain a name: what it is, how it is measured, its threshold, what to try, and the papers about it.

    Without a name: list all names, by kind.
    """
    from dataclasses import asdict

    from sonde.analysis.explanations import EXPLANATIONS, documented, explanations
    from sonde.cli.terminal import print_json, print_text
    from sonde.plugins import BUILT_IN

    known = [*EXPLANATIONS, *(text for kind, table in BUILT_IN.items() for text in documented(kind, table))]
    if name is None:
        if json:
            print_json([asdict(text) for text in known])
            return
        for kind in dict.fromkeys(text.kind for text in known):
            names = [text.name for text in known if text.kind == kind]
            print_text(f"{kind}: {', '.join(names)}")
        return
    found = explanations(name, known)
    if json:
        print_json([asdict(text) for text in found])
        return
    for text in found:
        for line in str(text).splitlines():
            print_text(line)
