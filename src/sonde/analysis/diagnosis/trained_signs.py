"""Rows of a run that Sonde trained, as diagnoses read them: its states stand for modules, its epochs for steps."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from sonde.analysis.diagnosis.signs import ENDS, Audited, Signs
from sonde.store.run import Run

LAYERS = {"hidden_norm": "out_rms", "grad_norm": "grad_rms"}
"""Norms of a sample at a state, and what they are per number of it."""

WHOLE = ("train_loss", *ENDS)


def _log(classes: Any) -> float | None:
    """Of a number of classes, as a configuration has it."""
    return math.log(classes) if isinstance(classes, int) and classes > 0 else None


CONSTANT_LOSS: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "identity": lambda task: 1 / 3,  # the variance of U(−1, 1)
    "teacher": lambda task: _log(task.get("classes")),
    "digits": lambda task: math.log(10),
    "parity": lambda task: math.log(2),
    "rhm": lambda task: _log(task.get("classes")),
    "cifar10": lambda task: math.log(10),
}
"""The loss of an answer that does not depend on the input, by task: the mean, or equal shares for all classes."""


def trained_signs(run: Run, rows: pl.DataFrame, audited: Audited) -> Signs:
    """What a store holds of a run.  The gradient that is stored is BP's: of another rule it says nothing here."""
    width, layers, task = run.about["width"], dict(LAYERS), run.complete_config["task"]
    if not width:  # a network of many widths, or of none that is known: nothing per number of a state
        layers.clear()
    if run.config["rule"]["name"] != "bp":
        layers.pop("grad_norm", None)
    of_layers = rows.filter(pl.col("metric").is_in(layers)).with_columns(
        pl.col("metric").replace(layers),
        value=pl.col("value") / math.sqrt(width or 1),
        module=pl.format("layer {}", "layer"),
    )
    of_run = rows.filter(pl.col("metric").is_in(WHOLE))
    is_loss = (pl.col("metric") == "train_loss") | ((pl.col("metric") == "test_loss") & (pl.col("epoch") == 0))
    losses = of_run.filter(is_loss).with_columns(metric=pl.lit("loss"))
    constant = CONSTANT_LOSS.get(task["name"])
    return Signs(
        rows=pl.concat([of_layers, of_run, losses], how="diagonal"),
        facts={
            "width": width,
            "states": of_layers.sort("layer")["module"].unique(maintain_order=True).to_list(),
            "constant_loss": None if constant is None else constant(task),
        },
        steps=run.about["steps"] if audited.diverged is None else int(str(rows["step"].max() or 0)),
        audited=audited,
        epochs=dict(rows.select("step", "epoch").unique().iter_rows()),
    )
