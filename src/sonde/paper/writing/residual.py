"""The residual study's rows as the files of the paper layout."""

from typing import Any

import polars as pl

from sonde.errors import SondeError
from sonde.figures.evidence import Evidence
from sonde.paper.layout import LAYERED, MODELS, RESULTS, STATES

FIRST_SEED = 42


def residual_documents(evidence: Evidence) -> dict[str, Any]:
    """File name → content, for every variant and seed; a missing network or an undefined value is an error."""
    documents: dict[str, Any] = {}
    for variant, stem in RESULTS.items():
        runs = evidence.of(variant=variant).runs
        seeds = sorted(runs["seed"].unique(), key=lambda seed: (seed != FIRST_SEED, seed))
        for place, seed in enumerate(seeds):
            mark = "" if place == 0 else f"_seed{seed}"
            pair = {run["model"]: run for run in runs.filter(seed=seed).iter_rows(named=True)}
            missing = sorted(MODELS.keys() - pair.keys())
            if missing:
                raise SondeError(
                    f"the {variant} variant of seed {seed} lacks a complete run of {' and '.join(missing)}: "
                    f"`sonde run residual --seeds {seed}` trains it; nothing was exported"
                )
            documents[f"{stem}{mark}.json"] = _results(evidence, pair)
            documents[f"{STATES[variant]}{mark}.json"] = {m: _states(evidence, pair[m]) for m in MODELS}
    if not documents:
        raise SondeError("no raw or scaled run of the residual study: nothing was exported")
    return documents


def _results(evidence: Evidence, pair: dict[str, dict[str, Any]]) -> dict[str, Any]:
    run = pair["plain_mlp"]
    document: dict[str, Any] = {
        "config": {
            "num_layers": run["depth"],
            "hidden_dim": run["width"],
            "num_samples": run["samples"],
            "training_steps": run["steps"],
            "learning_rate": run["lr"],
            "batch_size": run["batch"],
        }
    }
    for model in MODELS:
        losses = _values(evidence, pair[model], "batch_loss", "step")
        document[model] = {
            "final_loss": losses[-1],
            "initial_loss": losses[0],
            "loss_history": losses,
            **{key: _values(evidence, pair[model], metric, "layer") for key, metric in LAYERED.items()},
        }
    return document


def _states(evidence: Evidence, run: dict[str, Any]) -> list[list[float]]:
    """One input vector's state: layer 0 … L, each a list over units."""
    units = [_values(evidence, run, f"state[{unit}]", "layer") for unit in range(run["width"])]
    return [list(layer) for layer in zip(*units, strict=True)]


def _values(evidence: Evidence, run: dict[str, Any], metric: str, order: str) -> list[float]:
    """A metric's values in order of step, or of layer after the last epoch."""
    rows = evidence.rows.filter(run=run["run"], metric=metric).sort(order)
    if order == "layer":
        rows = rows.filter(epoch=run["epochs"])
    if rows.is_empty():
        raise SondeError(f"run {run['run']} has no {metric} at epoch {run['epochs']}: nothing was exported")
    undefined = rows.filter(~pl.col("defined"))
    if not undefined.is_empty():
        first = undefined.row(0, named=True)
        raise SondeError(
            f"run {run['run']}, epoch {first['epoch']}, metric {metric}: undefined ({first['reason']}), which the "
            f"paper layout cannot hold; nothing was exported"
        )
    return rows["value"].to_list()
