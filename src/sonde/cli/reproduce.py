"""`sonde reproduce`: published numbers beside stored runs."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import Json, RunsFolder

if TYPE_CHECKING:
    from sonde.studies.claims import Answer

_MOST = 6
"""Rows of the short table."""


def reproduce_command(
    claims: Annotated[
        Path | None, typer.Argument(metavar="[CLAIMS.toml]", help="A file of claims (default: those of Sonde).")
    ] = None,
    runs: RunsFolder = Path("runs"),
    details: Annotated[
        bool, typer.Option("--details", help="Print every claim, with the command that trains its runs.")
    ] = False,
    json: Json = False,
) -> None:
    """Compare published numbers with stored runs: reproduced, contradicted, undecided or not run.

    A claim is a published value and the recipe of the runs that answer it. The runs are those of the store that have
    the recipe, with any seed. docs/findings/reproduce.md describes the file.
    """
    from sonde.cli.terminal import print_json
    from sonde.store.load import load
    from sonde.studies.claims import answers, read_claims

    found = answers(read_claims(claims), load(runs))
    if json:
        print_json([_as_json(one) for one in found])
    elif details:
        _print_details(found)
    else:
        _print_short(found)


def _print_short(found: "list[Answer]") -> None:
    from sonde.cli.terminal import plural, print_table, print_text
    from sonde.core.formatting import listed
    from sonde.studies.claims import CONFIDENCE, VERDICTS

    counts = Counter(one.verdict for one in found)
    print_text(
        f"Of {plural(len(found), 'claim')}, {listed(f'{counts[v]} {v}' for v in VERDICTS if counts[v])}.", bold=True
    )
    compared = sorted((one for one in found if one.ours.n), key=lambda one: VERDICTS.index(one.verdict))
    rows = [[one.verdict, *one.short_cells()] for one in compared[:_MOST]]
    if rows:
        headings = {"": "left", "claim": "left", "published": "right", "ours": "right"}
        print_table(f"± over seeds; decided by {100 * CONFIDENCE:.0f} % intervals", headings, rows, "claim")
    left = len(found) - len(rows)
    if left:
        print_text(f"{plural(left, 'more claim')}, and the commands that train what is missing: --details", dim=True)


def _print_details(found: "list[Answer]") -> None:
    from sonde.cli.terminal import print_text
    from sonde.studies.claims import VERDICTS

    for verdict in VERDICTS:
        for one in (one for one in found if one.verdict == verdict):
            _, quantity, setting, theirs, ours, difference = one.cells()
            print_text(f"{verdict}: {quantity}, {setting}" if one.claim.study else f"{verdict}: {quantity}", bold=True)
            print_text(f"  published {theirs} ({one.claim.source}); ours {ours}; difference {difference}")
            print_text(f"  {one.why}" + f"; seeds {', '.join(map(str, one.seeds))}" * bool(one.seeds), dim=True)
            if one.command is not None:
                print_text(f"  {one.command}", wrap=False)


def _as_json(answer: "Answer") -> dict[str, Any]:
    kept = {"runs": answer.runs, "seeds": answer.seeds, "command": answer.command, "why": answer.why}
    interval = {"low": answer.low, "high": answer.high, "is_ratio": answer.claim.is_log}
    return {
        "verdict": answer.verdict,
        "claim": asdict(answer.claim),
        "ours": asdict(answer.ours),
        "interval": interval,
        **kept,
    }
