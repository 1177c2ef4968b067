"""How the gradient changes from layer to layer on its way back."""

import math
from dataclasses import dataclass

import polars as pl

from sonde.figures.marks import Series, gap_notes, series
from sonde.figures.residual import MODELS, Pair, last_rows, moment, over_depth, relative_to_last
from sonde.figures.words import missing_seeds
from sonde.theory import backward_factor
from sonde.verdicts import number


@dataclass(frozen=True)
class Backward:
    """Gradient norms relative to the last layer (per run, then over seeds) of both networks."""

    summary: pl.DataFrame
    lines: dict[str, Series]
    theory: dict[str, float]  # factor per layer at initialisation; empty without a recorded weight scale
    when: str
    missing: list[str]  # seeds without values

    def notes(self, *, log: bool) -> list[str]:
        """What is not drawn, and why."""
        return [note for line in self.lines.values() for note in gap_notes(line, log=log)] + self.missing

    def ratio(self, model: str) -> float:
        """Gradient norm at layer 1 relative to the last layer."""
        return float(self.lines[model].mean[0])

    def factor(self, model: str) -> float:
        """The factor per layer that multiplies up to that ratio: a geometric mean over layers."""
        layers = self.lines[model].x.size - 1
        return float(self.ratio(model) ** (1 / layers)) if layers else math.nan

    def words(self, model: str) -> str:
        """What one layer and all of them together do to the gradient."""
        layers = self.lines[model].x.size - 1
        if math.isnan(self.factor(model)):
            return "factor per layer undefined"
        over = f"×{number(self.ratio(model))} over {layers} layer{'s' * (layers != 1)}"
        return f"×{number(self.factor(model), 3)} per layer, {over}"


def backward(pair: Pair) -> Backward:
    rows = last_rows(pair, "preact_grad_norm")
    relative = relative_to_last(pair, rows)
    summary = over_depth(pair, relative)
    lines = {model: series(summary, model, pair.labels[model]) for model in MODELS}
    return Backward(
        summary=summary,
        lines=lines,
        theory={} if pair.alpha is None else {m: backward_factor(m == "res_mlp", pair.alpha) for m in MODELS},
        when=moment(rows),
        missing=missing_seeds(pair, relative),
    )
