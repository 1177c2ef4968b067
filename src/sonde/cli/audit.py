"""`sonde audit`: four questions about every stored run."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.analysis.thresholds import Thresholds
from sonde.cli.options import Details, Json, Only, RunsFolder, print_left_out

if TYPE_CHECKING:
    from sonde.analysis.audit import Audit, RecipeAudit, RuleAudit, RunAudit

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
