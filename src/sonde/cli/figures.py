"""`sonde figures`."""

from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import Only, OutFolder, Quiet, RunsFolder, Scale, Seeds, Set
from sonde.errors import SondeError


def figures(
    study: Annotated[
        str | None, typer.Argument(help="Which study; not needed with --from.", show_default=False)
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
    from sonde.cli.drawing import draw
    from sonde.cli.evidence import from_store
    from sonde.cli.plan import seeds_of

    if source is not None:
        from sonde.studies.from_files import residual_from_files

        evidence, study = residual_from_files(source), "residual"
    elif study is None:
        raise SondeError("name a study (`sonde figures residual`) or a folder of files (`--from DIR`)")
    else:
        evidence = from_store(
            study,
            runs,
            scale=scale,
            seeds=seeds_of(seeds),
            changes=set or [],
            choices=only or [],
            tell=not quiet,
        )
    draw(evidence, out, study=study, variant=variant, quiet=quiet)
