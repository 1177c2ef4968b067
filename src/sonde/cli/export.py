"""`sonde export`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sonde.cli.options import OutFolder, Quiet, RunsFolder, Scale, Seeds, Set
from sonde.errors import SondeError


def export(
    runs: RunsFolder = Path("runs"),
    layout: Annotated[Literal["paper"], typer.Option(help="The file layout.")] = "paper",
    study: Annotated[
        str | None,
        typer.Option(help="Only this study (default: all that the folder holds).", show_default=False),
    ] = None,
    out: OutFolder = Path("export"),
    scale: Scale = "quick",
    seeds: Seeds = None,
    set: Set = None,
    quiet: Quiet = False,
) -> None:
    """Write stored runs as the JSON files that existing plotting scripts read."""
    import json

    from sonde.cli.evidence import from_store
    from sonde.cli.plan import seeds_of
    from sonde.errors import pick
    from sonde.paper.writing import WRITERS
    from sonde.store import files
    from sonde.studies.evidence import NoRuns
    from sonde.studies.settings import UnknownKey

    documents: dict[str, Any] = {}
    empty: list[NoRuns | UnknownKey] = []
    if study is not None:
        pick(WRITERS, study, "study with a place in the paper layout,")
    for name in WRITERS if study is None else [study]:
        try:
            tell = study is not None and not quiet
            found = from_store(name, runs, scale=scale, seeds=seeds_of(seeds), changes=set or [], tell=tell)
        except (NoRuns, UnknownKey) as error:
            empty.append(error)
            continue
        if len(found) > 1:
            raise SondeError(
                f"--set: a file holds one recipe; export {' and '.join(found)} one after the other"
            )
        (gathered,) = found.values()
        documents |= WRITERS[name](gathered.evidence)
    if not documents:
        raise (
            empty[0]
            if study
            else SondeError(f"nothing to export: {'; '.join(str(error) for error in empty)}")
        )
    contents = {
        name: json.dumps(tree, indent=1, allow_nan=False).encode() for name, tree in documents.items()
    }
    for name, content in contents.items():
        files.make_folder((out / name).parent)
        files.write(out / name, content)
        if not quiet:
            print(out / name)
