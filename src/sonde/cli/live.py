"""`sonde live` and `sonde playground`: the report's page while runs train, and a page in which networks train."""

import atexit
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import Quiet, output_file
from sonde.core.errors import SondeError, print_notice, unicode
from sonde.store.files import place

if TYPE_CHECKING:
    from sonde.show.live import Server

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

    Run [bold]sonde live --runs runs[/bold] in one terminal and [bold]sonde run residual[/bold] in another. Your own
    loop with [bold]sonde.watch(model, optimizer)[/bold] appears there as well. Each run shows whether it is running,
    stalled or interrupted. Ctrl-C ends the page, not the runs.

    The page is only reachable from this machine, at the address that is printed. The environment variable
    SONDE_LIVE_TOKEN sets the secret part of the address: with the same port and token, open pages reconnect. Nothing
    is written to the store. From another machine: [bold]ssh -L PORT:127.0.0.1:PORT machine[/bold], then open the same
    address.
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
        _open(server.url)
    waiting = "" if runs.is_dir() else ", which is not there yet"
    print_notice(f"following {runs}{waiting}; Ctrl-C ends the page, not the runs")

    from threading import Thread

    Thread(target=server.serve_forever, daemon=True).start()

    from sonde.show.live import Feed
    from sonde.show.live.store_poller import PageState, StorePoller

    feed, state = Feed(), PageState(unicode(str(runs)), "What the runs show so far")
    server.ready(state.page, feed)
    StorePoller(runs, feed, state).run()


def _open(url: str) -> None:
    """Open the page through a file that only this user can read, so that the browser's command line has no token."""
    import tempfile
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
    """
    from sonde.show.playground import render_playground
    from sonde.store import files

    page = render_playground().encode()
    files.write(output_file(out, "--out", "playground.html"), page)
    if not quiet:
        print(f"{out}: {len(page) / 1e3:.0f} kB; open it in a browser")
