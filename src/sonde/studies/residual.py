"""Why do deep plain networks fail to learn the identity, and what does "+x" change?"""

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from sonde import theory, verdicts
from sonde.config import Optimiser, Probing, RunConfig
from sonde.models import PlainMLP, ResMLP
from sonde.rules import Backprop
from sonde.runs.readings import Readings, RunReadings
from sonde.studies.study import Gathered, Study, StudyFinding, means, over_runs, own_n
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
            optimiser=Optimiser(name="adam", lr=1e-3, weight_decay=0.0, schedule="constant"),
            probes=Probing(names=PROBES, costly=(), size=64),
            batch_size=64,
            epochs=10,
            seed=seed,
            log="step",
        )
        for seed in seeds
        for weight_scale in (1.0, "1/sqrt(L)")
        for model in (PlainMLP, ResMLP)
    ]


def findings(gathered: Gathered) -> list[StudyFinding]:
    """One finding for each network and variant, over the seeds present; first the variant in which "+x" is enough."""
    evidence = gathered.evidence
    kinds = (
        evidence.runs.group_by("variant", "model", "rule")
        .agg()
        .sort(pl.col("variant") != "scaled", "variant", "model", pl.col("rule") != "bp", "rule")
    )
    several, readings = evidence.runs["rule"].n_unique() > 1, Readings(evidence.rows)
    return [
        _finding(
            evidence.runs.filter(*(pl.col(key).eq_missing(value) for key, value in kind.items())),
            readings,
            several,
        )
        for kind in kinds.iter_rows(named=True)
    ]


def _finding(runs: pl.DataFrame, readings: Readings, several_rules: bool) -> StudyFinding:
    what = runs.row(0, named=True)
    over = over_runs(runs, readings, _measure)
    numbers: dict[str, Any] = {
        "network": what["label"],
        "variant": what["variant"],
        "n": runs.height,
        **means(over, runs.height),
        "final_loss_std": over["final_loss"]["std"],
        "growth_per_layer_predicted": _predicted(what),
    }
    if several_rules:
        numbers["rule"] = what["rule_label"]
    trivial = theory.INPUT_SECOND_MOMENT if what["task"] == "identity" else None
    loss = (numbers["loss_reduction_percent"], numbers["final_loss"], trivial)
    numbers["verdict"] = verdicts.loss_status(*loss)
    n = {name: own_n(summary, runs.height) for name, summary in over.items()}
    learned = verdicts.loss_verdict(*loss) + n["loss_reduction_percent"]
    gradient = verdicts.gradient_verdict(numbers["gradient_first_over_last"]) + n["gradient_first_over_last"]
    name = ", ".join(part for part in (verdicts.network(what), numbers.get("rule")) if part)
    return StudyFinding(
        sentence=f"{name}: {learned}; {gradient}.",
        shown=_cells(numbers, n),
        numbers=numbers,
        runs=tuple(runs["run"]),
        seeds=tuple(runs["seed"]),
    )


def _predicted(what: dict[str, Any]) -> float:
    """Growth per layer under random weights, of the two networks and the input for which it is known."""
    if what["model"] not in ("plain_mlp", "res_mlp") or what["task"] != "identity":
        return math.nan
    moments = theory.second_moments(what["model"] == "res_mlp", what["alpha"], what["depth"])
    return float((moments[-1] / moments[0]) ** (1 / (2 * what["depth"])))


def _measure(rows: RunReadings) -> dict[str, float]:
    """The numbers of one run; NaN where they are undefined."""
    run, value = rows.run, rows.value
    depth, last = run["depth"], run["epochs"]
    initial, final = value("batch_loss", step=1), value("batch_loss", step=run["steps"])
    gradients = [value("preact_grad_norm", epoch=last, layer=layer) for layer in range(1, depth + 1)]
    known = not any(map(math.isnan, gradients))  # least and most are of every layer, or undefined

    def growth(epoch: int) -> float:
        """Geometric mean over the layers of ‖h_{l+1}‖/‖h_l‖."""
        bottom, top = (value("hidden_norm", epoch=epoch, layer=layer) for layer in (0, depth))
        return (top / bottom) ** (1 / depth) if bottom > 0 else math.nan

    return {
        "initial_loss": initial,
        "final_loss": final,
        "loss_reduction_percent": verdicts.reduction(initial, final),
        "gradient_min": min(gradients) if known else math.nan,
        "gradient_max": max(gradients) if known else math.nan,
        "gradient_layer_1": gradients[0],
        "gradient_first_over_last": gradients[0] / gradients[-1] if gradients[-1] else math.nan,
        "growth_per_layer_at_init": growth(0),
        "growth_per_layer_trained": growth(last),
    }


def _cells(numbers: dict[str, Any], n: dict[str, str]) -> dict[str, str]:
    """`n` is what a cell says of its own n, where that is not the line's."""
    gradients = f"{number(numbers['gradient_min'])} … {number(numbers['gradient_max'])}"
    spread = "" if numbers["final_loss_std"] is None else f" ± {number(numbers['final_loss_std'])}"
    return {
        "network": numbers["network"],
        "weights": verdicts.weights(numbers["variant"]).removeprefix("weights ")
        if numbers["variant"]
        else "–",
        **({"rule": numbers["rule"]} if "rule" in numbers else {}),
        "n": str(numbers["n"]),
        "first loss": number(numbers["initial_loss"]) + n["initial_loss"],
        "final loss": number(numbers["final_loss"]) + spread + n["final_loss"],
        "loss fell by": percent(numbers["loss_reduction_percent"]) + n["loss_reduction_percent"],
        "gradient, least … most": gradients + n["gradient_min"],
        "growth per layer: init": number(numbers["growth_per_layer_at_init"], 3)
        + n["growth_per_layer_at_init"],
        "predicted": number(numbers["growth_per_layer_predicted"], 3),
        "trained": number(numbers["growth_per_layer_trained"], 3) + n["growth_per_layer_trained"],
    }


STUDY = Study(
    question='why do deep plain networks fail to learn the identity, and what does "+x" change?',
    seeds={"quick": (42,), "full": (42,)},
    configs=configs,
    findings=findings,
)
