"""How often each question of the audit fires: on healthy runs, and on those it is made for.

python benchmarks/calibration.py STORE   train what is missing there, count, and write docs/calibration.md: an hour;
                                         it needs CIFAR-10 (SONDE_DATA), and reads docs/findings/runs besides
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
import polars as pl
import safetensors.torch
import torch
from jinja2 import StrictUndefined, Template
from torch import Tensor

from sonde.analysis.audit import AuditCache, RecipeAudit, RuleAudit, RunAudit, audit
from sonde.analysis.questions import credit_at_layers, critical_t, margin_over_frozen
from sonde.analysis.recovery import recovered
from sonde.analysis.runs import complete
from sonde.config import Optimiser, Probing, RunConfig, name_of
from sonde.core.formatting import Thresholds, number, percent, said_share, signed
from sonde.metrics.probes import DRAWS, PROBES, Context, Snapshot, take
from sonde.metrics.probes.signal import as_trained
from sonde.metrics.rows import Reading
from sonde.models import ResidualMLP
from sonde.rules import Backprop, DirectFeedback, FeedbackAlignment, Frozen, Rule
from sonde.store.folder import read_tensors
from sonde.store.load import load
from sonde.store.readings import ReadingArray, ReadingLayout
from sonde.store.run import Run, Runs
from sonde.store.schemas import Manifest
from sonde.studies import STUDIES
from sonde.tasks import Digits, Task, Teacher
from sonde.training.credit_assignment import CreditAssignment
from sonde.training.program import Program
from sonde.training.train import train_together

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
IMAGES = ("bp", "mirror", "frozen", "dfa", "drtp")  # trained on CIFAR-10 for the resolution of their gradient
FINDINGS = HERE.parent / "docs" / "findings" / "runs"
LEARNED = 0.5  # of BP's margin: a rule that recovers as much is healthy
OFFSETS = (0.0, 1e4, 1e5, 1e6, 1e7)  # added to the stream; a LayerNorm takes them out again
STEP = 1e-4  # of a state's spread, by which it is moved along a gradient
FEW = 3  # seeds, as a study has them
STRANGERS = 100  # rules drawn by chance on each network
NETWORKS = 3
CREDIT = replace(SIZES, names=(*SIZES.names, "credit_cosine"), costly=("rho",))


def recipe(task: Task, depth: int, out_ln: bool, epochs: int, rule: Rule, seed: int, probes: Probing) -> RunConfig:
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


def images() -> Iterator[RunConfig]:
    """Runs of the rules study at full scale, the first seed."""
    for config in STUDIES["rules"].configs("full", (42,)):
        if isinstance(config.model, ResidualMLP) and name_of("rule", config.rule) in IMAGES:
            yield config


def train(store: Path) -> None:
    for bundle in bundles():
        print(bundle[0].id, file=sys.stderr)
        train_together(bundle, runs=store / "small")
    for config in images():
        print(config.id, file=sys.stderr)
        train_together([config], runs=store / "images")


def count(store: Path) -> dict[str, Any]:
    """Everything the page says, from the runs of the store."""
    small = store / "small"
    stored = load(small)
    judge, thresholds = AuditCache(stored), Thresholds()
    recipes = audit(stored, thresholds, judge).recipes
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d}",
        "sonde": version("sonde"),
        "torch": version("torch"),
        "thresholds": asdict(thresholds),
        "healthy": [healthy(recipe, judge) for recipe in recipes if of(recipe, "bp")],
        "planted": [
            planted(small, rule, recipe.recipe["optimiser.lr"])
            for recipe in recipes
            for rule in recipe.rules
            if rule.rule in ("dfa", "fa")
        ],
        "strangers": strangers(small, recipes),
        "images": of_images(load(FINDINGS), thresholds),
        "resolved": of_images(load(store / "images"), thresholds),
        "rounded": rounded(small, recipes),
    }


def of_images(stored: Runs, thresholds: Thresholds) -> list[dict[str, Any]]:
    """Runs on CIFAR-10 by rule, those with a LayerNorm on top: how often D1 and D2 fired, and the extremes."""
    there, _ = complete(stored)
    wanted = [run for run in there if run.config["model"].get("out_ln") and run.config["task"]["name"] != "identity"]
    kept = Runs(stored.rows.filter(pl.col("run").is_in([run.id for run in wanted])), wanted)
    found: dict[str, list[tuple[RunAudit, float]]] = {}
    for recipe in audit(kept, thresholds).recipes:
        shares = {one.label: one.share.mean for one in recovered(recipe)}
        for rule in recipe.rules:
            share = {"bp": 1.0, "frozen": 0.0}.get(rule.rule, shares.get(rule.label, math.nan))
            found.setdefault(rule.rule, []).extend((run, share) for run in rule.runs)
    return [_of_images(rule, runs) for rule, runs in sorted(found.items())]


def _of_images(rule: str, runs: list[tuple[RunAudit, float]]) -> dict[str, Any]:
    d1, d2 = ([run.answers[question] for run, _ in runs] for question in ("D1", "D2"))
    shares = [share for _, share in runs if not math.isnan(share)]
    resolution = [answer.value for answer in d2 if not math.isnan(answer.value)]
    return {
        "rule": rule,
        "runs": len(runs),
        "share": [min(shares), max(shares)] if shares else [],
        "D1": sum(answer.fired is True for answer in d1),
        "D2": sum(answer.fired is True for answer in d2),
        "growth": max(answer.value for answer in d1),
        "stream": max(answer.beside for answer in d1),
        "ceiling": min((answer.beside for answer in d2 if not math.isnan(answer.beside)), default=None),
        "resolution": min(resolution, default=None),
    }


def network_of_run(store: Path, run: str) -> tuple[Program, Tensor, Tensor]:
    """A trained network of the store, and the test samples its probes look at."""
    config = next(config for bundle in bundles() for config in bundle if config.id == run)
    data = config.task.load(config.seed, None, torch.device("cpu"), torch.float32)
    program = Program(config, data, torch.device("cpu"))
    program.net.load_state_dict(safetensors.torch.load(read_tensors(store / run, "weights")))
    return program, *data.test(0, config.probes.size)


def unseen(store: Path, run: RunAudit) -> float:
    """By how much the loss changes when h_L is divided by its growth since init: 0 where a LayerNorm hides it."""
    program, x, y = network_of_run(store, run.run.id)
    snapshot = take(program.net, x, y, program.loss)
    shrunk = snapshot.states[-1] / run.answers["D1"].beside
    losses_N = snapshot.loss.per_sample(snapshot.net.tail(shrunk, snapshot.depth).output, snapshot.y)
    return float((losses_N - snapshot.losses_N).mean())


def rounded(store: Path, recipes: Iterable[RecipeAudit]) -> list[dict[str, Any]]:
    """D2 where a constant is added to the stream of a trained network.

    In exact arithmetic it changes nothing.  `fall` measures the loss instead of a cosine: how much it falls along the
    gradient of training, beside how much it falls along the exact one, at the layer where the cosine is least.
    """
    bp = of(next(recipe for recipe in recipes if of(recipe, "bp") and deepest(recipe)), "bp")
    assert bp is not None
    found = []
    for offset in OFFSETS:
        cosines, falls = [], []
        for run in bp.runs:
            program, x, y = network_of_run(store, run.run.id)
            bias = next(p for p in program.net.embed.parameters() if p.ndim == 1)
            with torch.no_grad():
                bias.add_(offset)
            snapshot = take(program.net, x, y, program.loss)
            readings = [r for r in PROBES["grad_norm"](snapshot) if r.metric == "grad_resolution"]
            least = min(readings, key=lambda reading: reading.value)
            assert least.layer is not None
            cosines.append(least.value)
            falls.append(fall(snapshot, least.layer))
        fired = sum(cosine < Thresholds().resolution for cosine in cosines)
        found.append({"offset": offset, "runs": len(cosines), "D2": fired, "cosines": cosines, "falls": falls})
    return found


def fall(snapshot: Snapshot, layer: int) -> float:
    """What a short step along the gradient of training lowers the loss by, relative to one along the exact gradient."""
    h = snapshot.states[layer]
    length = STEP * float(h.std(-1).mean()) * math.sqrt(h.numel())

    def after(g: Tensor) -> float:
        moved = h - length * g / g.norm()
        losses_N = snapshot.loss.per_sample(snapshot.net.tail(moved, layer).output, snapshot.y)
        return float((losses_N - snapshot.losses_N).sum())

    return after(as_trained(snapshot)[layer].double()) / after(snapshot.gradients[layer])


def of(recipe: RecipeAudit, rule: str) -> RuleAudit | None:
    return next((known for known in recipe.rules if known.rule == rule), None)


def healthy(recipe: RecipeAudit, judge: AuditCache) -> dict[str, Any]:
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
        "stream": max(run.answers["D1"].beside for run in bp.runs),
        "resolution": min(run.answers["D2"].value for run in bp.runs),
        "test_acc": bp.scalar("test_acc").mean,
        "train_acc": bp.scalar("train_acc").mean,
        "worse": sum(points < 0 for points in found.by_seed.values()),
        "outcome": found.outcome,
        "points": found.points.mean,
        "interval": [found.interval.low, found.interval.high],
        "errors_removed": found.errors_removed,
        "few": dict(of_few(bp, base)),
    }


def of_few(bp: RuleAudit, base: dict[int, Run]) -> "Counter[str]":
    """D4 of every choice of a few seeds, and what the mean of the other seeds says, which had no part in it."""
    found: Counter[str] = Counter()
    for some in itertools.combinations(bp.runs, FEW):
        verdict = margin_over_frozen("bp", [run.run for run in some], base, "", bp.thresholds.confidence)
        others = [run.run for run in bp.runs if run not in some]
        truth = margin_over_frozen("bp", others, base, "", bp.thresholds.confidence).points.mean
        found[f"{verdict.outcome}, others {'above' if truth > 0 else 'below'}"] += 1
    return found


def planted(store: Path, rule: RuleAudit, lr: float) -> dict[str, Any]:
    """What the questions made for it say of a rule that degenerates or draws its credit."""
    standings = Counter(layer.side or "undefined" for run in rule.runs for layer in run.credits)
    return {
        "rule": rule.label,
        "lr": lr,
        "runs": len(rule.runs),
        **{question: len(rule.tally(question).fired) for question in ("D1", "D2", "D3")},
        "growth": [run.answers["D1"].value for run in rule.runs],
        "stream": [run.answers["D1"].beside for run in rule.runs],
        "unseen": [unseen(store, run) for run in rule.runs if run.answers["D1"].beside > rule.thresholds.stream],
        "resolution": [run.answers["D2"].value for run in rule.runs],
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
    program, x, y = network_of_run(store, run)
    counts: Counter[str] = Counter()
    for k in range(STRANGERS):
        drawn = CreditAssignment(program.net, rule, sample=x, loss=program.loss, seed=k)
        context = Context(credits=drawn.credits, redrawn=drawn.redrawn, seed=k, epoch=1)
        snapshot = take(program.net, x, y, program.loss, context)
        readings = [reading for name in ("credit_cosine", "rho") for reading in PROBES[name](snapshot)]
        vectors = [
            math.sqrt(one / (snapshot.states[0].shape[-1] * len(x)) + other / (context.directions * len(x)))
            for one, other in ((1, 0), (1, 1))
        ]
        for layer in credit_at_layers(as_run(readings, snapshot.depth), 1, Thresholds()):
            if layer.side == "given":
                continue
            counts["layers"] += 1
            counts["cosine above"] += layer.cosine.side == "above"
            counts["rho above"] += layer.rho.side == "above"
            counts["above"] += layer.side == "above"
            counts["below"] += layer.side == "below"
            counts["disagree"] += layer.side == "disagree"
            counts["cosine above vectors"] += layer.cosine.value > 3 * vectors[0]
            counts["rho above vectors"] += layer.rho.value > 3 * vectors[1]
    return counts


def as_run(readings: list[Reading], depth: int) -> Run:
    """One snapshot as the audit sees a run."""
    about = {"depth": depth, "label": "", "rule_label": ""}
    config = {"seed": 0, "rule": {"name": ""}, "epochs": 1}
    run = Run(Path(), {"config": config, "about": about}, Manifest())
    vars(run)["readings"] = ReadingArray(
        layout=ReadingLayout((reading.metric, 1, reading.layer) for reading in readings),
        values=np.array([reading.value for reading in readings]),
        reasons={place: reading.reason for place, reading in enumerate(readings) if reading.reason},
        samples=np.array([reading.samples for reading in readings]),
    )
    return run


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
                f"{number(max(line['growth'] for line in lines))}× over a block, "
                f"‖h_L‖ {number(max(line['stream'] for line in lines))}× init",
                f"above {known['thresholds']['growth']:g}× and {known['thresholds']['stream']:g}×",
            ),
            (
                "`D2`",
                share(sum(line["D2"] for line in lines), runs),
                f"cosine {short_of_one(min(line['resolution'] for line in lines))}",
                f"below {known['thresholds']['resolution']:g}",
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
        ((f"{side} frozen", *(found[f"{word}, others {side}"] for word in words)) for side in ("above", "below")),
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
            "‖h_L‖ ÷ init, most",
            "cos(g, g in float64), least",
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
                f"{number(line['stream'])}×",
                short_of_one(line["resolution"]),
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
            "‖h_L‖ ÷ init",
            "loss without it",
            "D2 fires",
            "cos(g, g in float64), least",
            "D3 fires",
            "layers by result",
        ),
        (
            (
                line["rule"],
                f"{line['lr']:g}",
                line["runs"],
                line["D1"],
                f"{number(min(line['growth']))}–{number(max(line['growth']))}×",
                f"{number(min(line['stream']))}–{number(max(line['stream']))}×",
                number(max(line["unseen"], key=abs), 1) if line["unseen"] else "–",
                line["D2"],
                short_of_one(min(line["resolution"])),
                line["D3"],
                words(line),
            )
            for line in known["planted"]
        ),
    )


def short_of_one(cosine: float) -> str:
    """A cosine near 1 by what it lacks."""
    return number(cosine) if cosine < 0.99 else f"1 − {number(max(0.0, 1 - cosine), 1)}"


def is_healthy(line: dict[str, Any]) -> bool:
    """BP, and rules whose every run recovers at least half of BP's margin."""
    return bool(line["share"]) and line["share"][0] >= LEARNED


