"""`sonde recovery`: how much of backprop's margin over frozen blocks each rule recovers."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.cli.options import Json, Only, RunsFolder

if TYPE_CHECKING:
    from sonde.analysis.audit import Audit
    from sonde.analysis.recovery import RankCorrelation, Recovered


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
        print_json(_as_json(audited, shares, foretold))
    else:
        _print(shares, foretold)


def _as_json(
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


def _print(shares: "dict[str, list[Recovered]]", foretold: "list[RankCorrelation]") -> None:
    from sonde.cli.terminal import print_table, print_text
    from sonde.core.formatting import number

    sides = {"rule": "left", "n": "right", "of BP's margin": "right", "95 % interval": "left"}
    for title, rules in shares.items():
        if rules:
            print_table(title, sides, [_line(one) for one in rules], wrapped="95 % interval")
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


def _line(one: "Recovered") -> list[str]:
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
