"""Names for shell completion (`sonde --install-completion`): studies, rules, models, tasks, runs, terms.

Nothing here imports torch.  The names of a table are read from the source of its package.
"""

import ast
import os
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import typer

_TABLES = {"study": ("studies", "STUDIES"), "rule": ("rules", "RULES"), "model": ("models", "MODELS")}
_TABLES |= {"task": ("tasks", "TASKS")}


def names_of(kind: str) -> list[str]:
    """The keys of the table of studies, rules, models or tasks, in their order."""
    package, table = _TABLES[kind]
    tree = ast.parse(files("sonde").joinpath(package, "__init__.py").read_text("utf-8"))
    tables = (node for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == table)
    return [
        str(key.value) for node in tables for key in getattr(node.value, "keys", []) if isinstance(key, ast.Constant)
    ]


def complete(kind: str) -> Callable[[str], list[str]]:
    """A function for typer: the names of a table that begin with what was typed."""
    return lambda incomplete: [name for name in names_of(kind) if name.startswith(incomplete)]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """The ids in the folder of --runs that begin or end with what was typed."""
    ids = sorted(_ids(str(ctx.params.get("runs") or "runs")))
    begun = [id for id in ids if id.startswith(incomplete)]
    return begun or [end for id in ids if (end := id.rpartition("-")[2]).startswith(incomplete)]


def _ids(root: str) -> Iterator[str]:
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and os.path.exists(f"{entry.path}/manifest.json"):
                    yield entry.name
    except OSError:
        return


def complete_term(incomplete: str) -> list[str]:
    """The names that `sonde explain` knows."""
    from sonde.analysis.explanations import EXPLANATIONS

    names = [text.name for text in EXPLANATIONS] + [
        name for kind in ("rule", "model", "task") for name in names_of(kind)
    ]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def complete_choice(incomplete: str) -> list[str]:
    """`KEY=VALUE` of --only, --set and --where: keys, and the names of a rule, model or task."""
    key, equals, start = incomplete.partition("=")
    if not equals:
        return [f"{kind}=" for kind in ("model", "rule", "task") if kind.startswith(key)]
    return [f"{key}={name}" for name in names_of(key) if name.startswith(start)] if key in _TABLES else []


def complete_metric(incomplete: str) -> list[str]:
    """The metrics of trained runs."""
    from sonde.metrics import TRAINED

    known: dict[str, Any] = TRAINED
    return [name for name in known if name.startswith(incomplete)]
