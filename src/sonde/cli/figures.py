"""`sonde figures`, and the drawing at the end of `sonde run`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import Only, OutFolder, Quiet, RunsFolder, Scale, Seeds, Selection, Set, seeds_of
from sonde.core.errors import SondeError

if TYPE_CHECKING:
    from sonde.show.figures import Evidence
    from sonde.show.figures.render import DrawnFigures


def figures_command(
    study: Annotated[str | None, typer.Argument(help="The study; with --from, draw only this one.")] = None,
    runs: RunsFolder = Path("runs"),
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Draw from files in the paper layout instead.")
    ] = None,
    out: OutFolder = Path("out"),
    variant: Annotated[
        str | None, typer.Option(help="raw or scaled, for all figures of `residual` (default: each figure's own).")
    ] = None,
    scale: Scale = "quick",
    seeds: Seeds = None,
    set: Set = None,
    only: Only = None,
    quiet: Quiet = False,
) -> None:
    """Draw a study's figures from stored runs, or from files in the paper layout."""
    from sonde.core.errors import pick
    from sonde.show.figures import figures_of
    from sonde.studies import STUDIES

    if study is not None:
        pick(STUDIES, study, "study")
    if source is not None:
        from sonde.show.paper import from_files

        read = from_files(source)
        if study is not None and study not in read:
            raise SondeError(f"{source} holds no file of the {study} study; there are files of {', '.join(read)}")
        for name, evidence in read.items():
            if study in (None, name):
                draw_figures(evidence, out, study=name, variant=variant, quiet=quiet)
    elif study is None:
        raise SondeError("name a study (`sonde figures residual`) or a folder of files (`--from DIR`)")
    else:
        selection = Selection(study, scale, seeds_of(seeds), set or (), only or ())
        for label, gathered in selection.read(runs, quiet=quiet).items():
            draw_figures(gathered.evidence, out / folder_of(label), study=study, variant=variant, quiet=quiet)
        if not figures_of(study) and not quiet:
            print(f"{study} has no figures: `sonde report --runs {runs}` shows its findings")


def draw_figures(
    evidence: "Evidence", out: Path, *, study: str, variant: str | None = None, quiet: bool = False
) -> "DrawnFigures":
    """Draw the figures of a study; print their folder, and which could not be drawn."""
    from sonde.cli.terminal import plural, print_notice, progress_bar
    from sonde.show.figures.render import draw_all

    with progress_bar("drawing figures", quiet=quiet) as on_progress:
        drawn = draw_all(evidence, out, study=study, variant=variant, on_progress=on_progress)
    for name, why in drawn.skipped.items():
        print_notice(f"not drawn: {name} ({why})")
    if drawn.files and not quiet:
        folders = sorted({file.parent for file in drawn.files})
        figures = plural(sum(file.suffix == ".png" for file in drawn.files), "figure")
        print(f"{figures}, as PNG and PDF with captions, in {' and '.join(map(str, folders))}")
    return drawn


def folder_of(label: str) -> str:
    """The name of the folder for the figures of a group of runs; empty where the group has no label."""
    return re.sub(r"[^\w.=,+-]+", "_", label.replace(", ", ","))