def on_images(lines: Iterable[dict[str, Any]]) -> str:
    """Healthy rules first, by share."""

    def span(line: dict[str, Any]) -> str:
        if not line["share"]:
            return "undefined"
        low, high = (said_share(share) for share in line["share"])
        return low if low == high else f"{low} to {high}"

    return table(
        (
            "rule",
            "runs",
            "of BP's margin",
            "D1 fires",
            "growth, most",
            "‖h_L‖ ÷ init, most",
            "D2 fires",
            "ρ of BP, least",
        ),
        (
            (
                f"`{line['rule']}`",
                line["runs"],
                span(line),
                line["D1"],
                f"{number(line['growth'])}×",
                f"{number(line['stream'])}×",
                line["D2"],
                short_of_one(line["ceiling"]) if line["ceiling"] else "–",
            )
            for line in sorted(lines, key=lambda line: -line["share"][0] if line["share"] else math.inf)
        ),
    )


def on_resolution(known: dict[str, Any]) -> str:
    return ", ".join(
        f"`{line['rule']}` {short_of_one(line['resolution'])}"
        for line in sorted(known["resolved"], key=lambda line: -line["resolution"])
    )


def on_rounding(known: dict[str, Any]) -> str:
    def between(values: list[float]) -> str:
        low, high = (f"{value:.3f}".replace("-", "−") for value in (min(values), max(values)))
        return low if low == high else f"{low} to {high}"

    return table(
        (
            "constant",
            "networks",
            "D2 fires",
            "cos(g, g in float64), least",
            "fall of the loss, of the exact one's",
        ),
        (
            (
                number(line["offset"]),
                line["runs"],
                line["D2"],
                between(line["cosines"]),
                between(line["falls"]),
            )
            for line in known["rounded"]
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
    heart = "has memorised its training samples" if train > 0.99 else "learns its training samples"
    return (
        f"They hurt in {len(found)} ({tasks}). That is no false alarm. BP {heart}: {percent(100 * train)} of them are "
        f"right, but only {percent(100 * test)} of the test samples in the worst recipe. Frozen blocks "
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
        critical=f"{critical_t(known['thresholds']['deviations'], DRAWS) * math.sqrt(1 + 1 / DRAWS):.2f}",
        verdicts={word: sum(line["outcome"] == word for line in lines) for word in ("helps", "hurts", "undecided")},
        by_few=by_few(of_recipes(lines)),
        helping=sum(line["runs"] for line in lines if line["outcome"] != "hurts"),
        memorised=memorised(lines),
        fired=fired(known),
        by_recipe=by_recipe(known),
        on_purpose=on_purpose(known),
        on_images=on_images(known["images"]),
        on_resolution=on_resolution(known),
        on_rounding=on_rounding(known),
        healthy_images=[line for line in known["images"] if is_healthy(line)],
        others=[line for line in known["images"] if not is_healthy(line)],
        number=number,
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
