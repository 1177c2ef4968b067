"""Write the pages of this folder, and their figures, from the runs that are stored beside them.

    python docs/findings/write.py

A page is a template with commands; every number in it is computed here from stored rows, by the same functions as the
command that stands beside it.
"""

import json
import math
import re
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
from sonde.analysis.recovery import (
    RECOVERY_QUANTITIES,
    RankCorrelation,
    Recovered,
    rank_correlations,
    recovery_by_recipe,
)
from sonde.analysis.runs import complete
from sonde.config import RunConfig, change, label_of, name_of
from sonde.core.formatting import accuracy, listed, number, said_share
from sonde.rules import RULES
from sonde.show.figures import FIGURES
from sonde.show.figures.render import render_figure
from sonde.store.load import load
from sonde.store.run import Run, Runs
from sonde.studies import STUDIES, claims
from sonde.studies.study import Gathered, StudyFinding, gather

HERE = Path(__file__).parent
STORE = HERE / "runs"
PAGES = ("index", "residual", "audit", "record", "reproduce", "snapshots", "rules", "controls", "recovery")
SHOWN = {
    "residual": ("loss_by_depth", "learning_comparison", "gradient_flow"),
    "audit": ("accuracy", "diagnostics"),
    "snapshots": ("stream_by_terminal_ln",),
    "rules": ("rules_residual_mlp", "rules_conv_net"),
    "credit_at": ("credit_at_layers",),
    **dict.fromkeys(("random_targets", "penalty", "trained_blocks", "linear_quadratic"), ("controls",)),
    **dict.fromkeys(("depth", "deep"), ("accuracy_by_depth", "controls")),
}
"""The figures of a page; each is a file called study_figure.png."""

CAPTIONS = {
    "loss_by_depth": (
        "Final training loss against the number of layers, relative to predicting zero. The last layer is linear, so "
        "every network can represent the identity."
    ),
    "learning_comparison": "Loss against steps, final loss, and gradient norm at every layer after training.",
    "gradient_flow": (
        "Norm of the gradient at every layer, before and after training. Dotted: the theory of wide networks with "
        "random weights, which predicts the initialisation only."
    ),
    "accuracy": "Training accuracy (left) and test accuracy (right) against epochs.",
    "diagnostics": (
        "Credit compared with the BP gradient at every layer: cosine, correlation ρ of predicted and true loss "
        "changes, and change in loss after a step against the credit. Dashed: BP's own gradient as credit (ceiling). "
        "Dotted: credit by chance (null)."
    ),
    "stream_by_terminal_ln": (
        "Norm of the last state h_L and of the BP gradient at h_2 against epochs, median over samples. Epoch 0 is the "
        "initialisation."
    ),
    **dict.fromkeys(
        ("rules_residual_mlp", "rules_conv_net"),
        "Test accuracy of every rule. Dashed line: frozen blocks; dotted line: guessing.",
    ),
    "credit_at_layers": (
        "Cosine of credit and BP gradient at every state (left), and growth of the state over every block (right), "
        "after the last epoch. Solid: credit at the block's output; dashed: at its input."
    ),
    "accuracy_by_depth": "Test accuracy after the last epoch against the number of blocks. Thin lines: seeds.",
    "controls": "Every setting of the table after the last epoch.",
}
"""Figure → what is drawn.  The numbers are in the tables, and in the text file that `sonde figures` writes."""

PIXELS = {
    "0f3afcc8b965e8a7d87a3e3d115be2c36f5c4643bc93012698978ac625e05ee0": (
        "as a JPEG copy of its images (quality 75), not the original pixels"
    )
}
"""What the images are, by the checksum that runs keep of them."""

EPOCHS = {"random_targets": SHORT, "depth": SHORT}
"""Of studies that were trained for fewer than their recipe has."""

SCALES = {"linear_quadratic": "quick"}
"""Of studies that are shown at another scale than the full one."""

LONG = 30
"""The epochs of the rules study's second recipe."""


def write() -> None:
    for name, text in pages(load(STORE)).items():
        (HERE / name).write_text(text)
    stored = load(STORE)
    for study, names in SHOWN.items():
        for name in names if trained(stored, study) else ():
            evidence = found(stored, study).evidence
            drawn = render_figure(FIGURES[name], evidence, None, ("png",))
            (HERE / f"{study}_{name}.png").write_bytes(drawn.images["png"])


