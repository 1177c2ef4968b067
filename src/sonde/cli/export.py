"""`sonde export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sonde.cli.options import OutFolder, Quiet, RunsFolder, Scale, Seeds, Set


def export(
    runs: RunsFolder = Path("runs"),
    layout: Annotated[Literal["paper"], typer.Option(help="The file layout.")] = "paper",
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
    from sonde.paper.write import residual_documents
    from sonde.store import files

    evidence = from_store(
        "residual", runs, scale=scale, seeds=seeds_of(seeds), changes=set or [], tell=not quiet
    )
    contents = {
        name: json.dumps(document, indent=1, allow_nan=False).encode()
        for name, document in residual_documents(evidence).items()
    }
    files.make_folder(out)
    for name, content in contents.items():
        files.write(out / name, content)
        if not quiet:
            print(out / name)
