"""`sonde compare`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import Json, Only, RunsFolder

if TYPE_CHECKING:
    from sonde.compare import Comparison, Difference, Group

DIGITS = 4  # of a mean


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
    from sonde.compare import compare as pair_up
    from sonde.runs.configurations import choices, keep
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
    from sonde.cli.terminal import console, print_table

    to = console()
    columns = {
        comparison.factor: "left",
        "n": "right",
        "mean": "right",
        "s.d.": "right",
        "epoch": "right",
        "seeds": "left",
    }
    print_table(title(comparison), columns, [_group_line(group) for group in comparison.groups])
    to.print()
    columns = {"difference": "left", "n": "right", "mean": "right", "95 % interval": "left", "seeds": "left"}
    lines = [_difference_line(difference) for difference in comparison.differences]
    print_table("Paired by seed", columns, lines)
    to.print()
    for line in (_mismatch(comparison), *notes(comparison)):
        if line:
            to.print(line, soft_wrap=not to.is_terminal)
    to.print(
        "s.d.: sample standard deviation over seeds (ddof 1); interval: Student's t over seeds.", style="dim"
    )
    if ids:
        for group in comparison.groups:
            for seed, run in group.runs.items():
                to.print(f"{group.level.label}, seed {seed}: {run}", style="dim", soft_wrap=True)


def title(comparison: "Comparison") -> str:
    """What was compared, where it was read, and whether the runs were matched."""
    where = "" if comparison.layer is None else f" at layer {comparison.layer}"
    epochs = sorted({epoch for group in comparison.groups for epoch in group.epochs.values()})
    when = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {', '.join(map(str, epochs))}"
    mark = "" if comparison.matched else " — UNMATCHED"
    return f"{comparison.metric}{where} by {comparison.factor}, {when}{mark}"


def _mismatch(comparison: "Comparison") -> str | None:
    """What else differs between runs that were compared nonetheless."""
    if comparison.matched:
        return None
    fields = (f"{key} ({', '.join(values)})" for key, values in comparison.differing.items())
    return f"unmatched: the runs also differ in {'; '.join(fields)}"


def _group_line(group: "Group") -> list[str]:
    """Level, n, mean, sample standard deviation, epoch and seeds."""
    from sonde.verdicts import number

    return [
        group.level.label,
        str(group.summary.n),
        number(group.summary.mean, DIGITS),
        number(group.summary.std, 2),
        ", ".join(map(str, sorted(set(group.epochs.values())))),
        ", ".join(map(str, group.runs)),
    ]


def _difference_line(difference: "Difference") -> list[str]:
    """Which difference, pairs, mean, interval and seeds."""
    from sonde.verdicts import signed

    interval = difference.interval
    between = "undefined" if interval.reason else f"[{signed(interval.low)}, {signed(interval.high)}]"
    return [
        f"{difference.level} − {difference.baseline}",
        str(difference.summary.n),
        signed(difference.summary.mean),
        between,
        ", ".join(map(str, difference.by_seed)) or "none",
    ]


def notes(comparison: "Comparison") -> list[str]:
    """Undefined values and intervals and seeds without a partner, each with its reason; what code made the runs."""
    from sonde.runs.ended import remark

    said = []
    for group in comparison.groups:
        for seed, reading in group.readings.items():
            if reading.reason:
                said.append(f"{group.level.label}, seed {seed}: undefined: {reading.reason}")
    for difference in comparison.differences:
        name = f"{difference.level} − {difference.baseline}"
        for seed, why in difference.without.items():
            said.append(f"{name}: seed {seed} is not paired: {why}")
        if difference.interval.reason:
            said.append(f"{name}: interval undefined: {difference.interval.reason}")
    made = remark(comparison.made_with)
    return [*said, made] if made else said


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