def figures(study: str, stored: Runs, *names: str) -> str:
    """The page's figures with short captions: what is drawn, the recipe, n, and on what the runs were trained."""
    shown = []
    for name in names or SHOWN[study]:
        gathered = found(stored, study)
        recipe, n = recipe_and_n(render_figure(FIGURES[name], gathered.evidence).caption)
        caption = f"{CAPTIONS[name]} {recipe}. {n}. {trained_on(gathered.stored.runs)}"
        shown.append(f"![{FIGURES[name].title}]({study}_{name}.png)\n\n*{caption}*")
    return "\n\n".join(shown)


def recipe_and_n(caption: str) -> tuple[str, str]:
    """The recipe and the number of seeds, from a figure's whole caption."""
    recipe = next(one for one in re.split(r"(?<=\.) (?=[A-Z\d])", caption) if "training samples," in one)
    found_n = re.search(r"; (n = .*?\))\. ", caption)
    assert found_n is not None, caption
    return recipe.removesuffix("."), found_n[1]


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
        "command_of": command_of,
        "about_control": about_control,
        "cost": cost,
        "costs": costs,
        "EPOCHS": EPOCHS,
        "missing_of": missing_of,
        "stored_by_network": stored_by_network,
        "published_ep": published_ep,
        "trained": trained,
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
        "rank_correlations": rank_correlations,
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
        return [[*one.cells(), one.claim.source] for one in found if one.ours.n]
    return [
        [*one.cells()[1:4], one.claim.source, (one.command and f"`{one.command}`") or one.why]
        for one in found
        if not one.ours.n
    ]


def found(stored: Runs, study: str, epochs: int | None = None, model: str | None = None) -> Gathered:
    """The study's runs at full scale, whatever their seeds; or those with other epochs, or of one network."""
    seeds = sorted({run.config["seed"] for run in stored.runs})
    beside = STUDIES[study].beside("full", seeds)
    configs = [one for one in recipe_of(study, seeds, epochs) if model in (None, name_of("model", one.model))]
    return gather(stored, configs, "docs/findings/runs", beside=beside)


def recipe_of(study: str, seeds: Sequence[int], epochs: int | None = None) -> list[RunConfig]:
    """The configurations of a study as the pages show it."""
    configs = STUDIES[study].configs(SCALES.get(study, "full"), seeds)
    if epochs := epochs or EPOCHS.get(study):
        configs = [change(config, {"epochs": epochs}) for config in configs]
    return configs


def trained(stored: Runs, study: str) -> bool:
    """Whether the store has a complete run of what the pages show of a study."""
    seeds = sorted({run.config["seed"] for run in stored.runs})
    wanted = {config.id for config in recipe_of(study, seeds)}
    return any(run.id in wanted for run in complete(stored)[0])


def command_of(study: str) -> str:
    """The command that shows what a page shows; it trains nothing that is stored."""
    epochs = f" --set epochs={EPOCHS[study]}" if study in EPOCHS else ""
    scale = SCALES.get(study, "full")
    return f"sonde figures {study} --scale {scale}{epochs} --runs docs/findings/runs --out findings"


def missing_of(study: str, stored: Runs) -> str:
    """How many runs of what a page shows are not there, with seed 42 and in all."""
    there = {run.id for run in complete(stored)[0]}
    scale = SCALES.get(study, "full")
    seeds = STUDIES[study].seeds[scale]
    first, every = (recipe_of(study, some) for some in (seeds[:1], seeds))
    counts = [sum(config.id in there for config in some) for some in (first, every)]
    return (
        f"Stored are {counts[0]} of the {len(first)} runs with seed {seeds[0]}, and {counts[1]} of the {len(every)} "
        f"runs with all {len(seeds)} seeds."
    )


def stored_by_network(study: str, stored: Runs) -> str:
    """How many runs of a study's recipe are stored, network by network."""
    there = {run.id for run in complete(stored)[0]}
    runs: dict[str, list[bool]] = {}
    for config in recipe_of(study, STUDIES[study].seeds["full"]):
        runs.setdefault(name_of("model", config.model), []).append(config.id in there)
    told = listed(f"{sum(some)} of the {len(some)} runs with `{model}`" for model, some in runs.items())
    return f"Of the full recipe, {told} are stored."


