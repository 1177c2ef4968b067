"""The plain and the residual network of the residual study, under one recipe, and what is measured of both."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from sonde.analysis.evidence import NO_DATA_SET, Evidence, NoData
from sonde.analysis.theory import INPUT_SECOND_MOMENT, INPUT_STD, backward_norms, lowest_loss
from sonde.core.errors import SondeError
from sonde.core.formatting import last_steps, loss_change, loss_verdict, number, signal_verdict, weights
from sonde.core.seed_statistics import over_seeds
from sonde.show.figures.caption import n_text
from sonde.show.figures.cohort import check_recipe, check_replicates
from sonde.show.figures.series import Curves, Floats, Series, curves

MODELS = ("plain_mlp", "res_mlp")
RECIPE = (
    *("depth", "width", "alpha", "output", "steps", "batch", "lr", "samples"),
    *("rule", "task", "scale", "variant"),
)
"""What the runs of one figure must have in common; only model and seed may differ."""

REGRESSION = ", regression"
"""How the label of a task of one's own ends where its targets are no classes."""


@dataclass(frozen=True)
class Pair:
    """Runs of both networks that differ in nothing but the residual connection and the seed."""

    evidence: Evidence
    labels: dict[str, str]
    depth: int
    alpha: float | None
    rules: tuple[str, ...] = ()  # labels: the one that is shown, and those that are not
    by: ClassVar[str] = "model"

    @property
    def runs(self) -> pl.DataFrame:
        return self.evidence.runs

    @property
    def source(self) -> str:
        return self.evidence.source

    @property
    def identity(self) -> bool:
        """Whether the target is the input, drawn from U(−1, 1): what is known of that input holds for no other."""
        return set(self.runs["task"]) == {"identity"}

    @property
    def trivial_loss(self) -> float | None:
        """The loss of predicting zero, where the target is the input."""
        return INPUT_SECOND_MOMENT if self.identity else None

    @property
    def linear_output(self) -> bool:
        return bool(self.runs["output"][0] == "linear")

    def floor(self, model: str) -> float | None:
        """The lowest loss that a network can reach, where it is known."""
        return lowest_loss(model, str(self.runs["task"][0]), self.runs["output"][0] or "relu")

    @property
    def floors(self) -> str:
        """What of the losses cannot be learned: a sentence, empty where there is no such floor."""
        known = {model: self.floor(model) for model in MODELS}
        parts = [
            f"{self.labels[model]}: no weights bring its loss below {number(floor, 3)}, because it ends in a ReLU and "
            "half of the targets are negative; it is judged by its loss above that floor."
            for model, floor in known.items()
            if floor
        ]
        return " ".join(parts)

    @property
    def loss(self) -> str:
        """What the batch loss is: numbers are learned by their squared error, classes by cross entropy."""
        label = str(self.runs["task_label"][0] or "")
        return "mean squared error" if self.identity or label.endswith(REGRESSION) else "cross entropy"

    @property
    def recipe(self) -> str:
        """Depth, width and training recipe, from the columns of the runs."""
        said = {field: self.runs[field][0] for field in ("width", "steps", "batch", "lr", "samples")}
        shown = {field: "unrecorded" if value is None else f"{value:,.6g}" for field, value in said.items()}
        beside = f" (not shown: {', '.join(self.rules[1:])})" if len(self.rules) > 1 else ""
        return (
            f"{self.depth} layers of width {shown['width']}, {self.weights}, {shown['steps']} steps of "
            f"batch {shown['batch']}, learning rate {shown['lr']}, {shown['samples']} training samples, {self.data}"
            + (f", trained by {self.rules[0]}{beside}" if beside else "")
        )

    @property
    def weights(self) -> str:
        """What the weights are: "weights × 1/√L (α = 0.224)"."""
        variant = self.runs["variant"][0]
        name = "weights" if variant is None else weights(variant)
        return name if self.alpha is None else f"{name} (α = {number(self.alpha, 3)})"

    def title(self, what: str, summary: pl.DataFrame) -> str:
        return f"{what}, {self.weights}, {n_text(self, summary)}"

    @property
    def data(self) -> str:
        """What was learned; this study has one scale.  A file that does not say is read as the layout means it."""
        task = self.runs["task_label"][0]
        if task is None:
            return f"{NO_DATA_SET} (read as the {self.runs['task'][0]} task, as the paper layout has it)"
        return f"{task} task"


