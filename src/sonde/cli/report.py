"""`sonde report`, `sonde figures`, `sonde live` and `sonde playground`: pages and figures.

Pages are one HTML file each, or are served while runs train.
"""

import atexit
import os
import re
import secrets
import tempfile
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
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
    seeds_of,
)
from sonde.core.errors import SondeError, pick, print_notice, unicode
from sonde.store import files
from sonde.store.files import place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from sonde.show.figures import Evidence, Layout
    from sonde.show.figures.render import DrawnFigures
    from sonde.show.live import Server
    from sonde.show.report.sections import Section


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

    Example: [bold]sonde report --out report.html[/bold]
    """
    from sonde.show.report import make_report, read_for_report
    from sonde.store.run import without_machines

    files.prepare_output_file(out, "--out", "report.html")
    stored, reader = read_for_report(runs)
    if not stored.runs and not stored.watched:
        raise SondeError(f"{runs} holds no runs: `sonde run STUDY --runs {runs}` makes them")
    source = unicode(str(runs))
    if not with_provenance:
        stored, source = without_machines(stored), unicode(runs.name) if isinstance(runs, Path) else source
    with nullcontext(lambda done, total: None) if quiet or not figures else _bar() as on_progress:
        found, drawn, page = make_report(
            stored, source=source, title=title, figures=figures, on_progress=on_progress, reader=reader
        )
    files.write(out, page)
    if quiet:
        return
    from sonde.cli.terminal import plural, print_text

    for known in drawn.values():
        for name, why in known.skipped.items():
            print_notice(f"not drawn: {name} ({why})")
    images = sum(len(known.drawn) for known in drawn.values())
    shown = [section for section in found.sections if section.findings]
    studies = [f"{section.study} ({section.scale})" for section in shown]
    counts = {"run": len(found.runs), "watched run": len(found.watched), "figure": images}
    said = [plural(n, noun) for noun, n in counts.items() if n]
    print_text(f"{out}: {', '.join([*said, *studies])}, {len(page) / 1e6:.1f} MB")
    _print_answers(shown, out)


def _bar() -> "AbstractContextManager[Callable[[int, int], None]]":
    from sonde.cli.terminal import progress_bar  # imports rich, which a quiet report does not need

    return progress_bar("drawing figures", quiet=False)


def _print_answers(sections: "Sequence[Section]", out: Path) -> None:
    """Print the answer of each study that the page has, and how sure it is."""
    from sonde.analysis.conclusions import Conclusion
    from sonde.cli.terminal import print_conclusion

    for section in sections:
        if found := section.conclusion:
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
    """Draw a study's figures from stored runs, or from files in the paper layout.

    Example: [bold]sonde figures residual --out figures[/bold]
    """
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


# ── live page and playground ────────────────────────────────────────────────────────────────────────
_TOKEN = "SONDE_LIVE_TOKEN"  # an environment variable
_SHORTEST_TOKEN = 16


def local_folder(named: str | Path) -> Path:
    """Parse `--runs`; a URL is refused before any request."""
    found = None if re.match(r"(?!file:)[a-z][a-z0-9+]*://", str(named)) else place(named)
    if not isinstance(found, Path):
        raise SondeError(
            f"{named}: live follows folders of this machine; `sonde report --runs {named}` writes the page as it is now"
        )
    return found


def live_command(
    runs: Annotated[
        Path, typer.Option("--runs", metavar="DIR", parser=local_folder, help="The folder of runs.")
    ] = Path("runs"),
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="The port to serve on; 0 takes a free one.")
    ] = 0,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Deprecated, because other users see it in the list of processes: set SONDE_LIVE_TOKEN instead.",
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser, too.")] = False,
) -> None:
    """Serve the report's page while runs train or are watched; the page updates as the store is written.

    Run [bold]sonde live[/bold] in one terminal and [bold]sonde run residual[/bold] in another. Your own loop with
    [bold]sonde.watch(model, optimizer)[/bold] appears there, too. Each run shows whether it is running, stalled or
    interrupted. Ctrl-C ends the page, not the runs.

    Only this machine can reach the page, at the printed address. From another machine, run [bold]ssh -L
    PORT:127.0.0.1:PORT machine[/bold] and open the same address. Nothing is written to the store.

    The environment variable SONDE_LIVE_TOKEN sets the secret part of the address. With the same port and token, open
    pages reconnect.

    Example: [bold]sonde live --port 8765[/bold]
    """
    if runs.exists() and not runs.is_dir():
        raise SondeError(f"{runs} is a file: --runs names a folder of runs")
    if token is not None:
        print_notice(f"--token is deprecated, because other users see it: set {_TOKEN} instead")
    token = token or os.environ.get(_TOKEN) or secrets.token_urlsafe(24)
    if not re.fullmatch(rf"[A-Za-z0-9_-]{{{_SHORTEST_TOKEN},}}", token):
        raise SondeError(f"{_TOKEN}: give at least {_SHORTEST_TOKEN} letters, digits, dashes or underscores")

    from sonde.show.live import Server

    server = Server(port, token)
    print(server.url, flush=True)
    try:
        _serve(server, runs, open_=open_)
    except KeyboardInterrupt:
        print_notice("the live page ended; runs that train or are watched go on")
        raise typer.Exit(130) from None
    finally:
        server.server_close()


def _serve(server: "Server", runs: Path, *, open_: bool) -> None:
    if open_:
        _open_in_browser(server.url)
    waiting = "" if runs.is_dir() else ", which is not there yet"
    print_notice(f"following {runs}{waiting}; Ctrl-C ends the page, not the runs")

    Thread(target=server.serve_forever, daemon=True).start()

    from sonde.show.live import Feed
    from sonde.show.live.store_poller import PageState, StorePoller

    feed, state = Feed(), PageState(unicode(str(runs)), "What the runs show so far")
    server.ready(state.page, feed)
    StorePoller(runs, feed, state).run()


def _open_in_browser(url: str) -> None:
    """Open the page through a file that only this user can read, so that the browser's command line has no token."""
    import webbrowser

    number, name = tempfile.mkstemp(prefix="sonde-live-", suffix=".html")
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={url}">')
    atexit.register(Path(name).unlink, missing_ok=True)
    webbrowser.open(Path(name).as_uri())


def playground_command(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")] = Path("playground.html"),
    quiet: Quiet = False,
) -> None:
    """Write one HTML file in which you build and train networks and see every layer live.

    It opens in a browser by double-click and needs no internet, no server and no other file.

    Example: [bold]sonde playground --out playground.html[/bold]
    """
    from sonde.show.playground import render_playground

    page = render_playground().encode()
    files.write(files.prepare_output_file(out, "--out", "playground.html"), page)
    if not quiet:
        print(f"{out}: {len(page) / 1e3:.0f} kB; open it in a browser")
