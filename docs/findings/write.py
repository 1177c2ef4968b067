"""Write the pages of this folder, and their figures, from the runs that are stored beside them.

    python docs/findings/write.py

A page is a template with commands; every number in it is computed here from stored rows, by the same functions as the
command that stands beside it.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sonde.audit.audit import Audit, RecipeAudit, audit
from sonde.audit.recipe_table import columns, lines
from sonde.audit.recovery import QUANTITIES, foretelling, recovered
from sonde.audit.verdict import sentence
from sonde.config import RunConfig, change, label_of, name_of
from sonde.figures import FIGURES
from sonde.figures.render import render
from sonde.rules import RULES
from sonde.runs.ended import complete
from sonde.store.load import load
from sonde.store.stored import Run, Runs
from sonde.studies import STUDIES
from sonde.studies.study import Finding, Gathered, gather
from sonde.verdicts import accuracy, number, signed

HERE = Path(__file__).parent
STORE = HERE / "runs"
PAGES = ("index", "residual", "audit", "record", "snapshots", "rules", "recovery")
SHOWN = {
    "residual": ("gradient_flow", "training_loss"),
    "audit": ("accuracy", "diagnostics"),
    "snapshots": ("snapshot_resmlp",),
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

PIXELS = {
    "0f3afcc8b965e8a7d87a3e3d115be2c36f5c4643bc93012698978ac625e05ee0": (
        "as a JPEG copy of its images (quality 75), not the original pixels"
    )
}
"""What the images are, by the checksum that runs keep of them."""

SHORT = 12  # epochs of the runs that ask what explains a difference from the record, and of the studies below
SHORTENED = ("snapshots",)
"""Studies that were trained for fewer epochs than their recipe has."""
CHANGES: dict[str, Mapping[str, Any]] = {
    "as it is": {},
    "no augmentation": {"task.augment": False},
    "no weight decay": {"optimiser.weight_decay": 0.0},
    "constant rate": {"optimiser.schedule": "constant"},
    "credit as it comes": {"rule.credit_scale": "none"},
}
"""What is changed in the recipe of the audit, one thing at a time."""
CHANGED_RULES = ("bp", "fa", "dfa", "frozen")
CHANGED_SEED = 42


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
        "changed_recipes": changed_recipes,
        "changed_runs": changed_runs,
        "labels": [label_of("rule", RULES[rule]()) for rule in CHANGED_RULES],
        "record_answer": record_answer,
        "SHORT": SHORT,
        "compared": compared,
        "figures": figures,
        "foretold": foretold,
        "foretold_sentence": foretold_sentence,
        "found": found,
        "hours": hours,
        "has_shares": has_shares,
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
    """The study's runs at full scale, whatever their seeds; snapshots with fewer epochs."""
    seeds = sorted({run.config["seed"] for run in stored.runs})
    configs = STUDIES[study].configs("full", seeds)
    if study in SHORTENED:
        configs = [change(config, {"epochs": SHORT}) for config in configs]
    return gather(stored, configs, "docs/findings/runs")


