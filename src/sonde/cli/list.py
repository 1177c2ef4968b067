"""`sonde list`."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Literal

import typer

from sonde.cli.options import Json

Kind = Literal["models", "rules", "tasks", "probes", "studies", "figures"]


def list_names(
    kind: Annotated[Kind | None, typer.Argument(help="Only these.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Name what there is: models, rules, tasks, probes, studies, figures."""
    from sonde.cli.terminal import console, print_json, table

    kinds = [kind] if kind else list(_SOURCES)
    found = {name: _SOURCES[name]() for name in kinds}
    if json:
        print_json(found[kind] if kind else found)
        return
    for name, entries in found.items():
        rows = [[entry["name"], entry["about"]] for entry in entries]
        console().print(table(name, {"name": "left", "about": "left"}, rows))
        if name != kinds[-1]:
            console().print()


def _first_paragraph(documented: object) -> str:
    return " ".join((inspect.getdoc(documented) or "").split("\n\n", 1)[0].split())


def _configured(part: str) -> list[dict[str, Any]]:
    """Ours, then what is installed with an entry point."""
    from sonde.config import defaults

    return [
        {"name": name, "about": _first_paragraph(entry), "options": defaults(entry)} for name, entry in _present(part)
    ]


def _probes() -> list[dict[str, Any]]:
    return [{"name": name, "about": _first_paragraph(probe)} for name, probe in _present("probe")]


def _present(part: str) -> Iterator[tuple[str, Any]]:
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
