"""Write the pages of this folder, and their figures, from the runs that are stored beside them.

    python docs/findings/write.py

A page is a template with commands; every number in it is computed here from stored rows, by the same functions as the
command that stands beside it.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from record import (
    CHANGED_RULES,
    LATELY,
    SHORT,
    above_record,
    changed_recipes,
    changed_runs,
    compared,
    explanation,
    form_runs,
    forms,
    record_answer,
)

from sonde.analysis.audit import STREAM_LABEL, Audit, RecipeAudit, audit
from sonde.analysis.audit_text import audit_columns, audit_rows, sentence
from sonde.analysis.recovery import RECOVERY_QUANTITIES, Recovered, rank_correlations, recovery_by_recipe
from sonde.analysis.runs import complete
from sonde.config import change, label_of
from sonde.core.formatting import listed, number, said_share
from sonde.rules import RULES
from sonde.show.figures import FIGURES
from sonde.show.figures.render import render_figure
from sonde.store.load import load
from sonde.store.run import Run, Runs
from sonde.studies import STUDIES, claims
from sonde.studies.study import Gathered, StudyFinding, gather

HERE = Path(__file__).parent
STORE = HERE / "runs"
PAGES = ("index", "residual", "audit", "record", "reproduce", "snapshots", "rules", "recovery")
SHOWN = {
    "residual": ("loss_by_depth", "learning_comparison", "gradient_flow"),
    "audit": ("accuracy", "diagnostics"),
    "snapshots": ("snapshot_resmlp",),
    "rules": ("rules_residual_mlp",),
}
"""The figures of a page; each is a file called study_figure.png."""

PIXELS = {
    "0f3afcc8b965e8a7d87a3e3d115be2c36f5c4643bc93012698978ac625e05ee0": (
        "as a JPEG copy of its images (quality 75), not the original pixels"
    )
}
"""What the images are, by the checksum that runs keep of them."""

EPOCHS = {"snapshots": SHORT}
"""Of studies that were trained for fewer than their recipe has."""

LONG = 30
"""The epochs of the rules study's second recipe."""


def write() -> None:
    for name, text in pages(load(STORE)).items():
        (HERE / name).write_text(text)
    for study, names in SHOWN.items():
        evidence = found(load(STORE), study).evidence
        for name in names:
            drawn = render_figure(FIGURES[name], evidence, None, ("png",))
            (HERE / f"{study}_{name}.png").write_bytes(drawn.images["png"])


def figures(study: str, stored: Runs) -> str:
    """The page's figures with their captions."""
    evidence = found(stored, study).evidence
    shown = [
        f"![{FIGURES[name].title}]({study}_{name}.png)\n\n{render_figure(FIGURES[name], evidence).caption}"
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
        "above_record": above_record,
        "at_full_scale": at_full_scale,
        "audit": audit,
        "quantities": RECOVERY_QUANTITIES,
        "columns": audit_columns,
        "CONFIDENCE": claims.CONFIDENCE,
        "WITHIN_POINTS": claims.WITHIN_POINTS,
        "WITHIN_FACTOR": claims.WITHIN_FACTOR,
        "claim_rows": claim_rows,
        "claims_answer": claims_answer,
        "pixels": next(iter(PIXELS.values())),
        "changed_recipes": changed_recipes,
        "changed_runs": changed_runs,
        "labels": [label_of("rule", RULES[rule]()) for rule in CHANGED_RULES],
        "explanation": explanation,
        "forms": forms,
        "form_runs": form_runs,
        "record_answer": record_answer,
        "SHORT": SHORT,
        "LATELY": LATELY,
        "LONG": LONG,
        "compared": compared,
        "figures": figures,
        "foretold": foretold,
        "foretold_sentence": foretold_sentence,
        "found": found,
        "hours": hours,
        "hours_of_all": hours_of_all,
        "in_order": in_order,
        "lines": audit_rows,
        "made_on": made_on,
        "rows_of": rows_of,
        "sentence": sentence,
        "shares_of": shares_of,
        "table": table,
        "title": title,
        "unfinished": unfinished,
        "with_shares": with_shares,
        "with_accuracy": with_accuracy,
        "without_times": without_times,
    }
    return {f"{name}.md": templates.get_template(f"{name}.md.jinja").render(stored=stored) + "\n" for name in PAGES}