def made_on(gathered: Gathered) -> str:
    """Seeds, epochs, pixels and hardware, in one line."""
    runs = gathered.stored.runs
    seeds = sorted({run.config["seed"] for run in runs})
    epochs = sorted({run.config["epochs"] for run in runs})
    environments = [session["environment"] for run in runs for session in run.manifest.sessions]
    machines = sorted({f"{one['machine']['processor']}, {one['threads']} thread" for one in environments})
    torch = sorted({one["packages"]["torch"] for one in environments})
    prints = {run.about["data"]["fingerprint"] for run in runs if run.about.get("data")}
    pixels = "".join(f" CIFAR-10 {PIXELS[of]}." for of in sorted(prints))
    counts = sorted(Counter(json.dumps(run.config | {"seed": 0}, sort_keys=True) for run in runs).values())
    n = (
        f"n = {counts[0]}"
        if counts[0] == counts[-1]
        else f"n = {counts[0]} to {counts[-1]}, as the table says"
    )
    return (
        f"{n} (seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}), "
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
    """Rule, our test accuracy by seed, the record's."""
    return [
        [
            rule.label,
            ", ".join(
                f"{accuracy(one.run.at('test_acc', one.run.epochs).value)} ({one.run.seed})"
                for one in rule.runs
            ),
            accuracy(RECORDED[rule.rule]),
        ]
        for recipe in audited.recipes
        for rule in recipe.rules
        if rule.runs
    ]


def changed_recipes(stored: Runs) -> list[list[str]]:
    """Each change of the recipe: the rules' test accuracy, and what the change adds to it in points."""
    reached = {label: [_reached(stored, rule, label) for rule in CHANGED_RULES] for label in CHANGES}
    (unchanged, first), *changes = reached.items()
    return [
        [unchanged, *(accuracy(value) for value in first)],
        *(
            [label, *(_with_gain(value, base) for value, base in zip(values, first, strict=True))]
            for label, values in changes
        ),
        [
            "no augmentation, noisy pixels",
            *(
                _with_gain(_of_noise(stored, rule), base)
                for rule, base in zip(CHANGED_RULES, reached["no augmentation"], strict=True)
            ),
        ],
    ]


def changed_runs(stored: Runs) -> Gathered:
    """The runs of every change of the recipe that was trained."""
    configs = [_changed(rule, label) for rule in CHANGED_RULES for label in CHANGES]
    return gather(stored, configs, "docs/findings/runs")


def _changed(rule: str, label: str) -> RunConfig:
    (config,) = (
        config
        for config in STUDIES["audit"].configs("full", (CHANGED_SEED,))
        if name_of("rule", config.rule) == rule
    )
    return change(config, {"epochs": SHORT, **CHANGES[label]})


def _reached(stored: Runs, rule: str, label: str) -> float:
    """Test accuracy after the short recipe; NaN where there is no such run."""
    rows = stored.rows.filter(run=_changed(rule, label).id, metric="test_acc", epoch=SHORT)
    return float(rows["value"].item()) if len(rows) else math.nan


def _of_noise(stored: Runs, rule: str) -> float:
    """Test accuracy on the images of noise.py; NaN where there is no such run."""
    of = [
        run.id
        for run in stored.runs
        if (run.config["task"]["name"], run.config["rule"]["name"]) == ("noise", rule)
    ]
    rows = stored.rows.filter(pl.col("run").is_in(of), metric="test_acc", epoch=SHORT)
    return float(rows["value"].item()) if len(rows) else math.nan


def _with_gain(reached: float, base: float) -> str:
    if math.isnan(reached):
        return "not run"
    return f"{accuracy(reached)} ({signed(100 * (reached - base))})" if reached != base else "the same run"


def record_answer(stored: Runs) -> str:
    """Whether a change of the recipe costs as much as our runs are above the record."""
    audited = of_recipe(found(stored, "audit"))
    ours = {rule.rule: rule.scalar("test_acc").mean for rule in audited.recipes[0].rules}
    sentences, explained = [], False
    for rule in ("fa", "dfa", "frozen"):
        above = 100 * (ours[rule] - RECORDED[rule])
        costs = {
            label: 100 * (_reached(stored, rule, "as it is") - _reached(stored, rule, label))
            for label in CHANGES
        }
        label, most = max((one for one in costs.items() if not math.isnan(one[1])), key=lambda one: one[1])
        explained = explained or most > above / 2
        cost = f"“{label}” costs most, {number(most)}" if most > 0 else "no change costs anything"
        sentences.append(
            f"{label_of('rule', RULES[rule]())} ends {number(above)} points above the record, and {cost}"
        )
    answer = (
        "One difference accounts for much of it" if explained else "No difference that was tried explains it"
    )
    return f"{answer}: {'; '.join(sentences)}."


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
    """Without probes and checksums, which tell recipes apart but not what was learned."""
    shown = recipe.title.partition(", probes.")[0].replace(
        " on noise,", " on CIFAR-10, noisy and not augmented,"
    )
    return ", ".join(part for part in shown.split(", ") if not part.startswith("data."))


def has_shares(recipe: RecipeAudit) -> bool:
    """Whether a rule of this recipe can be compared with its backprop and its frozen blocks."""
    return any(one.share.n for one in recovered(recipe))


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
