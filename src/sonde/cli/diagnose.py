"""`sonde diagnose`: what is wrong in a stored run."""

import json as plain_json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sonde.cli.options import Json, RunsFolder, output_file

if TYPE_CHECKING:
    from sonde.analysis.diagnosis.finding import Findings


def diagnose_command(
    run: Annotated[str | None, typer.Argument(help="A run's id, or its beginning (default: all runs).")] = None,
    runs: RunsFolder = Path("runs"),
    fail_on: Annotated[
        Literal["likely", "certain"] | None,
        typer.Option("--fail-on", help="Exit with code 1 where a finding is at least this certain."),
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the findings as SARIF, for code hosts.")
    ] = None,
    json: Json = False,
) -> None:
    """Find what is wrong in a run: where, since which step, the numbers that show it, and what to try.

    A watched run is diagnosed from its rows; a run that Sonde trained from its losses, signal and gradient and from
    the questions of `sonde audit`. A run without findings gets one line. `sonde explain NAME` tells more about a
    finding.
    Some faults need experiments on a copy of the model: call watch.diagnose(batch=(x, y)) in the training script.
    """
    from sonde.analysis.diagnosis import diagnose_store
    from sonde.cli.terminal import print_json, print_text

    found, left_out = diagnose_store(runs, run)
    for id, why in left_out.items():
        print(f"left out: {id} ({why})", file=sys.stderr)
    if sarif is not None:
        _write_sarif(sarif, found)
    if json:
        print_json({id: [finding.as_dict() for finding in findings] for id, findings in found.items()})
    else:
        for id, findings in found.items():
            print_text(id, bold=True)
            for line in str(findings).splitlines():
                print_text(line)
            print_text()
    if fail_on is not None and any(_is_as_certain(findings, fail_on) for findings in found.values()):
        raise typer.Exit(1)


def _is_as_certain(findings: "Findings", level: str) -> bool:
    from sonde.analysis.diagnosis.finding import LEVELS

    worst = findings.worst()
    return worst is not None and LEVELS.index(worst) >= LEVELS.index(level)


def _write_sarif(to: Path, found: "dict[str, Findings]") -> None:
    from sonde import __version__
    from sonde.analysis.diagnosis.finding import sarif
    from sonde.store import files

    files.write(
        output_file(to, "--sarif", "findings.sarif"),
        plain_json.dumps(sarif(found, __version__), indent=1, ensure_ascii=False).encode(),
    )
