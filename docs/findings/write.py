"""Write the pages of this folder, and their figures, from the runs that are stored beside them.

    python docs/findings/write.py

A page is a template with commands; every number in it is computed here from stored rows, by the same functions as the
command that stands beside it.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sonde.audit.audit import Audit, RecipeAudit, audit
from sonde.audit.recipe_table import columns, lines
from sonde.audit.recovery import QUANTITIES, foretelling, recovered
from sonde.audit.verdict import sentence
from sonde.figures import FIGURES
from sonde.figures.render import render
from sonde.runs.ended import complete
from sonde.store.load import load
from sonde.store.stored import Run, Runs
from sonde.studies import STUDIES
from sonde.studies.study import Finding, Gathered, gather
from sonde.verdicts import accuracy, number

HERE = Path(__file__).parent
STORE = HERE / "runs"
PAGES = ("index", "residual", "audit", "rules", "recovery")
SHOWN = {
    "residual": ("gradient_flow", "training_loss"),
    "audit": ("accuracy", "diagnostics"),
    "rules": ("rules_residual_mlp",),
}
"""The figures of a page; each is a file called study_figure.png."""

RECORDED = {
    "bp": 0.615,
    "fa": 0.401,
    "dfa": 0.306,
    "state_bridge": 0.205,
    "credit_bridge": 0.289,
    "frozen": 0.349,
}
"""Test accuracy after 100 epochs on the original pixels, three seeds, on GPUs: the record that the audit repeats."""


def write() -> None:
    for name, text in pages(load(STORE)).items():
        (HERE / name).write_text(text)
    for study, names in SHOWN.items():
        evidence = found(load(STORE), study).evidence
        for name in names:
            drawn = render(FIGURES[name], evidence, None, ("png",))
            (HERE / f"{study}_{name}.png").write_bytes(drawn.images["png"])


def figures(study: str, stored: Runs) -> str:
    """The page's figures with their captions."""
    evidence = found(stored, study).evidence
    shown = [
        f"![{FIGURES[name].title}]({study}_{name}.png)\n\n{render(FIGURES[name], evidence, None, ('png',)).caption}"
        for name in SHOWN[study]
    ]
    return "\n\n".join(shown)


def pages(stored: Runs) -> dict[str, str]:
    """File name → text."""
    templates = Environment(
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.globals |= {
        "STUDIES": STUDIES,
        "QUANTITIES": QUANTITIES,
        "columns": columns,
        "compared": compared,
        "figures": figures,
        "foretold": foretold,
        "foretold_sentence": foretold_sentence,
        "found": found,
        "hours": hours,
        "in_order": in_order,
        "lines": lines,
        "made_on": made_on,
        "of_all": of_all,
        "of_recipe": of_recipe,
        "recovered": recovered,
        "rows_of": rows_of,
        "sentence": sentence,
        "shares_of": shares_of,
        "table": table,
        "title": title,
        "unfinished": unfinished,
        "without_times": without_times,
    }
    return {
        f"{name}.md": templates.get_template(f"{name}.md.jinja").render(stored=stored) + "\n"
        for name in PAGES
    }


def found(stored: Runs, study: str) -> Gathered:
    """The study's runs at full scale, whatever their seeds."""
    seeds = sorted({run.config["seed"] for run in stored.runs})
    return gather(stored, STUDIES[study].configs("full", seeds), "docs/findings/runs")


def made_on(gathered: Gathered) -> str:
    """Seeds, epochs, pixels and hardware, in one line."""
    runs = gathered.stored.runs
    seeds = sorted({run.config["seed"] for run in runs})
    epochs = sorted({run.config["epochs"] for run in runs})
    environments = [session["environment"] for run in runs for session in run.manifest.sessions]
    machines = sorted({f"{one['machine']['processor']}, {one['threads']} thread" for one in environments})
    torch = sorted({one["packages"]["torch"] for one in environments})
    pixels = (
        " CIFAR-10 as a JPEG copy of its images, not the original pixels."
        if any(run.config["task"]["name"] == "cifar10" for run in runs)
        else ""
    )
    return (
        f"n = {len(seeds)} (seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}), "
        f"{' and '.join(map(str, epochs))} epochs; {' and '.join(machines)}; PyTorch {' and '.join(torch)}.{pixels}"
    )


def hours(runs: Sequence[Run]) -> str:
    """Of training and probing together, by the clock."""
    seconds = sum(run.manifest.seconds[part] for run in runs for part in ("train", "probes"))
    return f"{seconds / 3600:.1f} h"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(headings)
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (headings, rule, *rows)
    )


