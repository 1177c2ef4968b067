"""Why do deep plain networks fail to learn the identity, and what does "+x" change?"""

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from sonde import theory, verdicts
from sonde.config import Optimiser, Probing, RunConfig
from sonde.figures.evidence import Evidence
from sonde.models import PlainMLP, ResMLP
from sonde.rules import Backprop
from sonde.statistics import over_seeds
from sonde.studies.study import Finding, Study
from sonde.tasks import Identity
from sonde.verdicts import number, percent

PROBES = (
    "loss",
    "hidden_norm",
    "growth",
    "grad_norm",
    "activation_mean",
    "activation_std",
    "preact_grad_norm",
    "trace",
)


def configs(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """{plain, residual} × {raw, scaled} × seeds; quick and full are the same recipe."""
    return [
        RunConfig(
            model=model(weight_scale=weight_scale),
            rule=Backprop(),
            task=Identity(),
            optimiser=Optimiser(name="adam", lr=1e-3),
            probes=Probing(names=PROBES, size=64),
            batch_size=64,
            epochs=10,
            seed=seed,
        )
        for seed in seeds
        for weight_scale in (1.0, "1/sqrt(L)")
        for model in (PlainMLP, ResMLP)
    ]


def findings(evidence: Evidence) -> list[Finding]:
    """One finding for each network and variant, over the seeds present."""
    kinds = evidence.runs.select("variant", "model").unique().sort("variant", "model")
    return [_finding(evidence.of(variant=variant, model=model)) for variant, model in kinds.iter_rows()]


def _finding(evidence: Evidence) -> Finding:
    runs = evidence.runs
    what = runs.row(0, named=True)
    residual = what["model"] == "res_mlp"
    depth, alpha = what["depth"], what["alpha"]
    losses = evidence.metric("batch_loss")
    first, last = losses["step"].min(), losses["step"].max()
    initial, final = (_mean(losses.filter(step=step)) for step in (first, last))
    gradients = over_seeds(_at_end(evidence, "preact_grad_norm"), "layer").sort("layer")["mean"]
    norms = evidence.metric("hidden_norm")
    moments = theory.second_moments(residual, alpha, depth)
    fell = verdicts.reduction(initial["mean"], final["mean"])
    numbers: dict[str, Any] = {
        "network": what["label"],
        "variant": what["variant"],
        "n": final["n"],
        "initial_loss": initial["mean"],
        "final_loss": final["mean"],
        "final_loss_std": final["std"],
        "loss_reduction_percent": fell,
        "gradient_min": gradients.min(),
        "gradient_max": gradients.max(),
        "gradient_layer_1": gradients[0],
        "gradient_first_over_last": gradients[0] / gradients[-1] if gradients[-1] else math.nan,
        "growth_per_layer_predicted": (moments[-1] / moments[0]) ** (1 / (2 * depth)),
        "growth_per_layer_at_init": _growth(norms.filter(epoch=0), depth),
        "growth_per_layer_trained": _growth(_at_end(evidence, "hidden_norm"), depth),
        "verdict": verdicts.loss_status(fell, final["mean"], theory.INPUT_SECOND_MOMENT),
    }
    return Finding(
        sentence=(
            f"{what['label']}, {what['variant']}: "
            f"{verdicts.loss_verdict(fell, final['mean'], theory.INPUT_SECOND_MOMENT)}; "
            f"{verdicts.gradient_verdict(numbers['gradient_first_over_last'])}."
        ),
        shown=_cells(numbers),
        numbers=numbers,
        runs=tuple(runs["run"]),
        seeds=tuple(runs["seed"]),
    )


def _cells(numbers: dict[str, Any]) -> dict[str, str]:
    spread = "" if numbers["final_loss_std"] is None else f" ± {number(numbers['final_loss_std'])}"
    return {
        "network": numbers["network"],
        "variant": numbers["variant"],
        "n": str(numbers["n"]),
        "first loss": number(numbers["initial_loss"]),
        "final loss": number(numbers["final_loss"]) + spread,
        "fell": percent(numbers["loss_reduction_percent"]),
        "gradient, least … most": f"{number(numbers['gradient_min'])} … {number(numbers['gradient_max'])}",
        "growth per layer: init": number(numbers["growth_per_layer_at_init"], 3),
        "predicted": number(numbers["growth_per_layer_predicted"], 3),
        "trained": number(numbers["growth_per_layer_trained"], 3),
    }


def _at_end(evidence: Evidence, metric: str) -> pl.DataFrame:
    rows = evidence.metric(metric)
    return rows.filter(epoch=pl.col("epochs"))


def _mean(rows: pl.DataFrame) -> dict[str, Any]:
    """Mean over seeds of a scalar metric; NaN where no seed defines it."""
    summary = over_seeds(rows, "metric")
    if summary.is_empty() or summary["n"][0] == 0:
        return {"mean": math.nan, "std": None, "n": 0}
    return summary.row(0, named=True)


def _growth(norms: pl.DataFrame, depth: int) -> float:
    """Geometric mean over the layers of ‖h_{l+1}‖/‖h_l‖; NaN where the norms are not there or zero."""
    bottom, top = (_mean(norms.filter(layer=layer))["mean"] for layer in (0, depth))
    return (top / bottom) ** (1 / depth) if bottom > 0 else math.nan


STUDY = Study(
    question='why do deep plain networks fail to learn the identity, and what does "+x" change?',
    seeds=(42,),
    configs=configs,
    findings=findings,
)
