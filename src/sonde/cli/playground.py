"""`sonde playground`."""

from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import Quiet
from sonde.core.errors import SondeError


def playground(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")] = Path("playground.html"),
    quiet: Quiet = False,
) -> None:
    """Write one HTML file in which networks are built and trained, and each layer is read live.

    It opens by double-click and needs no network, no server and no other file.
    """
    if out.is_dir():
        raise SondeError(f"{out} is a folder: name a file, for example --out {out / 'playground.html'}")

    from sonde.core.atomic import remove_stale
    from sonde.show.playground import render_playground
    from sonde.store import files

    remove_stale(files.make_folder(out.parent))
    page = render_playground().encode()
    files.write(out, page)
    if not quiet:
        print(f"{out}: {len(page) / 1e3:.0f} kB; open it in a browser")
