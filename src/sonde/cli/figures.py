"""`sonde figures`, and the drawing at the end of `sonde run`."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import Only, OutFolder, Quiet, RunsFolder, Scale, Seeds, Set, seeds_of
from sonde.core.errors import SondeError

if TYPE_CHECKING:
    from sonde.show.figures import Evidence
    from sonde.show.figures.render import DrawnFigures


def figures(
    study: Annotated[
        str | None, typer.Argument(help="Which study; with --from, only this one.", show_default=False)
    ] = None,
    runs: RunsFolder = Path("runs"),
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Draw from files in the paper layout instead.", show_default=False),
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
    from sonde.cli.study_evidence import from_store
    from sonde.core.errors import pick
    from sonde.show.figures import figures_of
    from sonde.studies import STUDIES

    if study is not None:
        pick(STUDIES, study, "study")
    if source is not None:
        from sonde.show.paper.from_files import from_files

        read = from_files(source)
        if study is not None and study not in read:
            raise SondeError(f"{source} holds no file of the {study} study; there are files of {', '.join(read)}")
        for name, evidence in read.items():
            if study in (None, name):
                draw(evidence, out, study=name, variant=variant, quiet=quiet)
    elif study is None:
        raise SondeError("name a study (`sonde figures residual`) or a folder of files (`--from DIR`)")
    else:
        narrowing = {"changes": set or [], "choices": only or []}
        groups = from_store(study, runs, scale=scale, seeds=seeds_of(seeds), tell=not quiet, **narrowing)
        for label, gathered in groups.items():
            draw(gathered.evidence, out / folder_of(label), study=study, variant=variant, quiet=quiet)
        if not figures_of(study) and not quiet:
            print(f"{study} has no figures: `sonde report --runs {runs}` shows its findings")


def draw(
    evidence: "Evidence", out: Path, *, study: str, variant: str | None = None, quiet: bool = False
) -> "DrawnFigures":
    """Draw a study's figures and say where they are, and which could not be drawn."""
    from sonde.cli.terminal import count
    from sonde.show.figures.render import draw_all

    with count("drawing figures", quiet=quiet) as on_progress:
        drawn = draw_all(evidence, out, study=study, variant=variant, on_progress=on_progress)
    for name, why in drawn.skipped.items():
        print(f"sonde: not drawn: {name} ({why})", file=sys.stderr)
    if drawn.files and not quiet:
        folders = sorted({file.parent for file in drawn.files})
        pictures = [file for file in drawn.files if file.suffix == ".png"]
        many = f"{len(pictures)} figure{'s' * (len(pictures) != 1)}"
        print(f"{many}, as PNG and PDF with captions, in {' and '.join(map(str, folders))}")
    return drawn


def folder_of(label: str) -> str:
    """Where the figures of one combination of swept values lie below the others; nowhere of its own where none are."""
    return re.sub(r"[^\w.=,+-]+", "_", label.replace(", ", ","))
