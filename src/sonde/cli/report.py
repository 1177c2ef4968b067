"""`sonde report`."""

import itertools
import sys
from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import Quiet, RunsFolder
from sonde.core.errors import SondeError, unicode


def report(
    runs: RunsFolder = Path("runs"),
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")] = Path("report.html"),
    figures: Annotated[bool, typer.Option(help="Draw the studies' figures into the report.")] = True,
    title: Annotated[str, typer.Option(metavar="TEXT", help="The report's title.")] = "What the runs show",
    with_provenance: Annotated[
        bool,
        typer.Option(
            "--with-provenance",
            help="Name the machines that trained the runs and the folder's whole path; a page that is sent round is "
            "better off without.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML file to read in a browser: findings, audit, charts to play with, figures, runs.

    It needs no network and no other file.
    """
    if out.is_dir():
        raise SondeError(f"{out} is a folder: name a file, for example --out {out / 'report.html'}")

    from sonde.cli.terminal import count
    from sonde.core.atomic import remove_stale
    from sonde.show.figures import figures_of
    from sonde.show.report.contents import report_contents
    from sonde.show.report.page import Pictures, draw_pictures, render_report
    from sonde.store import files
    from sonde.store.load import load
    from sonde.store.run import without_machines

    stored = load(runs)
    if not stored.runs and not stored.watched:
        raise SondeError(f"{runs} holds no runs: `sonde run STUDY --runs {runs}` makes them")
    remove_stale(files.make_folder(out.parent))
    source = unicode(str(runs))
    if not with_provenance:
        stored, source = without_machines(stored), unicode(runs.name) if isinstance(runs, Path) else source
    found = report_contents(stored, source=source, title=title)
    drawn = {}
    total = sum(len(figures_of(section.drawn_as)) for section in found.sections)
    done = itertools.count()
    with count("drawing figures", quiet=quiet) as on_progress:
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
            print(f"sonde: not drawn: {name} ({why})", file=sys.stderr)
    images = sum(len(known.drawn) for known in drawn.values())
    shown = [section for section in found.sections if section.findings]
    studies = ", ".join(f"{section.study} ({section.scale})" for section in shown) or "no study"
    said = [
        f"{len(found.runs)} run{'s' * (len(found.runs) != 1)}",
        studies,
        f"{images} figure{'s' * (images != 1)}",
    ]
    if found.watched:
        seen = f"{len(found.watched)} watched run{'s' * (len(found.watched) != 1)}"
        said = [*said, seen] if found.runs else [seen]
    print(f"{out}: {', '.join(said)}, {len(page) / 1e6:.1f} MB")
