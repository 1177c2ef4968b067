"""`sonde verify`: check a store byte by byte."""

import sys
from pathlib import Path

import typer

from sonde.cli.options import Json, RunsFolder


def verify_command(runs: RunsFolder = Path("runs"), json: Json = False) -> None:
    """Check a whole store: every file against its checksum, every id, every row, and the index.

    Other commands check the files that they read; this one reads all of them, the weights too.
    Nothing is changed. The exit code is 1 where something is wrong.
    """
    from dataclasses import asdict

    from sonde.cli.terminal import plural, print_json
    from sonde.core.errors import one_line
    from sonde.store.verify import verify

    found = verify(runs)
    if json:
        print_json(asdict(found))
    else:
        for what, complaints in found.wrong.items():
            for complaint in complaints:
                print(one_line(f"wrong: {what}: {complaint}"), file=sys.stderr)
        for left in found.left_over:
            print(one_line(f"left over: {left} (it belongs to no state, and may be removed)"), file=sys.stderr)
        old = len(found.without_checksums)
        said = "everything is what was stored"
        if old:
            some = "they were" if old == found.runs else f"{old} of them were"
            said = f"ids and rows fit; {some} stored without checksums, by 0.1.0, so bytes cannot be verified"
        if found.wrong:
            said = f"{len(found.wrong)} wrong"
        read = f"{found.files:,} files, {found.bytes / 1e6:,.1f} MB, {found.indexed:,} runs in the index"
        print(f"{plural(found.runs, 'run')} in {runs}: {said} ({read})")
    if found.wrong:
        raise typer.Exit(1)
