"""`sonde compare`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import Json, Only, RunsFolder

if TYPE_CHECKING:
    from sonde.compare.comparison import Comparison


def compare(
    runs: RunsFolder = Path("runs"),
    factor: Annotated[
        str, typer.Option(metavar="KEY", help="What differs: rule, model, model.out_ln, rule.penalty, …")
    ] = "rule",
    metric: Annotated[str, typer.Option(metavar="NAME", help="What is compared.")] = "test_acc",
    layer: Annotated[
        int | None, typer.Option(min=0, help="Of a metric that every layer has.", show_default=False)
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(min=0, help="When (default: the last epoch).", show_default=False)
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="Subtract this level (default: bp, else the first).", show_default=False
        ),
    ] = None,
    only: Only = None,
    unmatched: Annotated[
        bool, typer.Option("--unmatched", help="Take runs that differ elsewhere too; marks the output.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids of the runs.")] = False,
    json: Json = False,
) -> None:
    """Compare runs that differ in one factor: differences paired by seed, with 95 % intervals.

    Runs that differ in anything else but the seed are refused, and the fields named.
    """
    from sonde.cli.terminal import print_json
    from sonde.compare.comparison import compare as pair_up
    from sonde.compare.configurations import assignments, keep
    from sonde.compare.objects import objects
    from sonde.store.load import load

    stored = keep(load(runs), assignments(only or [], "--only"))
    found = pair_up(
        stored,
        factor=factor,
        metric=metric,
        layer=layer,
        epoch=epoch,
        baseline=baseline,
        unmatched=unmatched,
    )
    for run, why in found.left_out.items():
        print(f"left out: {run} ({why})", file=sys.stderr)
    if json:
        print_json(objects(found))
    else:
        _print(found, ids=ids)


def _print(found: "Comparison", *, ids: bool) -> None:
    from sonde.cli.terminal import console, table
    from sonde.compare.words import difference_line, group_line, mismatch, notes, title

    to = console()
    columns = {
        found.factor: "left",
        "n": "right",
        "mean": "right",
        "s.d.": "right",
        "epoch": "right",
        "seeds": "left",
    }
    to.print(table(title(found), columns, [group_line(group) for group in found.groups]))
    to.print()
    columns = {"difference": "left", "n": "right", "mean": "right", "95 % interval": "left", "seeds": "left"}
    lines = [difference_line(difference) for difference in found.differences]
    to.print(table("Paired by seed", columns, lines))
    to.print()
    for line in (mismatch(found), *notes(found)):
        if line:
            to.print(line, soft_wrap=not to.is_terminal)
    to.print(
        "s.d.: sample standard deviation over seeds (ddof 1); interval: Student's t over seeds.", style="dim"
    )
    if ids:
        for group in found.groups:
            for seed, value in group.values.items():
                to.print(f"{group.level.label}, seed {seed}: {value.run}", style="dim", soft_wrap=True)
