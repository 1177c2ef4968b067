"""Evidence of the residual study with the sizes of a measured run, made without training."""

import math
from functools import cache

import numpy as np
import polars as pl

from sonde.analysis.evidence import RUNS_SCHEMA
from sonde.metrics.rows import SCHEMA
from sonde.show.figures import Evidence, figures_of

RESIDUAL = figures_of("residual")
LABELS = {"plain_mlp": "Plain MLP", "res_mlp": "Residual MLP"}


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
    own = _evidence(seeds, variants, depth, width, steps, healthy)
    deeper = [_evidence(seeds, variants, one, 2, steps, healthy, "linear") for one in (2, 5)]
    beside = Evidence(pl.concat([one.rows for one in deeper]), pl.concat([one.runs for one in deeper]), "the store")
    return Evidence(own.rows, own.runs, own.source, beside=beside)


def _evidence(
    seeds: tuple[int | None, ...],
    variants: tuple[str, ...],
    depth: int,
    width: int,
    steps: int,
    healthy: bool,
    output: str = "relu",
) -> Evidence:
    rows: list[tuple[object, ...]] = []
    runs: list[tuple[object, ...]] = []
    for variant in variants:
        alpha = 1.0 if variant == "raw" else 1 / math.sqrt(depth)
        for number, seed in enumerate(seeds):
            for model in LABELS:
                run = f"{model}-{variant}-{'file' if seed is None else seed}"
                run += "" if output == "relu" else f"-linear-{depth}"
                label = LABELS[model] if output == "relu" else f"{LABELS[model]}, linear output"
                recipe = (
                    "bp",
                    "BP",
                    "identity",
                    "identity",
                    None,
                    variant,
                    seed,
                    "full",
                    10,
                    steps,
                    64,
                    1e-3,
                    1024,
                    depth,
                    width,
                    alpha,
                )
                runs.append((run, label, model, *recipe))
                residual = healthy or model == "res_mlp"
                rows += _run_rows(run, variant, residual, depth, width, steps, rng=np.random.default_rng(number))
    return Evidence(
        pl.DataFrame(rows, schema=SCHEMA, orient="row"),
        pl.DataFrame(
            [(*run, 1, None, None, "flat", output) for run in runs],
            schema=RUNS_SCHEMA,
            orient="row",
        ),
        "the store",
    )


def _run_rows(
    run: str, variant: str, residual: bool, depth: int, width: int, steps: int, rng: np.random.Generator
) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
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
