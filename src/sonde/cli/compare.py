"""`sonde compare`: runs that differ in one factor, paired by seed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import Json, Only, RunsFolder, print_left_out

if TYPE_CHECKING:
    from sonde.analysis.comparison import Comparison


def compare_command(
    runs: RunsFolder = Path("runs"),
    factor: Annotated[
        str, typer.Option(metavar="KEY", help="The key that differs: rule, model, model.out_ln, rule.penalty, …")
    ] = "rule",
    metric: Annotated[str, typer.Option(metavar="NAME", help="The metric to compare.")] = "test_acc",
    layer: Annotated[int | None, typer.Option(min=0, help="The layer, for a metric of layers.")] = None,
    epoch: Annotated[int | None, typer.Option(min=0, help="The epoch (default: the last).")] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Subtract this level (default: bp, else the first).")
    ] = None,
    only: Only = None,
    unmatched: Annotated[
        bool, typer.Option("--unmatched", help="Allow runs that differ in other keys too; the output says so.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids of the runs.")] = False,
    json: Json = False,
) -> None:
    """Compare runs that differ in one factor: differences paired by seed, with 95 % intervals.

    The runs may differ in that factor and the seed. Any other difference is an error that names the keys.
    """
    from sonde.analysis.comparison import compare
    from sonde.analysis.runs import choices, keep
    from sonde.cli.terminal import print_json
    from sonde.store.load import load

    stored = keep(load(runs), choices(only or []))
    comparison = compare(
        stored, factor=factor, metric=metric, layer=layer, epoch=epoch, baseline=baseline, unmatched=unmatched
    )
    print_left_out(comparison.left_out, stored)
    if json:
        print_json(comparison_as_json(comparison))
    else:
        _print(comparison, ids=ids)


def _print(comparison: "Comparison", *, ids: bool) -> None:
    from sonde.analysis.comparison import COMPARISON_SPREAD
    from sonde.cli.terminal import print_table, print_text

    print_table(comparison.title(), *comparison.level_table())
    print_text()
    print_table("Paired by seed", *comparison.difference_table())
    print_text()
    for line in comparison.notes():
        print_text(line)
    print_text(COMPARISON_SPREAD, dim=True)
    if ids:
        for group in comparison.groups:
            for seed, run in group.runs.items():
                print_text(f"{group.level.label}, seed {seed}: {run}", dim=True, wrap=False)


def comparison_as_json(comparison: "Comparison") -> dict[str, Any]:
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