def claims_answer(stored: Runs) -> str:
    """How many claims have each verdict."""
    counts = Counter(one.verdict for one in claims.answers(claims.read_claims(), stored))
    return f"Of {counts.total()} published numbers, {listed(f'{counts[v]} are {v}' for v in claims.VERDICTS)}."


def claim_rows(stored: Runs, *, run: bool) -> list[list[str]]:
    """Claims that were compared, or those without a run and why."""
    found = claims.answers(claims.read_claims(), stored)
    found.sort(key=lambda one: claims.VERDICTS.index(one.verdict))
    if run:
        return [one.cells() for one in found if one.ours.n]
    return [[*one.cells()[1:4], (one.command and f"`{one.command}`") or one.why] for one in found if not one.ours.n]


def found(stored: Runs, study: str, epochs: int | None = None) -> Gathered:
    """The study's runs at full scale, whatever their seeds; or those of a recipe with other epochs."""
    seeds = sorted({run.config["seed"] for run in stored.runs})
    configs = STUDIES[study].configs("full", seeds)
    if epochs := epochs or EPOCHS.get(study):
        configs = [change(config, {"epochs": epochs}) for config in configs]
    beside = STUDIES[study].beside("full", seeds)
    return gather(stored, configs, "docs/findings/runs", beside=beside)


def at_full_scale(stored: Runs) -> str:
    """How much of each study's full recipe is stored."""
    there = {run.id for run in complete(stored)[0]}
    told, whole = [], []
    for name, study in STUDIES.items():
        wanted = {config.id for config in study.configs("full", study.seeds["full"])}
        told.append(f"{name} {len(wanted & there)} of {len(wanted)} runs")
        whole += [name] * (wanted <= there)
    return (
        f"Of the {len(STUDIES)} studies, {len(whole)} ({', '.join(whole) or 'none'}) "
        f"{'is' if len(whole) == 1 else 'are'} trained as the full scale asks, with every network, seed and epoch: "
        f"{'; '.join(told)}. The other pages say what they stand on: fewer seeds, epochs or networks."
    )


def made_on(stored: Runs) -> str:
    """Seeds, epochs, pixels and hardware, in one line."""
    runs = stored.runs
    seeds = sorted({run.config["seed"] for run in runs})
    epochs = sorted({run.config["epochs"] for run in runs})
    environments = [session["environment"] for run in runs for session in run.manifest.sessions]
    machines = sorted({f"{one['machine']['processor']}, {one['threads']} thread" for one in environments})
    torch = sorted({one["packages"]["torch"] for one in environments})
    prints = {run.about["data"]["fingerprint"] for run in runs if run.about.get("data")}
    pixels = "".join(f" CIFAR-10 {PIXELS[of]}." for of in sorted(prints))
    counts = sorted(Counter(json.dumps(run.config | {"seed": 0}, sort_keys=True) for run in runs).values())
    n = f"n = {counts[0]}" if counts[0] == counts[-1] else f"n = {counts[0]} to {counts[-1]}, as the table says"
    return (
        f"{n} (seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}), "
        f"{' and '.join(map(str, epochs))} epochs; {' and '.join(machines)}; PyTorch {' and '.join(torch)}.{pixels}"
    )


def hours(runs: Sequence[Run]) -> str:
    """Of training and probing together, by the clock."""
    seconds = sum(run.manifest.seconds[part] for run in runs for part in ("train", "probes"))
    return f"{seconds / 3600:.1f} h"


def hours_of_all(runs: Sequence[Run]) -> str:
    """What the whole study would take two cores.

    Of every rule the quickest seed, training by the processor's time and looking by the clock's, since other work only
    adds to both.
    """
    quickest: dict[str, float] = {}
    for run in runs:
        if "processor" in run.manifest.seconds:
            seconds = run.manifest.seconds["processor"] + run.manifest.seconds["probes"]
            rule = run.config["rule"]["name"]
            quickest[rule] = min(seconds, quickest.get(rule, seconds))
    study = STUDIES["audit"]
    seeds = study.seeds["full"]
    configs = study.configs("full", seeds)
    assert len(configs) == len(quickest) * len(seeds), "a rule has no run whose processor time is known"
    by_rule = ", ".join(
        f"{label_of('rule', RULES[rule]())} {seconds / 60:.0f}" for rule, seconds in sorted(quickest.items())
    )
    whole = sum(quickest.values()) * len(seeds) / 2
    return f"{by_rule} minutes; {whole / 3600:.1f} h on two cores for all {len(configs)} runs"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(headings)
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (headings, rule, *rows)
    )