def pair_of(evidence: Evidence) -> Pair:
    """Both networks, checked to share one recipe; of several rules BP's runs, or those of the first."""
    runs = evidence.runs.filter(pl.col("model").is_in(MODELS)).sort("model", "seed", "run")
    rules = dict(runs.select("rule", "rule_label").unique().sort(pl.col("rule") != "bp", "rule").iter_rows())
    if len(rules) > 1:
        runs = runs.filter(rule=next(iter(rules)))
    for model in MODELS:
        if runs.filter(model=model).is_empty():
            raise NoData(f"no {model} run in {evidence.source}")
    check_recipe(runs, RECIPE, free="network and seed")
    check_replicates(runs, "model")
    depth = runs["depth"][0]
    if depth is None:
        raise SondeError(f"{evidence.source} does not record the depth of its networks")
    rows = evidence.rows.join(runs.select("run"), on="run", how="semi")
    labels = {model: str(runs.filter(model=model)["label"][0]) for model in MODELS}
    return Pair(Evidence(rows, runs, evidence.source), labels, depth, runs["alpha"][0], tuple(rules.values()))


def by_layer(pair: Pair, metric: str) -> Curves:
    """A metric of layers 1 … L at the last epoch that holds any, for both networks."""
    rows = pair.evidence.metric(metric)
    if rows.is_empty():
        raise NoData(f"no {metric} rows in {pair.source}")
    rows = _of_both(pair, metric, rows.filter(pl.col("epoch") == pl.col("epoch").max()))
    return curves(pair, rows, "layer", range(1, pair.depth + 1))


def by_step(pair: Pair) -> Curves:
    """The loss of every step up to the last, for both networks."""
    rows = _of_both(pair, "batch_loss", pair.evidence.metric("batch_loss"))
    first, last = rows.select(first=pl.col("step").min(), last=pl.col("step").max()).row(0)
    return curves(pair, rows, "step", range(first, last + 1))


def _of_both(pair: Pair, metric: str, rows: pl.DataFrame) -> pl.DataFrame:
    for model in MODELS:
        if rows.filter(model=model).is_empty():
            when = "" if rows.is_empty() or metric == "batch_loss" else f" {moment(rows)}"
            called = " (loss_history in the paper layout)" * (metric == "batch_loss")
            raise NoData(f"no {metric} rows{called} of {model}{when} in {pair.source}")
    if not rows["defined"].any():
        reasons = ", ".join(sorted(set(rows["reason"].drop_nulls()))) or "no reason recorded"
        raise NoData(f"every {metric} value in {pair.source} is undefined: {reasons}")
    return rows


def moment(rows: pl.DataFrame) -> str:
    """When the rows were measured, in words."""
    epochs, steps = sorted(set(rows["epoch"])), rows["step"].drop_nulls().unique().to_list()
    if epochs == [0]:
        return "at initialisation"
    return f"after {steps[0]} steps" if len(steps) == 1 else f"at epoch {epochs[-1]}"


def signal_words(pair: Pair, stds: Series) -> str:
    """What becomes of the signal on its way up: judged by the input's spread where that is known."""
    if pair.identity:
        return signal_verdict(stds.mean.tolist(), INPUT_STD)
    return f"{number(stds.mean[0])} at layer 1, {number(stds.mean[-1])} at layer {pair.depth}"


@dataclass(frozen=True)
class Backward:
    """How the gradient changes on its way back: norms relative to the last layer, per run and then over seeds."""

    norms: Curves
    relative: Curves
    start: dict[str, Series]  # the norms at initialisation, where they are stored
    theory: dict[str, Floats]  # the norms that random weights give at layers 1 … L; empty where they are not known

    @property
    def when(self) -> str:
        return moment(self.norms.rows)

    def ratio(self, model: str) -> float:
        """Gradient norm at layer 1 relative to the last layer."""
        return float(self.relative[model].mean[0])

    def factor(self, model: str) -> float:
        """The factor per layer that multiplies up to that ratio: a geometric mean over layers."""
        layers = self.relative[model].x.size - 1
        return float(self.ratio(model) ** (1 / layers)) if layers else math.nan

    def theory_factor(self, model: str) -> float:
        """The same of the norms that random weights give; NaN where they are not known."""
        return _factor(self.theory[model]) if model in self.theory else math.nan

    def start_factor(self, model: str) -> float:
        """The same of the norms measured at initialisation."""
        return _factor(self.start[model].mean) if model in self.start else math.nan

    def words(self, model: str) -> str:
        """What one layer and all of them together do to the gradient."""
        layers = self.relative[model].x.size - 1
        if math.isnan(self.factor(model)):
            return "factor per layer undefined"
        over_all = f"×{number(self.ratio(model))} over {layers} layer{'s' * (layers != 1)}"
        return f"×{number(self.factor(model), 3)} per layer, {over_all}"

    @property
    def sentence(self) -> str:
        return "; ".join(f"{line.label}: {self.words(line.key)}" for line in self.relative.lines)