def of_recipe(gathered: Gathered) -> Audit:
    return audit(gathered.stored)


def of_all(stored: Runs) -> Audit:
    """Of every run that learned from data: the identity has no accuracy."""
    runs = [run for run in complete(stored)[0] if run.config["task"]["name"] != "identity"]
    ids = [run.id for run in runs]
    return audit(Runs(stored.rows.filter(stored.rows["run"].is_in(ids)), runs))


def compared(audited: Audit) -> list[list[str]]:
    """Rule, our test accuracy, the record's."""
    return [
        [rule.label, accuracy(test.mean, test.std), f"{100 * RECORDED[rule.rule]:.1f} %"]
        for recipe in audited.recipes
        for rule in recipe.rules
        if (test := rule.scalar("test_acc")).n
    ]


def unfinished(gathered: Gathered) -> str:
    """Which runs of the whole study are not there."""
    study = STUDIES["audit"]
    configs = study.configs("full", study.seeds["full"])
    missing = len({config.id for config in configs} - {run.id for run in gathered.stored.runs})
    whole = f"The whole study has {len(configs)} runs: six rules and three seeds."
    return f"{whole} {missing} of them are not trained yet." if missing else whole


def without_times(finding: Finding) -> dict[str, str]:
    """A finding's cells but for times, which were taken beside other work."""
    return {heading: cell for heading, cell in finding.shown.items() if "time" not in heading}


def rows_of(findings: Sequence[Finding]) -> list[list[str]]:
    return [list(without_times(finding).values()) for finding in findings]


def in_order(findings: Sequence[Finding], rules: Sequence[str]) -> str:
    """Whether the rules' accuracies fall in this order, in words."""
    reached = {finding.numbers["rule"]: finding.numbers["test_acc"] for finding in findings}
    known = [reached[rule] for rule in rules if rule in reached]
    return "the same" if known == sorted(known, reverse=True) else "another one"


def title(recipe: RecipeAudit) -> str:
    """Without the probes, which tell recipes apart but not what was learned."""
    return recipe.title.partition(", probes.")[0]


def shares_of(recipe: RecipeAudit) -> list[list[str]]:
    """Rule, n, share of BP's margin, its interval."""
    return [
        [
            one.label,
            str(one.share.n),
            share(one.share.mean) if one.share.n else f"undefined: {one.share.reason}",
            f"{share(one.interval.low)} to {share(one.interval.high)}"
            if math.isfinite(one.interval.low)
            else "undefined",
        ]
        for one in recovered(recipe)
    ]


def foretold(audited: Audit) -> list[list[str]]:
    return [
        [
            one.quantity,
            str(one.n),
            "undefined" if one.reason else number(one.correlation),
            one.reason or number(one.chance),
        ]
        for one in foretelling(audited)
    ]


def foretold_sentence(audited: Audit) -> str:
    """The strongest, in words; and those that are not told from chance."""
    known = [one for one in foretelling(audited) if one.reason is None]
    if not known:
        return "No quantity has enough runs for a rank correlation."
    best = known[0]
    by_chance = [one.quantity for one in known if one.chance > 0.05]
    rest = f" Not told from chance (above 0.05): {'; '.join(by_chance)}." if by_chance else ""
    return (
        f"The closest is “{best.quantity}”: rank correlation {number(best.correlation)} over n = {best.n} runs, "
        f"by chance {number(best.chance)}.{rest}"
    )


def share(value: float) -> str:
    return f"{round(100 * value)} %".replace("-", "−")


if __name__ == "__main__":
    sys.exit(write())
