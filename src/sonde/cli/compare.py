"""`sonde compare` and `sonde recovery`: rules or other factors against each other, paired by seed."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import Json, Only, RunsFolder, print_left_out

if TYPE_CHECKING:
    from sonde.analysis.audit import Audit
    from sonde.analysis.comparison import Comparison
    from sonde.analysis.recovery import RankCorrelation, Recovered


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
        _print_comparison(comparison, ids=ids)


def _print_comparison(comparison: "Comparison", *, ids: bool) -> None:
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


def recovery_command(runs: RunsFolder = Path("runs"), only: Only = None, json: Json = False) -> None:
    """Measure how much of backprop's margin over frozen blocks each rule recovers, and what correlates with it.

    The share is (rule − frozen) ÷ (bp − frozen) of the test accuracy after the last epoch, means over seeds:
    1 is backprop, 0 is a network whose blocks are not trained, and below 0 the rule does harm.

    A second table has, over all rules, the rank correlation of each quantity of the audit with the share.
    """
    from sonde.analysis.audit import audit, read_for_audit
    from sonde.analysis.recovery import rank_correlations, recovery_by_recipe
    from sonde.analysis.runs import choices, keep
    from sonde.cli.terminal import print_json

    audited = audit(keep(read_for_audit(runs), choices(only or [])))
    shares = {recipe.title: rules for recipe, rules in recovery_by_recipe(audited)}
    foretold = rank_correlations(audited)
    if json:
        print_json(_recovery_as_json(audited, shares, foretold))
    else:
        _print_recovery(shares, foretold)


def _recovery_as_json(
    audited: "Audit", shares: "dict[str, list[Recovered]]", foretold: "list[RankCorrelation]"
) -> dict[str, Any]:
    configs = {recipe.title: recipe.recipe for recipe in audited.recipes}
    return {
        "recipes": [
            {"recipe": title, "config": configs[title], "rules": [asdict(one) for one in rules]}
            for title, rules in shares.items()
        ],
        "foretelling": [asdict(one) for one in foretold],
    }


def _print_recovery(shares: "dict[str, list[Recovered]]", foretold: "list[RankCorrelation]") -> None:
    from sonde.cli.terminal import print_table, print_text
    from sonde.core.formatting import number

    sides = {"rule": "left", "n": "right", "of BP's margin": "right", "95 % interval": "left"}
    for title, rules in shares.items():
        if rules:
            print_table(title, sides, [_recovery_line(one) for one in rules], wrapped="95 % interval")
            print_text()
    lines = [
        [
            one.quantity,
            str(one.n),
            str(one.runs),
            number(one.correlation) if one.reason is None else "undefined",
            one.reason or one.said_chance,
            number(one.given_stream),
        ]
        for one in foretold
    ]
    columns = {"quantity": "left", "n": "right", "runs": "right", "rank correlation": "right"}
    columns |= {"by chance": "left", "given ‖h_L‖": "right"}
    print_table("Which goes with the share, over all rules", columns, lines, wrapped="by chance")
    print_text(
        "± of one seed is the binomial error of the test set (one standard error); seeds differ on top of it. "
        "n: rules that have both, each a mean over its runs; a rule of two recipes counts twice, runs that differ in "
        "their probes alone count once. "
        "By chance: how often shuffled rules correlate as strongly, in either direction; ≤ where no shuffle did. "
        "Given ‖h_L‖: the rank correlation once that of ‖h_L‖ ÷ init is taken out of both. "
        "A correlation over rules says what goes together, not what causes what.",
        dim=True,
    )


def _recovery_line(one: "Recovered") -> list[str]:
    from sonde.core.formatting import said_share

    if not one.share.n:
        return [one.label, "0", "undefined", one.share.reason or ""]
    interval = one.interval
    between = (
        f"undefined: {interval.reason}"
        if math.isnan(interval.low)
        else f"{said_share(interval.low)} to {said_share(interval.high)}"
    )
    return [one.label, str(one.share.n), said_share(one.share.mean, one.test_error), between]