def _factor(norms: Floats) -> float:
    """What one layer multiplies by on the way from the last norm back to the first, as a geometric mean."""
    layers = norms.size - 1
    return float((norms[0] / norms[-1]) ** (1 / layers)) if layers > 0 and norms[-1] > 0 else math.nan


def backward(pair: Pair) -> Backward:
    """Of the last epoch; a norm is undefined relative to a last layer whose own is 0."""
    norms = by_layer(pair, "preact_grad_norm")
    last = norms.rows.filter(layer=pair.depth).select("run", last="value", last_defined="defined")
    ratio = norms.rows.join(last, on="run", how="left").with_columns(
        defined=pl.col("defined") & pl.col("last_defined").fill_null(False) & (pl.col("last") > 0),
        value=pl.col("value") / pl.col("last"),
    )
    ratio = ratio.with_columns(value=pl.when("defined").then("value").otherwise(float("nan")))
    return Backward(
        norms,
        curves(pair, ratio, "layer", range(1, pair.depth + 1)),
        at_start(pair, "preact_grad_norm"),
        _theory_of_gradients(pair, norms.rows),
    )


def at_start(pair: Pair, metric: str) -> dict[str, Series]:
    """A metric of layers 1 … L at initialisation, by network; files of the paper layout hold none."""
    rows = pair.evidence.metric(metric).filter(epoch=0)
    return {line.key: line for line in curves(pair, rows, "layer", range(1, pair.depth + 1)).lines}


def _theory_of_gradients(pair: Pair, rows: pl.DataFrame) -> dict[str, Floats]:
    """Of the identity, whose gradient at the output is known: 2(h_L − h_0)/(Nd) for N samples of width d."""
    width, samples = pair.runs["width"][0], max(rows["samples"].drop_nulls().to_list(), default=0)
    if pair.alpha is None or not pair.identity or width is None or samples < 1:
        return {}
    scale = 2 / math.sqrt(width * samples)
    return {
        model: scale
        * np.array(backward_norms(model == "res_mlp", pair.alpha, pair.depth, linear_output=pair.linear_output))
        for model in MODELS
    }


@dataclass(frozen=True)
class LossEnds:
    """First and final loss of both networks and the reduction in per cent above the floor, over seeds."""

    pair: Pair
    summary: pl.DataFrame

    def of(self, model: str, quantity: str) -> tuple[float, float, int]:
        """Mean, sample standard deviation (NaN for n < 2) and n of `initial`, `final`, `reduction` or their errors."""
        mean, std, n = self.summary.filter(model=model, quantity=quantity).select("mean", "std", "n").row(0)
        return (math.nan if mean is None else mean), (math.nan if std is None else std), n

    def error(self, model: str, quantity: str) -> float:
        """Standard error of a mean of `final` or `reduction`, by the noise of the batches of its n runs."""
        mean, _, n = self.of(model, f"{quantity}_error")
        return mean / math.sqrt(n) if n else math.nan

    @property
    def verdicts(self) -> dict[str, str]:
        """Whether each network learned, as a sentence with its numbers."""
        return {
            model: f"{label} "
            + loss_verdict(
                self.of(model, "reduction")[0],
                self.of(model, "final")[0],
                self.pair.trivial_loss,
                self.pair.floor(model),
                self.error(model, "reduction"),
            )
            for model, label in self.pair.labels.items()
        }


QUANTITIES = ("initial", "final", "final_error", "reduction", "reduction_error")


def loss_ends(pair: Pair, rows: pl.DataFrame) -> LossEnds:
    """From every run's own losses; a run that lacks one of the last steps has no final loss."""
    first, last = rows["step"].min(), last_steps(int(rows["step"].max()))  # type: ignore[arg-type]
    found = []
    for (model, run), of_run in rows.group_by("model", "run", maintain_order=True):
        by_step = dict(of_run.filter("defined").select("step", "value").iter_rows())
        ending = [by_step.get(step, math.nan) for step in last]
        change = loss_change(by_step.get(first, math.nan), ending, pair.floor(str(model)))
        found.append((model, run, change.initial, change.final, change.final_error, change.fell, change.fell_error))
    ends = pl.DataFrame(found, schema=["model", "run", *QUANTITIES], orient="row")
    tidy = ends.unpivot(QUANTITIES, index=["model", "run"], variable_name="quantity")
    tidy = tidy.with_columns(defined=pl.col("value").is_finite())
    return LossEnds(pair, over_seeds(tidy, "model", "quantity"))
