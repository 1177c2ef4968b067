"""Evidence of the studies of learning rules with the sizes of recorded runs, made without training."""

from functools import cache

import numpy as np
import polars as pl

from residual_evidence import undefined_where
from sonde.analysis.evidence import RUNS_SCHEMA
from sonde.metrics.rows import SCHEMA
from sonde.show.figures import Evidence

SEEDS = (42, 123, 456)
RULES = {
    "bp": "BP",
    "fa": "FA",
    "dfa": "DFA",
    "state_bridge": "State Bridge",
    "credit_bridge": "Credit Bridge",
    "frozen": "frozen",
}
NETWORKS: dict[str, tuple[str, str, bool | None]] = {  # label, model, out_ln
    "ln": ("ResMLP", "residual_mlp", True),
    "no_ln": ("ResMLP, no terminal LN", "residual_mlp", False),
    "vit": ("ViT-Mini", "vit_mini", True),
    "student": ("StudentNet", "student_net", None),
}
ACCURACY = {"bp": 0.6, "fa": 0.4, "dfa": 0.3, "state_bridge": 0.19, "credit_bridge": 0.29, "frozen": 0.35}
GROWTH = {"bp": 1.0, "fa": 4.0, "dfa": 7.2, "state_bridge": 2.0, "credit_bridge": 5.0, "frozen": 0.1}
"""Decades by which ‖h_L‖ grows over training."""

Row = tuple[object, ...]


class Run:
    """Collects the rows of one run."""

    def __init__(self, name: str, epochs: int, samples: int = 128) -> None:
        self.name, self.epochs, self.samples, self.rows = name, epochs, samples, list[Row]()

    def add(self, epoch: int, metric: str, value: float, layer: int | None = None) -> None:
        defined = bool(np.isfinite(value))
        reason = None if defined else "made so"
        step = epoch * 391
        self.rows.append((self.name, epoch, step, layer, metric, float(value), defined, reason, self.samples))