def with_accuracy(stored: Runs) -> Runs:
    """Every run that learned from data: the identity has no accuracy."""
    runs = [run for run in complete(stored)[0] if run.config["task"]["name"] != "identity"]
    ids = [run.id for run in runs]
    return Runs(stored.rows.filter(stored.rows["run"].is_in(ids)), runs)


def unfinished(gathered: Gathered) -> str:
    """Which runs of the whole study are not there."""
    study = STUDIES["audit"]
    configs = study.configs("full", study.seeds["full"])
    missing = len({config.id for config in configs} - {run.id for run in gathered.stored.runs})
    whole = f"The whole study has {len(configs)} runs: six rules and three seeds."
    return f"{whole} {missing} of them {'is' if missing == 1 else 'are'} not trained yet." if missing else whole


def without_times(finding: StudyFinding) -> dict[str, str]:
    """A finding's cells but for times, which were taken beside other work."""
    return {heading: cell for heading, cell in finding.shown.items() if "time" not in heading}


def rows_of(findings: Sequence[StudyFinding]) -> list[list[str]]:
    return [list(without_times(finding).values()) for finding in findings]


def in_order(findings: Sequence[StudyFinding], rules: Sequence[str]) -> str:
    """Whether the rules' accuracies fall in this order, in words."""
    reached = {finding.numbers["rule"]: finding.numbers["test_acc"] for finding in findings}
    known = [reached[rule] for rule in rules if rule in reached]
    return "the same" if known == sorted(known, reverse=True) else "another one"


def title(recipe: RecipeAudit) -> str:
    """Without probes, which tell recipes apart but not what was learned."""
    shown = recipe.title.partition(", probes.")[0]
    return shown.replace(" on noise,", " on CIFAR-10, noisy and not augmented,")


def with_shares(audited: Audit) -> list[tuple[RecipeAudit, list[Recovered]]]:
    """The recipes of which a rule can be compared with its backprop and its frozen blocks."""
    return [(recipe, rules) for recipe, rules in recovery_by_recipe(audited) if any(one.share.n for one in rules)]


def shares_of(rules: Sequence[Recovered]) -> list[list[str]]:
    """Rule, n, share of BP's margin, its interval."""
    return [
        [
            one.label,
            str(one.share.n),
            said_share(one.share.mean, one.test_error) if one.share.n else f"undefined: {one.share.reason}",
            f"{said_share(one.interval.low)} to {said_share(one.interval.high)}"
            if math.isfinite(one.interval.low)
            else "undefined",
        ]
        for one in rules
    ]


def foretold(audited: Audit) -> list[list[str]]:
    return [
        [
            one.quantity,
            f"{one.n} ({one.runs})",
            "undefined" if one.reason else number(one.correlation),
            one.reason or one.said_chance,
            "–" if one.quantity == STREAM_LABEL else number(one.given_stream),
        ]
        for one in rank_correlations(audited)
    ]


def foretold_sentence(audited: Audit) -> str:
    """The strongest, in words; and those that are not told from chance."""
    known = [one for one in rank_correlations(audited) if one.reason is None]
    if not known:
        return "No quantity has enough rules for a rank correlation."
    best = known[0]
    by_chance = [one.quantity for one in known if one.chance > 0.05]
    rest = f" Not told from chance (above 0.05): {'; '.join(by_chance)}." if by_chance else ""
    of_bp = best.quantity.replace(",", " of BP's gradient,", 1)
    own = next((one.correlation for one in known if one.quantity == of_bp), None)
    beside = "" if own is None else f" The same along BP's own gradient has {number(own)}."
    return (
        f"The closest is “{best.quantity}”: rank correlation {number(best.correlation)} over n = {best.n} rules "
        f"({best.runs} runs), by chance {best.said_chance}.{beside} Given ‖h_L‖ ÷ init, what is left of it is "
        f"{number(best.given_stream)}.{rest}"
    )


if __name__ == "__main__":
    sys.exit(write())
