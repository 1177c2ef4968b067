"""`sonde list`, `sonde explain` and `sonde data`: names that commands accept, what they mean, and data sets.

Importing everything that has a name takes seconds, so what the first two say is kept in the cache on disk.  Its key
covers the source code of Sonde.
"""

import inspect
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sonde.cli.options import DataRoot, Json, Quiet, complete_term
from sonde.core.errors import SondeError, pick
from sonde.store.files import cache_key, read_cached, write_cached

if TYPE_CHECKING:
    from sonde.analysis.explanations import Explanation
    from sonde.store.datasets import Dataset

_Listed = Literal["models", "rules", "tasks", "probes", "studies", "figures"]


def list_command(
    kind: Annotated[_Listed | None, typer.Argument(help="List only these.")] = None, json: Json = False
) -> None:
    """List the models, rules, tasks, probes, studies and figures that commands accept.

    Plugins that are installed with an entry point follow the built-in names.

    Example: [bold]sonde list rules[/bold]
    """
    from sonde.cli.terminal import print_json, print_table, print_text

    listed = _cached("list", _listed)
    kinds = [kind] if kind else list(listed)
    found = {name: listed[name] + _plugins(name) for name in kinds}
    if json:
        print_json(found[kind] if kind else found)
        return
    for name, entries in found.items():
        studies: dict[tuple[str, str], list[str]] = {}  # of figures: several studies may draw one
        for entry in entries:
            studies.setdefault((entry["name"], entry["about"]), []).append(entry.get("study", ""))
        rows = [[*shown, ", ".join(of)] if any(of) else [*shown] for shown, of in studies.items()]
        headings = {"name": "left", "about": "left"} | ({"studies": "left"} if name == "figures" else {})
        print_table(name, headings, rows, wrapped="about")
        if name != kinds[-1]:
            print_text()


def print_studies() -> None:
    """Print the names and questions of the studies, with what each takes at quick scale."""
    from sonde.cli.terminal import print_table

    rows = [[entry["name"], entry["about"]] for entry in _cached("list", _listed)["studies"]]
    print_table("studies", {"name": "left", "about": "left"}, rows, wrapped="about")


def _first_paragraph(documented: object) -> str:
    return " ".join((inspect.getdoc(documented) or "").split("\n\n", 1)[0].split())


