"""`sonde list`."""

import inspect
from typing import Annotated, Any, Literal

import typer

from sonde.cli.options import Json

Kind = Literal["models", "rules", "tasks", "probes", "studies", "figures"]


def list_names(
    kind: Annotated[Kind | None, typer.Argument(help="Only these.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Name what there is: models, rules, tasks, probes, studies, figures."""
    from sonde.cli.output import console, print_json, table

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


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").split("\n", 1)[0]


def _models() -> list[dict[str, Any]]:
    from sonde.models import MODELS

    return _configured(MODELS)


def _rules() -> list[dict[str, Any]]:
    from sonde.rules import RULES

    return _configured(RULES)


def _tasks() -> list[dict[str, Any]]:
    from sonde.tasks import TASKS

    return _configured(TASKS)


def _configured(table: Any) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [
        {"name": name, "about": _first_line(entry), "options": asdict(entry())}
        for name, entry in table.items()
    ]


def _probes() -> list[dict[str, Any]]:
    from sonde.probes import PROBES

    return [{"name": name, "about": _first_line(probe)} for name, probe in PROBES.items()]


def _studies() -> list[dict[str, Any]]:
    from sonde.studies import STUDIES

    return [{"name": name, "about": study.question, "seeds": study.seeds} for name, study in STUDIES.items()]


def _figures() -> list[dict[str, Any]]:
    from sonde.figures import FIGURES

    return [
        {"name": name, "about": figure.title, "study": figure.study, "path": figure.path}
        for name, figure in FIGURES.items()
    ]


_SOURCES = {
    "models": _models,
    "rules": _rules,
    "tasks": _tasks,
    "probes": _probes,
    "studies": _studies,
    "figures": _figures,
}
