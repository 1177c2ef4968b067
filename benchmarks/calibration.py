"""How often each question of the audit fires: on healthy runs, and on those it is made for.

python benchmarks/calibration.py STORE   train what is missing there, count, and write docs/calibration.md: half an hour
python benchmarks/calibration.py --page  write the page anew from calibration.json
"""

import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from jinja2 import StrictUndefined, Template

from sonde.audit.audit import Judge, RecipeAudit, RuleAudit, audit
from sonde.audit.credit_question import at_layers, critical
from sonde.audit.questions import margin
from sonde.audit.thresholds import Thresholds
from sonde.config import Optimiser, Probing, RunConfig
from sonde.models import ResidualMLP
from sonde.probes import DRAWS, PROBES, Context, take
from sonde.rows import Reading
from sonde.rules import Backprop, DirectFeedback, FeedbackAlignment, Frozen, Rule
from sonde.runs.readings import Layout, MeasuredRun
from sonde.store.load import load
from sonde.store.run import RunFolder
from sonde.tasks import Digits, Task, Teacher
from sonde.training.assign import CreditAssignment
from sonde.training.program import Program
from sonde.training.train import train_together
from sonde.verdicts import number, percent, signed

HERE = Path(__file__).parent
NUMBERS = HERE / "calibration.json"
PAGE = HERE.parent / "docs" / "calibration.md"
SEEDS = range(1, 8)
DEPTHS = (2, 4, 6)
EPOCHS = (20, 200)
TASKS: tuple[Task, ...] = (Digits(), Teacher(inputs=32, d=32, samples=1500, test_samples=400))
SIZES = Probing(names=("hidden_norm", "growth", "grad_norm"), schedule="log_spaced", k=4, costly=())
HEALTHY: tuple[Rule, ...] = (Backprop(), Frozen())
PLANTED: tuple[Rule, ...] = (DirectFeedback(), FeedbackAlignment())
FEW = 3  # seeds, as a study has them
STRANGERS = 100  # rules drawn by chance on each network
NETWORKS = 3
CREDIT = replace(SIZES, names=(*SIZES.names, "credit_cosine"), costly=("rho",))


def recipe(
    task: Task, depth: int, out_ln: bool, epochs: int, rule: Rule, seed: int, probes: Probing
) -> RunConfig:
    """A residual MLP of width 32 that a stack trains in seconds; probes at a few epochs."""
    return RunConfig(
        model=ResidualMLP(d=32, L=depth, out_ln=out_ln),
        rule=rule,
        task=task,
        optimiser=Optimiser(name="adamw", lr=1e-3, weight_decay=0.01, schedule="cosine"),
        probes=probes,
        batch_size=64,
        epochs=epochs,
        seed=seed,
        scale="quick",
    )


def bundles() -> Iterator[list[RunConfig]]:
    """What is trained together: the seeds of one recipe and rule."""
    for epochs, task, depth, out_ln in itertools.product(EPOCHS, TASKS, DEPTHS, (True, False)):
        for rule in HEALTHY:
            yield [recipe(task, depth, out_ln, epochs, rule, seed, SIZES) for seed in SEEDS]
    for rule in PLANTED:
        yield [recipe(TASKS[0], 4, True, 100, rule, seed, CREDIT) for seed in SEEDS]
    fast = Optimiser(name="adamw", lr=1e-2, weight_decay=0.01, schedule="constant")
    dfa = DirectFeedback()
    yield [replace(recipe(TASKS[0], 4, True, 100, dfa, seed, CREDIT), optimiser=fast) for seed in SEEDS]


def train(store: Path) -> None:
    for bundle in bundles():
        print(bundle[0].id, file=sys.stderr)
        train_together(bundle, runs=store)


def count(store: Path) -> dict[str, Any]:
    """Everything the page says, from the runs of the store."""
    stored = load(store)
    judge, thresholds = Judge(stored), Thresholds()
    recipes = audit(stored, thresholds, judge).recipes
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d}",
        "sonde": version("sonde"),
        "torch": version("torch"),
        "thresholds": asdict(thresholds),
        "healthy": [healthy(recipe, judge) for recipe in recipes if of(recipe, "bp")],
        "planted": [
            planted(rule, recipe.recipe["optimiser.lr"])
            for recipe in recipes
            for rule in recipe.rules
            if rule.rule in ("dfa", "fa")
        ],
        "strangers": strangers(store, recipes),
    }