@cache
def snapshot_evidence(
    *,
    seeds: tuple[int, ...] = SEEDS,
    epochs: int = 100,
    networks: tuple[str, ...] = tuple(NETWORKS),
    rules: tuple[str, ...] = ("bp", "fa", "dfa"),
    depth: int = 4,
    healthy: bool = False,
) -> Evidence:
    """Norms, gradients and accuracy of every epoch; with `healthy` every rule behaves as BP does."""
    runs, rows = [], list[Row]()
    for network in networks:
        student = network == "student"
        length = max(epochs * 4 // 5, 1) if student else epochs
        for rule in rules:
            for seed in seeds:
                name = f"{network}-{rule}-{seed}"
                runs.append(_described(name, network, rule, seed, length, depth, 128 if student else 256))
                run = Run(name, length)
                as_rule = "bp" if healthy else rule
                _norms(run, as_rule, network, depth, np.random.default_rng([seed, len(rule)]))
                _accuracy(run, as_rule, 0.9 if student else ACCURACY[as_rule], seed)
                rows += run.rows
    return _evidence(rows, runs)


@cache
def rules_evidence(
    *,
    seeds: tuple[int, ...] = SEEDS,
    epochs: int = 100,
    rules: tuple[str, ...] = ("bp", "dfa", "state_bridge", "credit_bridge"),
    depth: int = 12,
    width: int = 512,
    controls: bool = True,
    accuracy: tuple[tuple[str, float], ...] = tuple(ACCURACY.items()),
) -> Evidence:
    """Accuracy, credit diagnostics and drift of one network under several rules."""
    runs, rows = [], list[Row]()
    for rule in rules:
        for seed in seeds:
            name = f"{rule}-{seed}"
            runs.append(_described(name, "ln", rule, seed, epochs, depth, width))
            run = Run(name, epochs, samples=1024)
            rng = np.random.default_rng([seed, len(rule)])
            _accuracy(run, rule, dict(accuracy)[rule], seed)
            if rule != "frozen":
                for epoch in sorted({0, epochs // 2, epochs}):
                    _credit(run, rule, epoch, depth, controls, rng)
            for block in range(depth):
                drift = {"bp": 0.8, "dfa": 30.0, "fa": 5.0, "frozen": 0.0}.get(rule, 8.0) * 1.05**block
                run.add(epochs, f"drift[blocks.{block}.w1.weight]", drift * rng.lognormal(0, 0.05))
            if rule == "state_bridge":
                for epoch in range(1, epochs + 1):
                    error = 0.02 + 0.9 * np.exp(-epoch / 8) * rng.lognormal(0, 0.1)
                    run.add(epoch, "state_pred_error", error)
            rows += run.rows
    return _evidence(rows, runs)


def _described(name: str, network: str, rule: str, seed: int, epochs: int, depth: int, width: int) -> Row:
    label, model, out_ln = NETWORKS[network]
    student = network == "student"
    task = ("teacher", "teacher", 10_000) if student else ("cifar10", "CIFAR-10", 50_000)
    steps = epochs * -(-task[2] // 128)
    about = (rule, RULES[rule], task[0], task[1], out_ln, None, seed, "full", epochs, steps, 128, 1e-3)
    return (name, label, model, *about, task[2], depth, width, None)


def _norms(run: Run, rule: str, network: str, depth: int, rng: np.random.Generator) -> None:
    grow = GROWTH[rule] * {"ln": 1.0, "no_ln": 0.8, "vit": 0.6, "student": 0.3}[network]
    fall = -5.0 * (rule == "dfa") if network in ("ln", "vit") else 0.4 * (rule != "bp") - 0.3
    wobble = rng.normal(0, 0.05, (2, depth + 1))
    for epoch in range(run.epochs + 1):
        done = 1 - np.exp(-4 * epoch / run.epochs)
        for layer in range(depth + 1):
            share = (layer + 1) / (depth + 1)
            noise = rng.normal(0, 0.02, 2) + wobble[:, layer] * done
            run.add(epoch, "hidden_norm", 10 ** (1.2 + grow * done * share + noise[0]), layer)
            run.add(epoch, "grad_norm", 10 ** (-1 + 0.1 * share + fall * done + noise[1]), layer)


def _accuracy(run: Run, rule: str, final: float, seed: int) -> None:
    rng = np.random.default_rng([seed, len(rule), 1])
    reached = final + rng.normal(0, 0.008)
    for epoch in range(run.epochs + 1):
        at = 0.1 + (reached - 0.1) * (1 - np.exp(-6 * epoch / run.epochs))
        run.add(epoch, "test_acc", at + rng.normal(0, 0.003))
        if epoch:
            run.add(epoch, "train_acc", at * (1.15 if rule == "bp" else 1.02) + rng.normal(0, 0.002))


def _credit(run: Run, rule: str, epoch: int, depth: int, controls: bool, rng: np.random.Generator) -> None:
    scale = {"bp": 1.0, "dfa": 1e-5, "credit_bridge": 1e-3}.get(rule, 0.1)
    for layer in range(depth + 1):
        if rule == "dfa":
            cosine = 0.42 if layer == 0 else rng.normal(0.0, 0.01)
        elif rule == "bp" or layer == depth:
            cosine = 1.0
        else:
            cosine = 0.7 * layer / depth + rng.normal(0, 0.03)
        values = {"credit_cosine": cosine, "rho": 0.97 * cosine, "nudge[0.01]": -0.05 * scale * cosine}
        ceiling = {"credit_cosine": 1.0, "rho": 0.97, "nudge[0.01]": -0.05 * scale}
        null = {
            "credit_cosine": rng.normal(0, 0.001),
            "rho": rng.normal(0, 0.006),
            "nudge[0.01]": rng.normal(0, 2e-4) * scale,
        }
        for metric, value in values.items():
            run.add(epoch, metric, value, layer)
            if controls:
                run.add(epoch, f"{metric}/bp", ceiling[metric], layer)
                run.add(epoch, f"{metric}/null", null[metric], layer)


def _evidence(rows: list[Row], runs: list[Row]) -> Evidence:
    return Evidence(
        pl.DataFrame(rows, schema=SCHEMA, orient="row"),
        pl.DataFrame(
            [(*run, 1, None, None, "cls" if run[2] == "vit_mini" else "flat", None) for run in runs],
            schema=RUNS_SCHEMA,
            orient="row",
        ),
        "the store",
    )


def without_runs(evidence: Evidence, *names: str) -> Evidence:
    """The same evidence as if these runs had not been made."""
    kept = ~pl.col("run").is_in(names)
    return Evidence(evidence.rows.filter(kept), evidence.runs.filter(kept), evidence.source)


def cut_short(evidence: Evidence, run: str, last: int) -> Evidence:
    """The same evidence with the rows of one run up to an epoch."""
    kept = (pl.col("run") != run) | (pl.col("epoch") <= last)
    return Evidence(evidence.rows.filter(kept), evidence.runs, evidence.source)


@cache
def crowded_snapshots() -> Evidence:
    """Missing seeds, early ends and gaps: as many notes as there may be."""
    evidence = without_runs(snapshot_evidence(), "vit-fa-456", "no_ln-fa-123", "ln-dfa-456")
    for run, last in (("vit-dfa-42", 60), ("no_ln-dfa-42", 30), ("no_ln-dfa-123", 70)):
        evidence = cut_short(evidence, run, last)
    gap = pl.col("epoch").is_between(20, 30) & pl.col("run").str.starts_with("no_ln-dfa")
    return undefined_where(evidence, gap)


@cache
def crowded_rules() -> Evidence:
    """The same for six rules."""
    evidence = rules_evidence(rules=tuple(RULES), depth=4, width=256)
    evidence = without_runs(evidence, "fa-456", "credit_bridge-123", "credit_bridge-456")
    gap = (pl.col("metric") == "credit_cosine") & (pl.col("layer") == 2)
    return undefined_where(cut_short(evidence, "dfa-42", 60), gap & pl.col("run").str.starts_with("dfa"))
