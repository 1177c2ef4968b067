"""Evidence for tests of figures and findings, with the sizes of recorded runs, made without training.

`residual_evidence` is of the residual study, `snapshot_evidence` and `rules_evidence` of the studies of learning rules.
"""

import math
from functools import cache

import numpy as np
import polars as pl

from sonde.analysis.evidence import RUNS_SCHEMA
from sonde.analysis.runs import CLASSES
from sonde.metrics.rows import SCHEMA
from sonde.show.figures import Evidence, figures_of
from stores import LABELS

Row = tuple[object, ...]


def _evidence(rows: list[Row], runs: list[Row]) -> Evidence:
    task = list(RUNS_SCHEMA).index("task")
    complete = [(*run, CLASSES.get(str(run[task]))) for run in runs]
    described = pl.DataFrame(complete, schema=RUNS_SCHEMA, orient="row")
    return Evidence(pl.DataFrame(rows, schema=SCHEMA, orient="row"), described, "the store")


# --- evidence with something changed --------------------------------------------------------------------------------


def with_rows(evidence: Evidence, rows: pl.DataFrame) -> Evidence:
    return Evidence(rows, evidence.runs, evidence.source)


def with_runs(evidence: Evidence, runs: pl.DataFrame) -> Evidence:
    return Evidence(evidence.rows, runs, evidence.source)


def undefined_where(evidence: Evidence, where: pl.Expr) -> Evidence:
    """The same evidence with some values undefined."""
    return with_rows(
        evidence,
        evidence.rows.with_columns(
            value=pl.when(where).then(float("nan")).otherwise("value"),
            defined=pl.when(where).then(False).otherwise("defined"),
            reason=pl.when(where).then(pl.lit("made so")).otherwise("reason"),
        ),
    )


def values(evidence: Evidence, model: str, metric: str) -> list[float]:
    """Values of a metric at the last epoch, in the order of layers or steps."""
    rows = evidence.metric(metric).filter(model=model)
    if metric != "batch_loss":
        rows = rows.filter(pl.col("epoch") == pl.col("epoch").max())
    return rows.sort("layer", "step")["value"].to_list()


def without_runs(evidence: Evidence, *names: str) -> Evidence:
    """The same evidence as if these runs had not been made."""
    kept = ~pl.col("run").is_in(names)
    return Evidence(evidence.rows.filter(kept), evidence.runs.filter(kept), evidence.source)


def cut_short(evidence: Evidence, run: str, last: int) -> Evidence:
    """The same evidence with the rows of one run up to an epoch."""
    kept = (pl.col("run") != run) | (pl.col("epoch") <= last)
    return Evidence(evidence.rows.filter(kept), evidence.runs, evidence.source)


# --- the residual study ---------------------------------------------------------------------------------------------

RESIDUAL = figures_of("residual")
NETWORK_LABELS = {"plain_mlp": "Plain MLP", "res_mlp": "ReLU ResMLP"}


@cache
def residual_evidence(
    *,
    seeds: tuple[int | None, ...] = (42,),
    variants: tuple[str, ...] = ("raw", "scaled"),
    depth: int = 20,
    width: int = 40,
    steps: int = 200,
    healthy: bool = False,
) -> Evidence:
    """Both networks; with `healthy` the plain one behaves as the residual one does.  Beside them, by depth."""
    own = _residual(seeds, variants, depth, width, steps, healthy)
    deeper = [_residual(seeds, variants, one, 2, steps, healthy, "linear") for one in (2, 5)]
    beside = Evidence(pl.concat([one.rows for one in deeper]), pl.concat([one.runs for one in deeper]), "the store")
    return Evidence(own.rows, own.runs, own.source, beside=beside)


def _residual(
    seeds: tuple[int | None, ...],
    variants: tuple[str, ...],
    depth: int,
    width: int,
    steps: int,
    healthy: bool,
    output: str = "relu",
) -> Evidence:
    rows: list[Row] = []
    runs: list[Row] = []
    for variant in variants:
        alpha = 1.0 if variant == "raw" else 1 / math.sqrt(depth)
        for number, seed in enumerate(seeds):
            for model in NETWORK_LABELS:
                run = f"{model}-{variant}-{'file' if seed is None else seed}"
                run += "" if output == "relu" else f"-linear-{depth}"
                label = NETWORK_LABELS[model] if output == "relu" else f"{NETWORK_LABELS[model]}, linear output"
                identity = ("bp", "BP", "identity", "identity", None, variant, seed, "full")
                recipe = (*identity, 10, steps, 64, 1e-3, 1024, depth, width, alpha)
                runs.append((run, label, model, *recipe))
                residual = healthy or model == "res_mlp"
                rows += _run_rows(run, variant, residual, depth, width, steps, rng=np.random.default_rng(number))
    return _evidence(rows, [(*run, 1, None, None, "flat", output) for run in runs])


