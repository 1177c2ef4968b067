"""`results.json` and `results_fair.json`."""

from typing import Any

from sonde.errors import SondeError
from sonde.figures.evidence import Evidence
from sonde.paper.layout import LAYERED, MODELS, RESULTS, STATES
from sonde.paper.sheet import Sheet, Sheets
from sonde.paper.writing.values import RunValues

FIRST_SEED = 42


def residual_sheets(evidence: Evidence) -> Sheets:
    """Two files for every variant and seed; a missing network or an undefined value is an error."""
    sheets: Sheets = {}
    for variant, stem in RESULTS.items():
        runs = evidence.of(variant=variant).runs
        seeds = sorted(runs["seed"].unique(), key=lambda seed: (seed != FIRST_SEED, seed))
        for place, seed in enumerate(seeds):
            mark = "" if place == 0 else f"_seed{seed}"
            pair = {
                run["model"]: RunValues(evidence, run) for run in runs.filter(seed=seed).iter_rows(named=True)
            }
            missing = sorted(MODELS.keys() - pair.keys())
            if missing:
                raise SondeError(
                    f"the {variant} variant of seed {seed} lacks a complete run of {' and '.join(missing)}: "
                    f"`sonde run residual --seeds {seed}` trains it; nothing was exported"
                )
            ids = {model: values.run["run"] for model, values in pair.items()}
            sheets[f"{stem}{mark}.json"] = Sheet(content=_results(pair), runs=ids)
            states = {model: _states(pair[model]) for model in MODELS}
            sheets[f"{STATES[variant]}{mark}.json"] = Sheet(content=states)  # of the same runs
    if not sheets:
        raise SondeError("no raw or scaled run of the residual study: nothing was exported")
    return sheets


def _results(pair: dict[str, RunValues]) -> dict[str, Any]:
    run = pair["plain_mlp"].run
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
        values = pair[model]
        losses = values.by("step", "batch_loss")
        document[model] = {
            "final_loss": losses[-1],
            "initial_loss": losses[0],
            "loss_history": losses,
            **{key: values.by("layer", metric, epoch=run["epochs"]) for key, metric in LAYERED.items()},
        }
    return document


def _states(values: RunValues) -> list[list[float]]:
    """One input vector's state: layer 0 … L, each a list over units."""
    last = values.run["epochs"]
    units = [values.by("layer", f"state[{unit}]", epoch=last) for unit in range(values.run["width"])]
    return [list(layer) for layer in zip(*units, strict=True)]
