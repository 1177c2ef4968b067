"""`sonde audit`, `compare`, `recovery` and `reproduce`: what stored runs show of rules, and of published numbers."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import Details, Json, Only, RunsFolder, complete_metric, print_left_out
from sonde.core.errors import print_notice
from sonde.core.formatting import Thresholds, listed, number

if TYPE_CHECKING:
    from sonde.analysis.audit import Audit, RecipeAudit, RuleAudit, RunAudit
    from sonde.analysis.comparison import Comparison
    from sonde.analysis.recovery import RankCorrelation, Recovered
    from sonde.studies.claims import Answer


_DEFAULT = Thresholds()


def audit_command(
    runs: RunsFolder = Path("runs"),
    only: Only = None,
    details: Details = False,
    growth: Annotated[
        float, typer.Option(help="D1 fires if ‖h‖ grows by more than this factor over a block.")
    ] = _DEFAULT.growth,
    stream: Annotated[
        float, typer.Option(help="D1 fires if ‖h_L‖ is more than this factor above its value at init.")
    ] = _DEFAULT.stream,
    resolution: Annotated[
        float, typer.Option(help="D2 fires if the cosine of the gradient with the float64 gradient is below this.")
    ] = _DEFAULT.resolution,
    deviations: Annotated[
        float, typer.Option(help="D3 fires if the credit is fewer s.d. than this above its null.")
    ] = _DEFAULT.deviations,
    ceiling: Annotated[
        float, typer.Option(help="D2 fires, and D3 skips the layer, if ρ of BP's own gradient is below this.")
    ] = _DEFAULT.ceiling,
    confidence: Annotated[
        float, typer.Option(help="D4 decides if the interval over seeds at this confidence excludes 0.")
    ] = _DEFAULT.confidence,
    json: Json = False,
) -> None:
    """Answer four questions about every run: are its numbers reliable, and do its blocks help?

    D1: does the scale of the states hold?

    D2: does the training precision resolve the BP gradient?

    D3: is the credit better than the same rule with other random draws?

    D4: do the trained blocks help, hurt, or is it undecided over seeds?

    The conclusion counts the answers over runs of one recipe. --details prints every number, rule by rule.
    docs/calibration.md shows how often each question fires on healthy runs.

    Example: [bold]sonde audit --only task=digits --details[/bold]
    """
    from sonde.analysis.audit import audit as ask
    from sonde.analysis.audit import read_for_audit
    from sonde.analysis.conclusions import of_audit
    from sonde.analysis.runs import choices, keep
    from sonde.cli.terminal import print_conclusion, print_json

    thresholds = Thresholds(
        growth=growth,
        stream=stream,
        resolution=resolution,
        deviations=deviations,
        ceiling=ceiling,
        confidence=confidence,
    )
    stored = keep(read_for_audit(runs), choices(only or []))
    audited = ask(stored, thresholds)
    print_left_out(audited.left_out, stored.broken)
    if json:
        print_json(audit_as_json(audited))
    elif details:
        _print(audited)
    else:
        print_conclusion(of_audit(audited, f"`sonde audit --details`, or `sonde report --runs {runs}` for a page."))


def _print(audited: "Audit") -> None:
    from sonde.analysis.audit_text import AUDIT_SPREAD
    from sonde.cli.terminal import print_text

    for recipe in audited.recipes:
        _print_recipe(recipe)
    for question, words in audited.thresholds.words.items():
        print_text(f"{question}: {words}", dim=True)
    print_text(AUDIT_SPREAD, dim=True, wrap=False)


def _print_recipe(recipe: "RecipeAudit") -> None:
    from sonde.analysis.audit_text import audit_columns, audit_footnotes, audit_rows, sentence
    from sonde.cli.terminal import print_table, print_text

    print_table(recipe.title, audit_columns(recipe), audit_rows(recipe))
    print_text()
    for rule in recipe.rules:
        print_text(f"• {sentence(rule)}")
        seeds = f"seed{'' if len(rule.seeds) == 1 else 's'} {', '.join(map(str, rule.seeds)) or 'none'}"
        ids = [*rule.ids, *(f"{one.run} (diverged)" for one in rule.diverged)]
        print_text(f"  n = {len(rule.seeds)} ({seeds}); {', '.join(ids)}", dim=True, wrap=False)
    for note in audit_footnotes(recipe):
        print_text(f"  {note}", dim=True, wrap=False)
    print_text()


def audit_as_json(audited: "Audit") -> list[dict[str, Any]]:
    """One object for each recipe and rule: every number with its n, seeds and runs; undefined numbers are NaN."""
    return [_rule_as_json(recipe, rule) for recipe in audited.recipes for rule in recipe.rules]


def _rule_as_json(recipe: "RecipeAudit", rule: "RuleAudit") -> dict[str, Any]:
    from sonde.analysis.audit import QUESTIONS
    from sonde.analysis.audit_text import sentence, verdict

    return {
        "recipe": recipe.title,
        "config": recipe.recipe,
        "rule": rule.rule,
        "label": rule.label,
        "options": rule.options,
        "n": len(rule.runs),
        "seeds": rule.seeds,
        "runs": rule.ids,
        "diverged": [asdict(one) for one in rule.diverged],
        "left_out": rule.left_out,
        "made_with": recipe.made_with,
        "verdict": verdict(rule),
        "sentence": sentence(rule),
        "thresholds": asdict(rule.thresholds),
        "test_acc": asdict(rule.scalar("test_acc")),
        "train_acc": asdict(rule.scalar("train_acc")),
        "largest_growth_over_a_block": asdict(rule.value("D1")),
        "last_state_relative_to_init": asdict(rule.stream()),
        "gradient_times_state_per_error_relative_to_init": asdict(rule.scale_free()),
        "gradient_resolution": asdict(rule.value("D2")),
        "points_over_frozen": asdict(rule.margin.points),
        **{metric: asdict(mean) for metric, mean in rule.measures.items()},
        "questions": {question: _tally(rule, question) for question in QUESTIONS} | {"D4": asdict(rule.margin)},
        "by_run": [_run(run) for run in rule.runs],
    }


def _tally(rule: "RuleAudit", question: str) -> dict[str, Any]:
    tally = rule.tally(question)
    return {
        "n": tally.n,
        "fired": sorted(tally.fired),
        "clear": sorted(tally.clear),
        "undefined": {seed: answer.reason for seed, answer in tally.undefined.items()},
        "not_asked": {seed: answer.reason for seed, answer in tally.not_asked.items()},
        "value": asdict(rule.value(question)),
    }


_ANSWER = ("asked", "fired", "value", "epoch", "first_fired", "since", "layers", "reason", "note", "beside")


def _run(audited: "RunAudit") -> dict[str, Any]:
    return {
        "run": audited.run.id,
        "seed": audited.run.seed,
        "questions": {
            question: {name: getattr(answer, name) for name in _ANSWER} for question, answer in audited.answers.items()
        },
        "credit": [
            {**layer._asdict(), "cosine": layer.cosine._asdict(), "rho": layer.rho._asdict(), "standing": layer.side}
            for layer in audited.credits
        ],
    }


def compare_command(
    factor: Annotated[
        str, typer.Option(metavar="KEY", help="The key that differs: rule, model, model.out_ln, rule.penalty, …")
    ] = "rule",
    metric: Annotated[
        str, typer.Option(metavar="NAME", autocompletion=complete_metric, help="The metric to compare.")
    ] = "test_acc",
    only: Only = None,
    runs: RunsFolder = Path("runs"),
    layer: Annotated[int | None, typer.Option(min=0, metavar="N", help="The layer, for a metric of layers.")] = None,
    epoch: Annotated[int | None, typer.Option(min=0, metavar="N", help="The epoch (default: the last).")] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Subtract this level (default: bp, else the first).")
    ] = None,
    unmatched: Annotated[
        bool, typer.Option("--unmatched", help="Allow runs that differ in other keys too; the output says so.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids of the runs, with the details.")] = False,
    details: Details = False,
    json: Json = False,
) -> None:
    """Compare runs that differ in one factor: differences paired by seed, with 95 % intervals.

    The runs may differ in that factor and the seed. Any other difference is an error that names the keys.

    Example: [bold]sonde compare --factor rule --metric test_acc --only task=digits[/bold]
    """
    from sonde.analysis.comparison import compare
    from sonde.analysis.conclusions import of_comparison
    from sonde.analysis.runs import choices, keep
    from sonde.cli.terminal import print_conclusion, print_json
    from sonde.store.load import load

    stored = keep(load(runs), choices(only or []))
    comparison = compare(
        stored, factor=factor, metric=metric, layer=layer, epoch=epoch, baseline=baseline, unmatched=unmatched
    )
    print_left_out(comparison.left_out, stored.broken)
    if json:
        print_json(comparison_as_json(comparison))
    elif details or ids:
        _print_comparison(comparison, ids=ids)
    else:
        print_conclusion(of_comparison(comparison, "`sonde compare --details` has seeds and spreads; --ids the runs."))


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


def recovery_command(
    runs: RunsFolder = Path("runs"), only: Only = None, details: Details = False, json: Json = False
) -> None:
    """Measure how much of backprop's advantage over frozen blocks each rule recovers, and what correlates with it.

    The share is (rule − frozen) ÷ (bp − frozen), for the mean test accuracy over seeds after the last epoch. It is 1
    for backprop and 0 for frozen blocks. Below 0 the rule does harm.

    The interval is Fieller's, for a ratio of means. --details adds the rank correlation of each quantity of the audit
    with the share, over the rules of each recipe.

    Example: [bold]sonde run rules[/bold], then [bold]sonde recovery[/bold]
    """
    from sonde.analysis.audit import audit, read_for_audit
    from sonde.analysis.conclusions import of_recovery
    from sonde.analysis.recovery import rank_correlations, recovery_by_recipe
    from sonde.analysis.runs import choices, keep
    from sonde.cli.terminal import print_conclusion, print_json

    audited = audit(keep(read_for_audit(runs), choices(only or [])))
    by_recipe, foretold = recovery_by_recipe(audited), rank_correlations(audited)
    shares = {recipe.title: rules for recipe, rules in by_recipe}
    if json:
        print_json(_recovery_as_json(audited, shares, foretold))
    elif details:
        _print_recovery(shares, foretold)
    else:
        print_conclusion(of_recovery(by_recipe, foretold, f"`sonde recovery --details --runs {runs}`"))


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
    from sonde.cli.terminal import plural, print_table, print_text

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
    print_table("Rank correlation with the share, within recipes", columns, lines, wrapped="by chance")
    most = max(foretold, key=lambda one: one.n)
    print_text(
        "Intervals are Fieller's. "
        "± of one seed is the binomial standard error of the test set; seeds add to it. "
        "n: rules that have both values, each a mean over its runs; runs that differ only in their probes count once. "
        f"The largest n, {most.n}, covers {plural(most.rules, 'different rule')} and {plural(most.recipes, 'recipe')} "
        "with two rules or more; values of one rule are not independent. Rules are ranked and shuffled within their "
        "recipe. "
        "By chance: how often shuffled rules correlate as strongly, in either direction; ≤ where no shuffle did. "
        "Given ‖h_L‖: the partial rank correlation, given ‖h_L‖ ÷ init. "
        "A correlation over rules is no proof of a cause.",
        dim=True,
    )


def _recovery_line(one: "Recovered") -> list[str]:
    from sonde.analysis.conclusions import share_cells

    if not one.share.n:
        return [one.label, "0", "undefined", one.share.reason or ""]
    share, between = share_cells(one)
    return [one.label, str(one.share.n), share, between or f"undefined: {one.interval.reason}"]


_MOST_CLAIMS = 6  # rows of the short table


def reproduce_command(
    claims: Annotated[
        Path | None, typer.Argument(metavar="CLAIMS.toml", help="A file of claims (default: those of Sonde).")
    ] = None,
    runs: RunsFolder = Path("runs"),
    details: Annotated[
        bool, typer.Option("--details", help="Print every claim, with the command that trains its runs.")
    ] = False,
    json: Json = False,
) -> None:
    """Compare published numbers with stored runs: reproduced, contradicted, undecided or not run.

    A claim is a published value and the recipe of the runs that answer it. All stored runs with the recipe are used,
    with any seed. docs/findings/reproduce.md describes the file.

    Example: [bold]sonde reproduce --runs docs/findings/runs[/bold]
    """
    from sonde.cli.terminal import print_json
    from sonde.store.load import load
    from sonde.studies.claims import answers, read_claims

    absent = "://" not in str(runs) and not runs.exists()
    if absent:
        print_notice(f"{runs} does not exist, so no claim has a run")
    found = answers(read_claims(claims), None if absent else load(runs))
    if json:
        print_json([_claim_as_json(one) for one in found])
    elif details:
        _print_every_claim(found)
    else:
        _print_claims(found)


def _print_claims(found: "list[Answer]") -> None:
    from sonde.cli.terminal import plural, print_table, print_text
    from sonde.studies.claims import CONFIDENCE, VERDICTS

    counts = Counter(one.verdict for one in found)
    said = listed(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    print_text(f"{plural(len(found), 'claim')}: {said}.", bold=True)
    compared = sorted((one for one in found if one.ours.n), key=lambda one: VERDICTS.index(one.verdict))
    rows = [[one.verdict, *one.short_cells()] for one in compared[:_MOST_CLAIMS]]
    if rows:
        headings = {"": "left", "claim": "left", "published": "right", "ours": "right"}
        print_table(f"± over seeds; decided by {100 * CONFIDENCE:.0f} % intervals", headings, rows, "claim")
    left = len(found) - len(rows)
    if left:
        rest = plural(left, "more claim") if rows else "all claims"
        print_text(f"--details lists {rest}, with the commands that train the missing runs", dim=True)


def _print_every_claim(found: "list[Answer]") -> None:
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


def _claim_as_json(answer: "Answer") -> dict[str, Any]:
    kept = {"runs": answer.runs, "seeds": answer.seeds, "command": answer.command, "why": answer.why}
    interval = {"low": answer.low, "high": answer.high, "is_ratio": answer.claim.is_log}
    return {
        "verdict": answer.verdict,
        "claim": asdict(answer.claim),
        "ours": asdict(answer.ours),
        "interval": interval,
        **kept,
    }