def published_ep(told: Sequence[StudyFinding]) -> str:
    """The record's accuracies under equilibrium propagation, and ours."""
    known = {claim.missing or claim.set.get("rule"): claim for claim in claims.read_claims()}
    same, small = (claim for name, claim in known.items() if name and name.startswith(("ep", "equilibrium")))
    best = next(claim for name, claim in known.items() if name and name.startswith("BP on a small CNN"))
    (ours,) = (finding for finding in told if finding.numbers["rule"] == "ep")
    epochs = recipe_of("audit", [0])[0].epochs
    return (
        f"The record has {accuracy(same.value, same.std)} (n = {same.n}) under equilibrium propagation on this "
        f"network, after {epochs} epochs. On a small CNN it has {accuracy(small.value)}, and {accuracy(best.value)} "
        f"under BP. EP reaches {ours.shown['test accuracy']} here. The form of the record's rule is not known."
    )


ABOUT_CONTROLS = {
    "random_targets": f"The full recipe has 100 epochs. These runs have {SHORT}, which is another recipe.",
    "penalty": "λ is the weight of mean ‖f_l(h_l)‖² in the loss of every block (under BP, in the whole loss).",
    "trained_blocks": (
        "The last k blocks learn; the others keep their initial weights. Embedding, norm and head learn at every k, "
        "the embedding from the rule's own credit."
    ),
    "depth": f"The full recipe has 100 epochs. Its runs here have {SHORT}, which is another recipe.",
    "deep": (
        "The task is the random hierarchy, the width 32. With 5 steps of rate 0.05 the states of PC move little; PC is "
        "backprop in the limit of small moves. With more steps of rate 0.2 they move far. The error moves down one "
        "block per step of inference, so 5 steps reach 5 blocks, and as many steps as blocks all of them."
    ),
    "linear_quadratic": (
        "A linear residual network has fixed weights and a squared error to random targets. The gradient at every "
        "state, the costate, is then a product of known matrices. Only the bridges learn; they read states without "
        "normalisation. These runs are at quick scale (d = 16, 4 layers, 1,600 steps). Full scale has d = 64, 12 "
        "layers and 8,000 steps, as the record."
    ),
}


def about_control(study: str, stored: Runs) -> str:
    """What is to be known of a control beside its question."""
    return ABOUT_CONTROLS[study] + (f" {faded(stored)}" if study == "deep" else "")


def faded(stored: Runs) -> str:
    """What is left of PC's credit at the lowest block of the deepest network with as many steps as blocks."""
    runs = (run for run in found(stored, "deep").stored.runs if run.about["rule_label"] == f"PC (steps={run.depth})")
    run = max(runs, key=lambda run: run.depth)
    lowest, top = (number(run.at("credit_norm", run.epochs, layer).value) for layer in (1, run.depth))
    return (
        f"It arrives faintly: with {run.depth} steps on {run.depth} blocks the norm of the credit is {top} at h_L and "
        f"{lowest} at h_1. AdamW adds 1e-8 to the size of a gradient, which is far more."
    )


def costs(stored: Runs) -> list[list[str]]:
    """Of every study that has runs: how many, hours by the clock, hours of the processor, cores."""
    lines = []
    for name in STUDIES:
        if trained(stored, name):
            runs = found(stored, name).stored.runs
            counted, seconds = counted_seconds(runs)
            of = "" if counted == len(runs) else f" ({counted} runs)"
            processor = f"{seconds / 3600:.2g} h{of}" if counted else "not counted"
            lines.append([name, str(len(runs)), hours(runs), processor, cores(runs)])
    return lines


def counted_seconds(runs: Sequence[Run]) -> tuple[int, float]:
    """How many runs counted the processor's time in training steps, and their seconds."""
    counted = [run.manifest.seconds["processor"] for run in runs if "processor" in run.manifest.seconds]
    return len(counted), sum(counted)


def cores(runs: Sequence[Run]) -> str:
    """Threads of a process, and how many runs it trained at once."""
    sessions = [session for run in runs for session in run.manifest.sessions]
    threads = max(session["environment"]["threads"] for session in sessions)
    together = max(session["together"] for session in sessions)
    shared = f" for up to {together} runs at once" if together > 1 else " per run"
    return f"{threads} thread{'s' * (threads != 1)}{shared}"


