"""`sonde report` and `sonde figures`: one HTML page, or the figures of a study, from stored runs."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import (
    FigureLayout,
    Only,
    OutFolder,
    Quiet,
    RunsFolder,
    Scale,
    Seeds,
    Selection,
    Set,
    complete,
    output_file,
    seeds_of,
)
from sonde.core.errors import SondeError, print_notice, unicode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sonde.show.figures import Evidence, Layout
    from sonde.show.figures.render import DrawnFigures
    from sonde.show.report import Section


def report_command(
    runs: RunsFolder = Path("runs"),
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")] = Path("report.html"),
    figures: Annotated[bool, typer.Option(help="Draw the figures of the studies into the report.")] = True,
    title: Annotated[str, typer.Option(metavar="TEXT", help="The report's title.")] = "What the runs show",
    with_provenance: Annotated[
        bool,
        typer.Option(
            "--with-provenance",
            help="Name the machines that trained the runs and the folder's whole path; leave it off for a page that "
            "you share.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML file to read in a browser: findings, audit, interactive charts, figures, runs.

    It needs no internet and no other file.
    """
    from sonde.cli.terminal import plural, print_text, progress_bar
    from sonde.show.report.page import make_report
    from sonde.store import files
    from sonde.store.load import load
    from sonde.store.run import without_machines

    output_file(out, "--out", "report.html")
    stored = load(runs)
    if not stored.runs and not stored.watched:
        raise SondeError(f"{runs} holds no runs: `sonde run STUDY --runs {runs}` makes them")
    source = unicode(str(runs))
    if not with_provenance:
        stored, source = without_machines(stored), unicode(runs.name) if isinstance(runs, Path) else source
    with progress_bar("drawing figures", quiet=quiet) as on_progress:
        found, drawn, page = make_report(stored, source=source, title=title, figures=figures, on_progress=on_progress)
    files.write(out, page)
    if quiet:
        return
    for known in drawn.values():
        for name, why in known.skipped.items():
            print_notice(f"not drawn: {name} ({why})")
    images = sum(len(known.drawn) for known in drawn.values())
    shown = [section for section in found.sections if section.findings]
    studies = ", ".join(f"{section.study} ({section.scale})" for section in shown) or "no study"
    said = [plural(len(found.runs), "run"), studies, plural(images, "figure")]
    if found.watched:
        watched = plural(len(found.watched), "watched run")
        said = [*said, watched] if found.runs else [watched]
    print_text(f"{out}: {', '.join(said)}, {len(page) / 1e6:.1f} MB")
    _print_answers(shown, out)


def _print_answers(sections: "Sequence[Section]", out: Path) -> None:
    """Print the answer of each study that the page has, and how sure it is."""
    from sonde.analysis.conclusions import Conclusion
    from sonde.cli.terminal import print_conclusion

    for section in sections:
        from sonde.studies import STUDIES  # imports torch, which a report of watched runs does not need

        if section.study in STUDIES:
            found = STUDIES[section.study].conclusion(section.findings)
            print_conclusion(Conclusion(answer=f"{section.study}: {found.answer}", sure=found.sure))
    print_conclusion(Conclusion(answer=f"Next: open {out} in a browser."))


def figures_command(
    study: Annotated[
        str | None, typer.Argument(help="The study; with --from, draw only this one.", autocompletion=complete("study"))
    ] = None,
    runs: RunsFolder = Path("runs"),
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Draw from files in the paper layout instead.")
    ] = None,
    out: OutFolder = Path("out"),
    variant: Annotated[
        str | None, typer.Option(help="raw or scaled, for all figures of `residual` (default: each figure's own).")
    ] = None,
    layout: FigureLayout = "study",
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
                draw_figures(evidence, out, study=name, variant=variant, layout=layout, quiet=quiet)
    elif study is None:
        raise SondeError("name a study (`sonde figures residual`) or a folder of files (`--from DIR`)")
    else:
        selection = Selection(study, scale, seeds_of(seeds), set or (), only or ())
        for label, gathered in selection.read(runs, quiet=quiet).items():
            folder = out / folder_of(label)
            draw_figures(gathered.evidence, folder, study=study, variant=variant, layout=layout, quiet=quiet)
        if not figures_of(study) and not quiet:
            print(f"{study} has no figures: `sonde report --runs {runs}` shows its findings")


def draw_figures(
    evidence: "Evidence",
    out: Path,
    *,
    study: str,
    variant: str | None = None,
    layout: "Layout" = "study",
    quiet: bool = False,
    show_folder: bool = True,
) -> "DrawnFigures":
    """Draw the figures of a study; print which could not be drawn and, with `show_folder`, their folder."""
    from sonde.cli.terminal import plural, progress_bar
    from sonde.show.figures.render import draw_all

    with progress_bar("drawing figures", quiet=quiet) as on_progress:
        drawn = draw_all(evidence, out, study=study, variant=variant, layout=layout, on_progress=on_progress)
    for name, why in drawn.skipped.items():
        print_notice(f"not drawn: {name} ({why})")
    if drawn.files and show_folder and not quiet:
        folders = sorted({file.parent for file in drawn.files})
        figures = plural(sum(file.suffix == ".png" for file in drawn.files), "figure")
        print(f"{figures}, as PNG and PDF with captions, in {' and '.join(map(str, folders))}")
    return drawn


def folder_of(label: str) -> str:
    """The name of the folder for the figures of a group of runs; empty where the group has no label."""
    return re.sub(r"[^\w.=,+-]+", "_", label.replace(", ", ","))