def _run_rows(
    run: str, variant: str, residual: bool, depth: int, width: int, steps: int, rng: np.random.Generator
) -> list[Row]:
    rows: list[Row] = []
    layers = np.arange(1, depth + 1)
    noise = rng.lognormal(0, 0.1, depth)
    back = depth - layers
    if variant == "raw":
        loss = 5e8 * np.exp(-np.linspace(0, 10, steps)) if residual else np.linspace(0.58, 0.31, steps)
        std = 0.8 * 1.3**layers if residual else 0.8 * 0.96**layers
        gradient = 3 * 1.4**back if residual else 0.01 * 1.01**back
    else:
        loss = 14 * np.exp(-np.linspace(0, 5.4, steps)) if residual else np.full(steps, 0.332)
        std = np.full(depth, 0.18) if residual else np.fmax(0.2 * 0.22**layers, 1e-4 * 1.3**layers * (layers > 5))
        gradient = 0.003 * 1.03**back if residual else 0.007 * 0.19**back
    loss = loss * rng.lognormal(0, 0.02, steps)
    rows += [(run, 1, step, None, "batch_loss", float(y), True, None, 64) for step, y in enumerate(loss, 1)]
    for epoch in (0, 10):
        step = steps * epoch // 10
        for layer in layers:
            at = layer - 1
            for metric, value in (
                ("activation_mean", -0.3 * std[at] * noise[at]),
                ("activation_std", std[at] * noise[at]),
                ("preact_grad_norm", gradient[at] * noise[at]),
            ):
                rows.append((run, epoch, step, int(layer), metric, float(value), True, None, 64))
        state = np.random.default_rng(7).uniform(-1, 1, width)
        for layer in range(depth + 1):
            for unit in range(width):
                rows.append((run, epoch, step, layer, f"state[{unit}]", float(state[unit]), True, None, 1))
            state = state * 1.01 if residual else np.fmax(0.3 * state[rng.permutation(width)], 0)
    return rows


# --- the studies of learning rules ----------------------------------------------------------------------------------

SEEDS = (42, 123, 456)
RULES = LABELS
NETWORKS: dict[str, tuple[str, str, bool | None]] = {  # label, model, out_ln
    "ln": ("Pre-LN ResMLP", "residual_mlp", True),
    "no_ln": ("Pre-LN ResMLP, no terminal LN", "residual_mlp", False),
    "vit": ("ViT-Mini", "vit_mini", True),
    "student": ("StudentNet", "student_net", None),
}
ACCURACY = {"bp": 0.6, "fa": 0.4, "dfa": 0.3, "state_bridge": 0.19, "credit_bridge": 0.29, "frozen": 0.35}
GROWTH = {"bp": 1.0, "fa": 4.0, "dfa": 7.2, "state_bridge": 2.0, "credit_bridge": 5.0, "frozen": 0.1}
"""Decades by which ‖h_L‖ grows over training."""


class _RunRows:
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
                run = _RunRows(name, length)
                as_rule = "bp" if healthy else rule
                _norms(run, as_rule, network, depth, np.random.default_rng([seed, len(rule)]))
                _accuracy(run, as_rule, 0.9 if student else ACCURACY[as_rule], seed)
                rows += run.rows
    return _evidence(rows, [(*run, 1, None, None, "cls" if run[2] == "vit_mini" else "flat", None) for run in runs])


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
            run = _RunRows(name, epochs, samples=1024)
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
    return _evidence(rows, [(*run, 1, None, None, "cls" if run[2] == "vit_mini" else "flat", None) for run in runs])


def _described(name: str, network: str, rule: str, seed: int, epochs: int, depth: int, width: int) -> Row:
    label, model, out_ln = NETWORKS[network]
    student = network == "student"
    task = ("teacher", "teacher", 10_000) if student else ("cifar10", "CIFAR-10", 50_000)
    steps = epochs * -(-task[2] // 128)
    about = (rule, RULES[rule], task[0], task[1], out_ln, None, seed, "full", epochs, steps, 128, 1e-3)
    return (name, label, model, *about, task[2], depth, width, None)


def _norms(run: _RunRows, rule: str, network: str, depth: int, rng: np.random.Generator) -> None:
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


def _accuracy(run: _RunRows, rule: str, final: float, seed: int) -> None:
    rng = np.random.default_rng([seed, len(rule), 1])
    reached = final + rng.normal(0, 0.008)
    for epoch in range(run.epochs + 1):
        at = 0.1 + (reached - 0.1) * (1 - np.exp(-6 * epoch / run.epochs))
        run.add(epoch, "test_acc", at + rng.normal(0, 0.003))
        if epoch:
            run.add(epoch, "train_acc", at * (1.15 if rule == "bp" else 1.02) + rng.normal(0, 0.002))


def _credit(run: _RunRows, rule: str, epoch: int, depth: int, controls: bool, rng: np.random.Generator) -> None:
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


def on_parity(evidence: Evidence) -> Evidence:
    """The same runs as if they had been trained on parity."""
    parity = {"task": pl.lit("parity"), "task_label": pl.lit("parity"), "classes": pl.lit(2, pl.Int64)}
    return Evidence(evidence.rows, evidence.runs.with_columns(**parity), evidence.source)


def with_parity(evidence: Evidence) -> Evidence:
    """The evidence with runs on parity beside its own."""
    beside = on_parity(rules_evidence(seeds=(42, 123), epochs=4, rules=tuple(RULES), depth=4))
    return Evidence(evidence.rows, evidence.runs, evidence.source, beside=beside)


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
