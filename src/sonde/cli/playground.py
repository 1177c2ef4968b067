"""`sonde playground`: an HTML page in which networks train."""

from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import Quiet, output_file


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