def cost(runs: Sequence[Run]) -> str:
    """Hours by the clock and of the processor, and cores, in a sentence."""
    counted, seconds = counted_seconds(runs)
    of = "" if counted == len(runs) else f" (measured for {counted} of the runs)"
    what = "The run took" if len(runs) == 1 else f"The {len(runs)} runs took"
    return (
        f"{what} {hours(runs)} on a busy machine, {cores(runs)}. Training steps took "
        f"{seconds / 3600:.2g} h of processor time{of}."
    )


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
        f"{'is' if len(whole) == 1 else 'are'} complete at full scale, with every network, seed and epoch. Stored at "
        f"full scale: {'; '.join(told)}. The other pages use fewer seeds, epochs or networks, and say which."
    )


def made_on(stored: Runs) -> str:
    """Seeds, epochs, pixels and hardware, in one line."""
    runs = stored.runs
    seeds = sorted({run.config["seed"] for run in runs})
    epochs = sorted({run.config["epochs"] for run in runs})
    counts = sorted(Counter(json.dumps(run.config | {"seed": 0}, sort_keys=True) for run in runs).values())
    n = f"n = {counts[0]}" if counts[0] == counts[-1] else f"n = {counts[0]} to {counts[-1]}"
    return (
        f"{n} (seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}), "
        f"{listed(map(str, epochs))} epochs; {trained_on(runs)}"
    )


def trained_on(runs: Sequence[Run]) -> str:
    """Hardware, PyTorch and pixels."""
    environments = [session["environment"] for run in runs for session in run.manifest.sessions]
    machines = sorted({f"{one['machine']['processor']}, {one['threads']} thread" for one in environments})
    torch = sorted({one["packages"]["torch"] for one in environments})
    prints = {run.about["data"]["fingerprint"] for run in runs if run.about.get("data")}
    pixels = "".join(f" CIFAR-10 {PIXELS[of]}." for of in sorted(prints))
    return f"{' and '.join(machines)}; PyTorch {' and '.join(torch)}.{pixels}"


def hours(runs: Sequence[Run]) -> str:
    """Of training and probing together, by the clock."""
    seconds = sum(run.manifest.seconds[part] for run in runs for part in ("train", "probes"))
    return f"{seconds / 3600:.1f} h" if seconds >= 360 else f"{seconds / 60:.1f} minutes"


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
    """Every run of a task that classifies and has something to learn."""
    without = ("identity", "linear_quadratic")
    runs = [
        run
        for run in complete(stored)[0]
        if run.config["task"]["name"] not in without and not run.config["task"].get("random_labels")
    ]
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


def foretold(correlations: Sequence[RankCorrelation]) -> list[list[str]]:
    """A row for each quantity."""
    return [
        [
            one.quantity,
            f"{one.n} ({one.rules}, {one.recipes}, {one.runs})",
            "undefined" if one.reason else number(one.correlation),
            one.reason or one.said_chance,
            "–" if one.quantity == STREAM_LABEL else number(one.given_stream),
        ]
        for one in correlations
    ]


def foretold_sentence(correlations: Sequence[RankCorrelation]) -> str:
    """The strongest, in words; and those that are not told from chance."""
    known = [one for one in correlations if one.reason is None]
    if not known:
        return "No quantity has enough rules for a rank correlation."
    best = known[0]
    by_chance = [one.quantity for one in known if one.chance > 0.05]
    rest = f" Not told from chance (above 0.05): {'; '.join(by_chance)}." if by_chance else ""
    of_bp = best.quantity.replace(",", " of BP's gradient,", 1)
    own = next((one.correlation for one in known if one.quantity == of_bp), None)
    beside = "" if own is None else f" The same along BP's own gradient has {number(own)}."
    return (
        f"The closest is “{best.quantity}”: rank correlation within recipes {number(best.correlation)} over "
        f"n = {best.n} points, {best.rules} different rules in {best.recipes} recipes ({best.runs} runs), by chance "
        f"{best.said_chance}.{beside} Given ‖h_L‖ ÷ init, what is left of it is "
        f"{number(best.given_stream)}.{rest}"
    )


if __name__ == "__main__":
    sys.exit(write())