def of(recipe: RecipeAudit, rule: str) -> RuleAudit | None:
    return next((known for known in recipe.rules if known.rule == rule), None)


def healthy(recipe: RecipeAudit, judge: Judge) -> dict[str, Any]:
    """BP of one recipe: how often each question fired, the extremes, and D4 over all seeds and over few."""
    bp, frozen = of(recipe, "bp"), of(recipe, "frozen")
    assert bp is not None
    assert frozen is not None
    base = {run.run.seed: run.run for run in frozen.runs}
    found = bp.margin
    return {
        "task": recipe.recipe["task"],
        "L": recipe.recipe["model.L"],
        "out_ln": recipe.recipe["model.out_ln"],
        "epochs": recipe.recipe["epochs"],
        "runs": len(bp.runs),
        "diverged": len(bp.diverged),
        **{question: len(bp.tally(question).fired) for question in ("D1", "D2", "D3")},
        "undefined": sum(len(bp.tally(question).undefined) for question in ("D1", "D2", "D3")),
        "growth": max(run.answers["D1"].value for run in bp.runs),
        "gradient": min(run.answers["D2"].value for run in bp.runs),
        "test_acc": bp.scalar("test_acc").mean,
        "train_acc": bp.scalar("train_acc").mean,
        "worse": sum(points < 0 for points in found.by_seed.values()),
        "outcome": found.outcome,
        "points": found.points.mean,
        "interval": [found.interval.low, found.interval.high],
        "errors_removed": found.errors_removed,
        "few": dict(of_few(bp, base)),
    }


def of_few(bp: RuleAudit, base: dict[int, MeasuredRun]) -> "Counter[str]":
    """D4 of every choice of a few seeds, and what the mean of the other seeds says, which had no part in it."""
    found: Counter[str] = Counter()
    for some in itertools.combinations(bp.runs, FEW):
        verdict = margin("bp", [run.run for run in some], base, "", bp.thresholds.confidence)
        others = [run.run for run in bp.runs if run not in some]
        truth = margin("bp", others, base, "", bp.thresholds.confidence).points.mean
        found[f"{verdict.outcome}, others {'above' if truth > 0 else 'below'}"] += 1
    return found


def planted(rule: RuleAudit, lr: float) -> dict[str, Any]:
    """What the questions made for it say of a rule that degenerates or draws its credit."""
    standings = Counter(layer.standing or "undefined" for run in rule.runs for layer in run.credits)
    return {
        "rule": rule.label,
        "lr": lr,
        "runs": len(rule.runs),
        **{question: len(rule.tally(question).fired) for question in ("D1", "D2", "D3")},
        "growth": [run.answers["D1"].value for run in rule.runs],
        "gradient": [run.answers["D2"].value for run in rule.runs],
        "standings": dict(standings),
    }


def strangers(store: Path, recipes: Iterable[RecipeAudit]) -> list[dict[str, Any]]:
    """How often a rule whose matrices never met the network is called above chance at a single layer.

    The networks are trained ones of the store; the null before was one random vector a sample.
    """
    deep = [recipe for recipe in recipes if of(recipe, "bp") and deepest(recipe)]
    bp = of(deep[0], "bp")
    assert bp is not None
    found = []
    for rule in PLANTED:
        counts: Counter[str] = Counter()
        for run in bp.runs[:NETWORKS]:
            counts += judged(store, run.run.id, rule)
        found.append({"rule": rule.label, "networks": NETWORKS, "draws": STRANGERS, **counts})
    return found


def deepest(recipe: RecipeAudit) -> bool:
    flat = recipe.recipe
    return (flat["task"], flat["model.L"], flat["model.out_ln"], flat["epochs"]) == (
        "digits",
        DEPTHS[-1],
        True,
        20,
    )


