"""`sonde compare`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import Json, Only, RunsFolder

if TYPE_CHECKING:
    from sonde.analysis.comparison import Comparison


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
        typer.Option(metavar="LEVEL", help="Subtract this level (default: bp, else the first).", show_default=False),
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
    from sonde.analysis.comparison import compare as pair_up
    from sonde.analysis.runs import choices, keep
    from sonde.cli.terminal import print_json
    from sonde.store.load import load

    stored = keep(load(runs), choices(only or []))
    comparison = pair_up(
        stored,
        factor=factor,
        metric=metric,
        layer=layer,
        epoch=epoch,
        baseline=baseline,
        unmatched=unmatched,
    )
    for run, why in comparison.left_out.items():
        if run not in stored.broken:  # of which reading them told
            print(f"sonde: left out: {run} ({why})", file=sys.stderr)
    if json:
        print_json(as_json(comparison))
    else:
        _print(comparison, ids=ids)


def _print(comparison: "Comparison", *, ids: bool) -> None:
    from sonde.analysis import comparison_table as table
    from sonde.cli.terminal import console, print_table

    to = console()
    print_table(table.title(comparison), table.columns(comparison), table.level_lines(comparison))
    to.print()
    print_table("Paired by seed", table.DIFFERENCES, table.difference_lines(comparison))
    to.print()
    for line in table.notes(comparison):
        to.print(line, soft_wrap=not to.is_terminal)
    to.print(table.SPREAD, style="dim")
    if ids:
        for group in comparison.groups:
            for seed, run in group.runs.items():
                to.print(f"{group.level.label}, seed {seed}: {run}", style="dim", soft_wrap=True)


def as_json(comparison: "Comparison") -> dict[str, Any]:
    """The whole comparison: every number with its n, seeds and runs; undefined numbers are NaN here."""
    from dataclasses import asdict

    return {
        "factor": comparison.factor,
        "metric": comparison.metric,
        "layer": comparison.layer,
        "config": comparison.shared,
        "matched": comparison.matched,
        "differing": comparison.differing,
        "levels": [
            {
                "level": group.level.label,
                "options": group.level.options,
                **asdict(group.summary),
                "seeds": list(group.runs),
                "runs": list(group.runs.values()),
                "by_seed": {
                    seed: {
                        "run": run,
                        "seed": seed,
                        "epoch": group.epochs[seed],
                        "value": group.readings[seed].value,
                        "reason": group.readings[seed].reason,
                    }
                    for seed, run in group.runs.items()
                },
            }
            for group in comparison.groups
        ],
        "differences": [
            {
                "level": difference.level,
                "baseline": difference.baseline,
                **asdict(difference.summary),
                "interval": asdict(difference.interval),
                "seeds": list(difference.by_seed),
                "by_seed": difference.by_seed,
                "without": difference.without,
            }
            for difference in comparison.differences
        ],
        "left_out": comparison.left_out,
        "made_with": comparison.made_with,
    }
