"""`sonde figures`."""

from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import Only, OutFolder, Quiet, RunsFolder, Scale, Seeds, Set
from sonde.errors import SondeError


def figures(
    study: Annotated[
        str | None, typer.Argument(help="Which study; with --from, only this one.", show_default=False)
    ] = None,
    runs: RunsFolder = Path("runs"),
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR", help="Draw from files in the paper layout instead.", show_default=False
        ),
    ] = None,
    out: OutFolder = Path("out"),
    variant: Annotated[
        str | None,
        typer.Option(
            help="raw or scaled, for all figures of `residual` (default: each figure's own).",
            show_default=False,
        ),
    ] = None,
    scale: Scale = "quick",
    seeds: Seeds = None,
    set: Set = None,
    only: Only = None,
    quiet: Quiet = False,
) -> None:
    """Draw a study's figures from stored runs, or from files in the paper layout."""
    from sonde.cli.drawing import draw, folder_of
    from sonde.cli.evidence import from_store
    from sonde.cli.plan import seeds_of
    from sonde.errors import pick
    from sonde.studies import STUDIES

    if study is not None:
        pick(STUDIES, study, "study")
    if source is not None:
        from sonde.studies.from_files import from_files

        read = from_files(source)
        if study is not None and study not in read:
            raise SondeError(
                f"{source} holds no file of the {study} study; there are files of {', '.join(read)}"
            )
        evidence = {name: known for name, known in read.items() if study in (None, name)}
    elif study is None:
        raise SondeError("name a study (`sonde figures residual`) or a folder of files (`--from DIR`)")
    else:
        narrowing = {"changes": set or [], "choices": only or []}
        found = from_store(study, runs, scale=scale, seeds=seeds_of(seeds), tell=not quiet, **narrowing)
        for label, gathered in found.items():
            draw(gathered.evidence, out / folder_of(label), study=study, variant=variant, quiet=quiet)
        return
    for name, known in evidence.items():
        draw(known, out, study=name, variant=variant, quiet=quiet)