def judged(store: Path, run: str, rule: Rule) -> "Counter[str]":
    """Single layers by where chance alone puts them."""
    config = next(config for bundle in bundles() for config in bundle if config.id == run)
    data = config.task.load(config.seed, None, torch.device("cpu"), torch.float32)
    program = Program(config, data, torch.device("cpu"))
    program.net.load_state_dict(safetensors.torch.load(RunFolder(store / run).tensors("weights")))
    x, y = data.test(0, config.probes.size)
    counts: Counter[str] = Counter()
    for k in range(STRANGERS):
        drawn = CreditAssignment(program.net, rule, sample=x, loss=data.loss, seed=k)
        context = Context(credits=drawn.credits, redrawn=drawn.redrawn, seed=k, epoch=1)
        snapshot = take(program.net, x, y, data.loss, context)
        readings = [reading for name in ("credit_cosine", "rho") for reading in PROBES[name](snapshot)]
        vectors = [
            math.sqrt(one / (snapshot.states[0].shape[-1] * len(x)) + other / (context.directions * len(x)))
            for one, other in ((1, 0), (1, 1))
        ]
        for layer in at_layers(as_run(readings, snapshot.depth), 1, Thresholds()):
            if layer.standing == "given":
                continue
            counts["layers"] += 1
            counts["cosine above"] += layer.cosine.side == "above"
            counts["rho above"] += layer.rho.side == "above"
            counts["above"] += layer.standing == "above"
            counts["below"] += layer.standing == "below"
            counts["disagree"] += layer.standing == "disagree"
            counts["cosine above vectors"] += layer.cosine.value > 3 * vectors[0]
            counts["rho above vectors"] += layer.rho.value > 3 * vectors[1]
    return counts


def as_run(readings: list[Reading], depth: int) -> MeasuredRun:
    """One snapshot as the audit sees a run."""
    return MeasuredRun(
        id="",
        seed=0,
        rule="",
        depth=depth,
        epochs=1,
        layout=Layout((reading.metric, 1, reading.layer) for reading in readings),
        values=np.array([reading.value for reading in readings]),
        reasons={place: reading.reason for place, reading in enumerate(readings) if reading.reason},
        samples=np.array([reading.samples for reading in readings]),
    )