def _cached(what: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `compute` returns, from the cache on disk where it is there."""
    import json

    key = cache_key(what, libraries=())
    if (known := read_cached("names", key)) is None:
        write_cached("names", key, known := json.dumps(compute()).encode())
    found: dict[str, Any] = json.loads(known)
    return found


def _listed() -> dict[str, Any]:
    """What `sonde list` says about everything that is built in, by kind."""
    from sonde.plugins import BUILT_IN
    from sonde.show.figures import figures_by_study
    from sonde.studies import STUDIES

    configured = {f"{part}s": [_entry(part, *item) for item in BUILT_IN[part].items()] for part in _PARTS}
    studies = [{"name": name, "about": study.question, "seeds": study.seeds} for name, study in STUDIES.items()]
    figures = [
        {"name": name, "about": figure.title, "study": study, "path": figure.paths[study]}
        for study, name, figure in figures_by_study()
    ]
    return {**configured, "studies": studies, "figures": figures}


_PARTS = ("model", "rule", "task", "probe")
"""What a plugin can be and `sonde list` names."""


def _entry(part: str, name: str, documented: Any) -> dict[str, Any]:
    from sonde.config import defaults

    options = {} if part == "probe" else {"options": defaults(documented)}
    return {"name": name, "about": _first_paragraph(documented), **options}


def _plugins(kind: str) -> list[dict[str, Any]]:
    """The installed plugins of a kind."""
    if not entry_points(group=f"sonde.{kind}"):
        return []
    from sonde.plugins import load_available

    part = kind.removesuffix("s")
    return [_entry(part, plugin.name, plugin.kind) for plugin in load_available(part)]


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

    Names are metrics, rules, models, tasks, diagnoses and words. Without a name, all names are listed by kind.

    Example: [bold]sonde explain vanishing_gradient[/bold]
    """
    from sonde.cli.terminal import print_json, print_text

    explained = _cached("explain", _explained)
    if name is None:
        known = explained["all"]
        if json:
            print_json(known)
            return
        for kind in dict.fromkeys(text["kind"] for text in known):
            names = [text["name"] for text in known if text["kind"] == kind]
            print_text(f"{kind}: {', '.join(names)}")
        return
    found = explained["asked"].get(name) or _asked(name)
    if json:
        print_json([text for text, _ in found])
        return
    for _, printed in found:
        for line in printed.splitlines():
            print_text(line)


def _explained() -> dict[str, Any]:
    """Every explanation, and the answers to every name, symbol and label as its table writes it."""

    from sonde.analysis.explanations import every_key

    known = _known()
    return {"all": [asdict(text) for text in known], "asked": {name: _asked(name) for name in every_key(known)}}


def _known() -> "list[Explanation]":
    from sonde.analysis.explanations import EXPLANATIONS, documented
    from sonde.plugins import BUILT_IN

    return [*EXPLANATIONS, *(text for kind, table in BUILT_IN.items() for text in documented(kind, table))]


def _asked(name: str) -> list[tuple[dict[str, Any], str]]:
    """The explanations of a name, each as a dictionary and as text; raises where there is none."""

    from sonde.analysis.explanations import explanations

    return [(asdict(text), str(text)) for text in explanations(name, _known())]


# ── data sets ───────────────────────────────────────────────────────────────────────────────────────
def fetch_command(
    name: Annotated[str, typer.Argument(help="The data set: cifar10.", show_default=False)],
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Download a data set from its own site, verify its checksum, and store it where runs find it.

    An interrupted download resumes where it stopped.

    Example: [bold]sonde data fetch cifar10[/bold]
    """
    from sonde.cli.terminal import progress_bar
    from sonde.store.datasets import DATASETS, data_folder, fetch_archive

    dataset, root = pick(DATASETS, name, "data set"), data_folder(data_root)
    if not isinstance(root, Path):
        raise SondeError(f"{root}: a data set is fetched into a folder; name one with --data-root")
    place = _unpacked(dataset, root)
    if place is not None:
        if not quiet:
            print(f"{place}: already there, nothing to fetch")
        return
    with progress_bar(dataset.archive.name, quiet=quiet, of_bytes=True) as on_progress:
        archive = fetch_archive(dataset.archive, root, on_progress=on_progress)
    if not quiet:
        print(f"{archive}: complete, checksum verified")
    dataset.find(root)  # raises where the data set cannot be used


def path_command(
    name: Annotated[str | None, typer.Argument(help="Only this data set.")] = None,
    data_root: DataRoot = None,
    json: Json = False,
) -> None:
    """Print where each data set is and in which form.

    The exit code is 2 if one is missing.

    Example: [bold]sonde data path[/bold]
    """
    from sonde.cli.terminal import print_json
    from sonde.store.datasets import DATASETS, FORMS, Absent, data_folder

    root = data_folder(data_root)
    chosen = DATASETS if name is None else {name: pick(DATASETS, name, "data set")}
    found: list[dict[str, Any]] = []
    absent: Absent | None = None
    for key, dataset in chosen.items():
        known: dict[str, Any] = {"name": key, "root": str(root), "form": None, "path": None}
        try:
            source = dataset.find(root)
            known |= {"form": source.form, "path": str(source.place)}
            if not json:
                print(f"{key}: {source.place} ({FORMS[source.form]})")
        except Absent as error:
            absent = error
        found.append(known | {"looked_for": [str(place) for place in dataset.looked_for(root)]})
    if json:
        print_json(found if name is None else found[0])
    if absent is not None:
        raise absent


def _unpacked(dataset: "Dataset", root: Path) -> Path | None:
    """The folder of the official files, if they are unpacked; other forms do not replace the archive."""

    try:
        source = dataset.find(root)
    except SondeError:
        return None
    return source.place if source.form == "pickles" else None
