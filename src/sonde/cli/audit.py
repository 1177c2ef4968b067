"""`sonde audit`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.analysis.thresholds import Thresholds
from sonde.cli.options import Json, Only, RunsFolder

if TYPE_CHECKING:
    from sonde.analysis.audit import Audit, RecipeAudit, RuleAudit, RunAudit

DEFAULT = Thresholds()
LEGEND = "D1 scale, D2 gradient, D3 credit, D4 blocks: what each asks is said at the end."


def audit(
    runs: RunsFolder = Path("runs"),
    only: Only = None,
    growth: Annotated[
        float, typer.Option(help="D1 fires where ‖h‖ grows more than so many times over a block.")
    ] = DEFAULT.growth,
    stream: Annotated[
        float, typer.Option(help="D1 fires where ‖h_L‖ is more than so many times its value at init.")
    ] = DEFAULT.stream,
    resolution: Annotated[
        float,
        typer.Option(help="D2 fires where the gradient's cosine with the one in float64 is below this."),
    ] = DEFAULT.resolution,
    deviations: Annotated[
        float, typer.Option(help="D3 fires where credit is not so many s.d. of its null above it.")
    ] = DEFAULT.deviations,
    ceiling: Annotated[
        float,
        typer.Option(help="D2 fires, and D3 reads no layer, where ρ of BP's own gradient is below this."),
    ] = DEFAULT.ceiling,
    confidence: Annotated[
        float, typer.Option(help="D4: helps or hurts where this interval over seeds excludes 0.")
    ] = DEFAULT.confidence,
    json: Json = False,
) -> None:
    """Ask four questions of every run: can its numbers be believed, and do its blocks help?

    Does the scale hold (D1)? Does training's precision resolve the BP gradient (D2)?
    Does the credit beat what the rule scores when it draws anew (D3)?
    Do the blocks help, hurt, or is it undecided over seeds (D4)?

    Runs of one recipe stand together, whatever their rule and seed.
    How often each question fires on healthy runs: docs/calibration.md.
    """
    from sonde.analysis.audit import audit as ask
    from sonde.analysis.audit import read
    from sonde.analysis.runs import choices, keep
    from sonde.cli.terminal import print_json

    thresholds = Thresholds(
        growth=growth,
        stream=stream,
        resolution=resolution,
        deviations=deviations,
        ceiling=ceiling,
        confidence=confidence,
    )
    stored = keep(read(runs), choices(only or []))
    audited = ask(stored, thresholds)
    for run, why in audited.left_out.items():
        if run not in stored.broken:  # of which reading them told
            print(f"sonde: left out: {run} ({why})", file=sys.stderr)
    if json:
        print_json(as_json(audited))
    else:
        _print(audited)


def _print(audited: "Audit") -> None:
    from sonde.analysis.recipe_table import SPREAD
    from sonde.cli.terminal import console

    to = console()
    for recipe in audited.recipes:
        _print_recipe(recipe)
        if recipe is not audited.recipes[-1]:
            to.print(LEGEND, style="dim", soft_wrap=not to.is_terminal)
            to.print()
    for question, words in audited.thresholds.words.items():
        to.print(f"{question}: {words}", style="dim", soft_wrap=not to.is_terminal)
    to.print(SPREAD, style="dim", soft_wrap=True)


def _print_recipe(recipe: "RecipeAudit") -> None:
    from sonde.analysis.recipe_table import columns, footnotes, lines
    from sonde.analysis.verdict import sentence
    from sonde.cli.terminal import console, print_table

    to = console()
    print_table(recipe.title, columns(recipe), lines(recipe))
    to.print()
    for rule in recipe.rules:
        to.print(f"• {sentence(rule)}", soft_wrap=not to.is_terminal)
        seeds = f"seed{'' if len(rule.seeds) == 1 else 's'} {', '.join(map(str, rule.seeds)) or 'none'}"
        ids = [*rule.ids, *(f"{one.run} (diverged)" for one in rule.diverged)]
        to.print(f"  n = {len(rule.seeds)} ({seeds}); {', '.join(ids)}", style="dim", soft_wrap=True)
    for note in footnotes(recipe):
        to.print(f"  {note}", style="dim", soft_wrap=True)
    to.print()


def as_json(audited: "Audit") -> list[dict[str, Any]]:
    """One object per recipe and rule: every number with its n, seeds and runs; undefined ones are NaN here."""
    return [_rule_as_json(recipe, rule) for recipe in audited.recipes for rule in recipe.rules]


def _rule_as_json(recipe: "RecipeAudit", rule: "RuleAudit") -> dict[str, Any]:
    from sonde.analysis.audit import QUESTIONS
    from sonde.analysis.verdict import sentence, verdict

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


ANSWER = ("asked", "fired", "value", "epoch", "first_fired", "since", "layers", "reason", "note", "beside")


def _run(audited: "RunAudit") -> dict[str, Any]:
    return {
        "run": audited.run.id,
        "seed": audited.run.seed,
        "questions": {
            question: {name: getattr(answer, name) for name in ANSWER} for question, answer in audited.answers.items()
        },
        "credit": [
            {**layer._asdict(), "cosine": layer.cosine._asdict(), "rho": layer.rho._asdict()}
            for layer in audited.credits
        ],
    }
