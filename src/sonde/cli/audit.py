"""`sonde audit`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.audit.thresholds import Thresholds
from sonde.cli.options import Json, Only, RunsFolder

if TYPE_CHECKING:
    from sonde.audit.audit import Audit, RecipeAudit

DEFAULT = Thresholds()


def audit(
    runs: RunsFolder = Path("runs"),
    only: Only = None,
    growth: Annotated[
        float, typer.Option(help="D1 fires where ‖h‖ grows more than so many times over a block.")
    ] = DEFAULT.growth,
    gradient: Annotated[
        float, typer.Option(help="D2 fires where ‖g_L‖/‖e‖ is below this part of its value at init.")
    ] = DEFAULT.gradient,
    deviations: Annotated[
        float, typer.Option(help="D3 fires where credit is not so many s.d. of its null above it.")
    ] = DEFAULT.deviations,
    ceiling: Annotated[
        float, typer.Option(help="D3 reads no layer where ρ of BP's own gradient is below this.")
    ] = DEFAULT.ceiling,
    confidence: Annotated[
        float, typer.Option(help="D4: helps or hurts where this interval over seeds excludes 0.")
    ] = DEFAULT.confidence,
    json: Json = False,
) -> None:
    """Ask four questions of every run: can its numbers be believed, and do its blocks help?

    Does the scale hold (D1)? Is the BP gradient still meaningful (D2)?
    Does the credit beat what the rule scores when it draws anew (D3)?
    Do the blocks help, hurt, or is it undecided over seeds (D4)?

    Runs of one recipe stand together, whatever their rule and seed.
    How often each question fires on healthy runs: docs/calibration.md.
    """
    from sonde.audit.audit import audit as ask
    from sonde.audit.objects import objects
    from sonde.cli.output import print_json
    from sonde.compare.configurations import assignments, keep
    from sonde.store.load import load

    thresholds = Thresholds(
        growth=growth, gradient=gradient, deviations=deviations, ceiling=ceiling, confidence=confidence
    )
    found = ask(keep(load(runs), assignments(only or [], "--only")), thresholds)
    for run, why in found.left_out.items():
        print(f"left out: {run} ({why})", file=sys.stderr)
    if json:
        print_json(objects(found))
    else:
        _print(found)


def _print(found: "Audit") -> None:
    from sonde.cli.output import console

    for recipe in found.recipes:
        _print_recipe(recipe)
    to = console()
    for question, words in found.thresholds.words.items():
        to.print(f"{question}: {words}", style="dim", soft_wrap=True)
    to.print("± is the sample standard deviation over seeds (ddof 1).", style="dim", soft_wrap=True)


def _print_recipe(recipe: "RecipeAudit") -> None:
    from sonde.audit.sentence import sentence
    from sonde.audit.table import columns, footnotes, lines
    from sonde.cli.output import console, table

    to = console()
    to.print(table(recipe.title, columns(recipe), lines(recipe)))
    to.print()
    for rule in recipe.rules:
        to.print(f"• {sentence(rule)}", soft_wrap=not to.is_terminal)
        seeds = f"seed{'' if len(rule.seeds) == 1 else 's'} {', '.join(map(str, rule.seeds)) or 'none'}"
        ids = [*rule.ids, *(f"{one.run} (diverged)" for one in rule.diverged)]
        to.print(f"  n = {len(rule.seeds)} ({seeds}); {', '.join(ids)}", style="dim", soft_wrap=True)
    for note in footnotes(recipe):
        to.print(f"  {note}", style="dim", soft_wrap=True)
    to.print()
