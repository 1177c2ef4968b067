"""`sonde report`: one HTML page about the runs of a store."""

import itertools
from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import Quiet, RunsFolder, output_file
from sonde.core.errors import SondeError, unicode


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
    from sonde.cli.terminal import plural, print_notice, progress_bar
    from sonde.show.figures import figures_of
    from sonde.show.report.contents import report_contents
    from sonde.show.report.page import Pictures, draw_pictures, render_report
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
    found = report_contents(stored, source=source, title=title)
    drawn = {}
    total = sum(len(figures_of(section.drawn_as)) for section in found.sections)
    done = itertools.count()
    with progress_bar("drawing figures", quiet=quiet) as on_progress:
        for section in found.sections:
            drawn[section.anchor] = (
                draw_pictures(section.evidence, section.drawn_as, lambda: on_progress(next(done), total))
                if figures
                else Pictures()
            )
    page = render_report(found, drawn).encode()
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
    print(f"{out}: {', '.join(said)}, {len(page) / 1e6:.1f} MB")
