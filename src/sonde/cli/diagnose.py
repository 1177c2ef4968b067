"""`sonde diagnose`."""

import json as plain_json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sonde.cli.options import Json, RunsFolder
from sonde.core.errors import SondeError

if TYPE_CHECKING:
    from sonde.analysis.diagnosis.finding import Findings


def diagnose(
    run: Annotated[
        str | None,
        typer.Argument(help="A run, or how its id begins (default: all).", show_default=False),
    ] = None,
    runs: RunsFolder = Path("runs"),
    fail_on: Annotated[
        Literal["likely", "certain"] | None,
        typer.Option("--fail-on", help="Exit code 1 where a finding is at least so sure.", show_default=False),
    ] = None,
    sarif: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the findings as SARIF, for code hosts.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Say what is wrong in a run: where, since when, on which numbers, and what to try.

    A watched run is judged by its rows, a run that Sonde trained by its losses, signal and gradient and by the
    questions of `sonde audit`. A run without findings is said to be fine in one line. `sonde explain NAME` says more
    about a finding.
    What a store cannot tell, experiments on a copy can: in the training script, watch.diagnose(batch=(x, y)).
    """
    from sonde.analysis.diagnosis.diagnose import diagnose_store
    from sonde.cli.terminal import console, print_json

    found, left_out = diagnose_store(runs, run)
    for id, why in left_out.items():
        print(f"left out: {id} ({why})", file=sys.stderr)
    if sarif is not None:
        _write_sarif(sarif, found)
    if json:
        print_json({id: [finding.as_dict() for finding in findings] for id, findings in found.items()})
    else:
        to = console()
        for id, findings in found.items():
            to.print(id, style="bold")
            for line in str(findings).splitlines():
                to.print(line, soft_wrap=not to.is_terminal)
            to.print()
    if fail_on is not None and any(_is_as_sure(findings, fail_on) for findings in found.values()):
        raise typer.Exit(1)


def _is_as_sure(findings: "Findings", level: str) -> bool:
    from sonde.analysis.diagnosis.finding import LEVELS

    worst = findings.worst()
    return worst is not None and LEVELS.index(worst) >= LEVELS.index(level)


def _write_sarif(to: Path, found: "dict[str, Findings]") -> None:
    from sonde import __version__
    from sonde.analysis.diagnosis.finding import sarif
    from sonde.core.atomic import remove_stale
    from sonde.store import files

    if to.is_dir():
        raise SondeError(f"--sarif {to}: name a file")
    remove_stale(files.make_folder(to.parent))
    files.write(to, plain_json.dumps(sarif(found, __version__), indent=1, ensure_ascii=False).encode())
