"""`sonde list` and `sonde explain`: the names that commands accept, and what a name means."""

import inspect
from collections.abc import Callable, Iterator
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
    from sonde.cli.terminal import print_json, print_table, print_text

    kinds = [kind] if kind else list(_SOURCES)
    found = {name: _SOURCES[name]() for name in kinds}
    if json:
        print_json(found[kind] if kind else found)
        return
    for name, entries in found.items():
        rows = [[entry["name"], entry["about"]] for entry in entries]
        print_table(name, {"name": "left", "about": "left"}, rows, wrapped="about")
        if name != kinds[-1]:
            print_text()


def print_studies() -> None:
    """Print the names and questions of the studies, with what each takes at quick scale."""
    from sonde.cli.terminal import print_table

    rows = [[entry["name"], entry["about"]] for entry in _studies()]
    print_table("studies", {"name": "left", "about": "left"}, rows, wrapped="about")


def _first_paragraph(documented: object) -> str:
    return " ".join((inspect.getdoc(documented) or "").split("\n\n", 1)[0].split())


def _configured(part: str) -> list[dict[str, Any]]:
    from sonde.config import defaults

    return [
        {"name": name, "about": _first_paragraph(entry), "options": defaults(entry)} for name, entry in _present(part)
    ]


def _probes() -> list[dict[str, Any]]:
    return [{"name": name, "about": _first_paragraph(probe)} for name, probe in _present("probe")]


def _present(part: str) -> Iterator[tuple[str, Any]]:
    """The built-in entries, then the plugins."""
    from sonde.plugins import BUILT_IN, available

    yield from BUILT_IN[part].items()
    for plugin in available(part):
        yield plugin.name, plugin.kind


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
    "models": partial(_configured, "model"),
    "rules": partial(_configured, "rule"),
    "tasks": partial(_configured, "task"),
    "probes": _probes,
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
