"""`sonde live`."""

import atexit
import os
import re
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.core.errors import SondeError, unicode
from sonde.store.files import place

if TYPE_CHECKING:
    from sonde.show.live.server import Server

TOKEN = "SONDE_LIVE_TOKEN"  # an environment variable
SHORTEST = 16  # letters of a token


def folder(named: str | Path) -> Path:
    """What `--runs` names; a URL is refused before anything is asked of it."""
    found = None if re.match(r"(?!file:)[a-z][a-z0-9+]*://", str(named)) else place(named)
    if not isinstance(found, Path):
        raise SondeError(
            f"{named}: live follows folders of this machine; `sonde report --runs {named}` writes the page as it is now"
        )
    return found


def live(
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", parser=folder, help="The folder of runs.")] = Path(
        "runs"
    ),
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="The port to serve at; 0 takes a free one.")
    ] = 0,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Deprecated, since other users see it among the processes: set SONDE_LIVE_TOKEN instead.",
            show_default=False,
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser, too.")] = False,
) -> None:
    """Show the report's page while runs train or are watched; it follows the store as it is written.

    [bold]sonde live --runs runs[/bold] in one terminal, [bold]sonde run residual[/bold] in another; a loop of your own
    with [bold]sonde.watch(model, optimizer)[/bold] appears there as well. Runs say whether they are running, stalled
    or interrupted. Ctrl-C ends the page, not the runs.

    Only this machine can see it, and only with the address that is printed. The environment variable SONDE_LIVE_TOKEN
    sets its secret part: with the port and token of before, pages that are still open go on. Nothing is written to the
    store. From elsewhere: [bold]ssh -L PORT:127.0.0.1:PORT machine[/bold], then open the same address.
    """
    if runs.exists() and not runs.is_dir():
        raise SondeError(f"{runs} is a file: --runs names a folder of runs")
    if token is not None:
        print(f"sonde: --token is deprecated, since other users see it: set {TOKEN} instead", file=sys.stderr)
    token = token or os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    if not re.fullmatch(rf"[A-Za-z0-9_-]{{{SHORTEST},}}", token):
        raise SondeError(f"{TOKEN}: give at least {SHORTEST} letters, digits, dashes or underscores")

    from sonde.show.live.server import Server

    server = Server(port, token)
    print(server.url, flush=True)
    try:
        _serve(server, runs, open_=open_)
    except KeyboardInterrupt:
        print("sonde: the live page ended; runs that train or are watched go on", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        server.server_close()


def _serve(server: "Server", runs: Path, *, open_: bool) -> None:
    if open_:
        _open(server.url)
    waiting = "" if runs.is_dir() else ", which is not there yet"
    print(f"sonde: following {runs}{waiting}; Ctrl-C ends the page, not the runs", file=sys.stderr, flush=True)

    from threading import Thread

    Thread(target=server.serve_forever, daemon=True).start()

    from sonde.show.live.feed import Feed
    from sonde.show.live.store_poller import PageState, StorePoller

    feed, state = Feed(), PageState(unicode(str(runs)), "What the runs show so far")
    server.ready(state.page, feed)
    StorePoller(runs, feed, state).run()


def _open(url: str) -> None:
    """Open the page by a file that only this user can read: the address is not on the browser's command line."""
    import tempfile
    import webbrowser

    number, name = tempfile.mkstemp(prefix="sonde-live-", suffix=".html")
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={url}">')
    atexit.register(Path(name).unlink, missing_ok=True)
    webbrowser.open(Path(name).as_uri())