def table(headings: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    named = list(headings)
    rows = [named, ["---", *["---:"] * (len(named) - 1)], *lines]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({percent(100 * part / whole)})"


def fired(known: dict[str, Any]) -> str:
    """Each question on healthy runs."""
    lines = known["healthy"]
    runs = sum(line["runs"] for line in lines)
    few = of_recipes(lines)
    above = sum(n for said, n in few.items() if said.endswith("above"))
    helping = [line for line in lines if line["outcome"] != "hurts"]
    return table(
        ("fires", "of healthy BP", "nearest to it", "threshold"),
        [
            (
                "`D1`",
                share(sum(line["D1"] for line in lines), runs),
                f"growth {number(max(line['growth'] for line in lines))}×",
                f"above {known['thresholds']['growth']:g}×",
            ),
            (
                "`D2`",
                share(sum(line["D2"] for line in lines), runs),
                f"{number(min(line['gradient'] for line in lines))} of init",
                f"below {known['thresholds']['gradient']:g}",
            ),
            ("`D3`", share(sum(line["D3"] for line in lines), runs), "BP's credit is the gradient", "–"),
            (
                f"`D4` hurts, by {FEW} seeds, where the other {len(SEEDS) - FEW} are better than frozen",
                share(few["hurts, others above"], above),
                f"{signed(min(line['points'] for line in helping))} points",
                f"{100 * known['thresholds']['confidence']:g} % interval below 0",
            ),
        ],
    )


def of_recipes(lines: Iterable[dict[str, Any]]) -> "Counter[str]":
    found: Counter[str] = Counter()
    for line in lines:
        found += Counter(line["few"])
    return found


def by_few(found: "Counter[str]") -> str:
    words = ("helps", "undecided", "hurts")
    return table(
        (f"mean of the other {len(SEEDS) - FEW} seeds", *words),
        (
            (f"{side} frozen", *(found[f"{word}, others {side}"] for word in words))
            for side in ("above", "below")
        ),
    )


def by_recipe(known: dict[str, Any]) -> str:
    return table(
        (
            "BP on",
            "L",
            "terminal LN",
            "epochs",
            "runs",
            "test acc.",
            "growth, most",
            "‖g_L‖/‖e‖ ÷ init, least",
            "points over frozen",
            "D4",
        ),
        (
            (
                line["task"],
                line["L"],
                "yes" if line["out_ln"] else "no",
                line["epochs"],
                line["runs"],
                percent(100 * line["test_acc"]),
                f"{number(line['growth'])}×",
                number(line["gradient"]),
                f"{signed(line['points'])} [{signed(line['interval'][0])}, {signed(line['interval'][1])}]",
                line["outcome"],
            )
            for line in sorted(
                known["healthy"],
                key=lambda line: (line["task"], line["epochs"], line["L"], not line["out_ln"]),
            )
        ),
    )


def on_purpose(known: dict[str, Any]) -> str:
    def words(line: dict[str, Any]) -> str:
        return ", ".join(f"{name} {n}" for name, n in sorted(line["standings"].items()))

    return table(
        (
            "rule",
            "learning rate",
            "runs",
            "D1 fires",
            "growth",
            "D2 fires",
            "‖g_L‖/‖e‖ ÷ init",
            "D3 fires",
            "layers by standing",
        ),
        (
            (
                line["rule"],
                f"{line['lr']:g}",
                line["runs"],
                line["D1"],
                f"{number(min(line['growth']))}–{number(max(line['growth']))}×",
                line["D2"],
                f"{number(min(line['gradient']))}–{number(max(line['gradient']))}",
                line["D3"],
                words(line),
            )
            for line in known["planted"]
        ),
    )


def by_chance(known: dict[str, Any]) -> str:
    return table(
        (
            "rule",
            "single layers",
            "cosine above",
            "ρ above",
            "both above",
            "both below",
            "disagree",
            "cosine above, vectors",
            "ρ above, vectors",
        ),
        (
            (
                line["rule"],
                line["layers"],
                *(
                    f"{line.get(key, 0)} ({percent(100 * line.get(key, 0) / line['layers'])})"
                    for key in (
                        "cosine above",
                        "rho above",
                        "above",
                        "below",
                        "disagree",
                        "cosine above vectors",
                        "rho above vectors",
                    )
                ),
            )
            for line in known["strangers"]
        ),
    )


def memorised(lines: Iterable[dict[str, Any]]) -> str:
    """What is known of the recipes in which BP's blocks hurt."""
    found = [line for line in lines if line["outcome"] == "hurts"]
    if not found:
        return "In none do they hurt."
    tasks = " and ".join(sorted({f"{line['task']}, {line['epochs']} epochs" for line in found}))
    seeds = sum(line["worse"] for line in found)
    train, test = (min(line[key] for line in found) for key in ("train_acc", "test_acc"))
    pairs = sum(line["runs"] for line in found)
    heart = "has its training samples by heart" if train > 0.99 else "learns its training samples"
    return (
        f"They hurt in {len(found)} ({tasks}). That is no false alarm: BP {heart} ({percent(100 * train)} of them "
        f"right, but {percent(100 * test)} of the test samples in the worst recipe), and frozen blocks "
        f"generalise better in {seeds} of {pairs} pairs."
    )


def page(known: dict[str, Any]) -> str:
    lines = known["healthy"]
    template = Template(
        (HERE / "calibration.md.jinja").read_text(), undefined=StrictUndefined, keep_trailing_newline=True
    )
    text: str = template.render(
        known=known,
        runs=sum(line["runs"] for line in lines),
        recipes=len(lines),
        seeds=len(SEEDS),
        few=FEW,
        draws=DRAWS,
        strangers=STRANGERS,
        networks=NETWORKS,
        critical=f"{critical(known['thresholds']['deviations'], DRAWS) * math.sqrt(1 + 1 / DRAWS):.2f}",
        verdicts={
            word: sum(line["outcome"] == word for line in lines) for word in ("helps", "hurts", "undecided")
        },
        by_few=by_few(of_recipes(lines)),
        helping=sum(line["runs"] for line in lines if line["outcome"] != "hurts"),
        memorised=memorised(lines),
        fired=fired(known),
        by_recipe=by_recipe(known),
        on_purpose=on_purpose(known),
        by_chance=by_chance(known),
    )
    return text


def main() -> None:
    if "--page" not in sys.argv:
        store = Path(sys.argv[1])
        torch.set_num_threads(1)
        train(store)
        NUMBERS.write_text(json.dumps(count(store), indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(json.loads(NUMBERS.read_text())))


if __name__ == "__main__":
    main()
