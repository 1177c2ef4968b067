"""The plain and the residual network of the residual study, under one recipe, and what is measured of both."""

import math
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from sonde.errors import SondeError
from sonde.figures.caption import n_text
from sonde.figures.cohort import check_recipe, check_replicates
from sonde.figures.series import Curves, Series, curves
from sonde.runs.evidence import NO_DATA_SET, Evidence, NoData
from sonde.spreads import over_seeds
from sonde.theory import INPUT_SECOND_MOMENT, INPUT_STD, backward_factor
from sonde.verdicts import loss_verdict, number, signal_verdict, weights

MODELS = ("plain_mlp", "res_mlp")
RECIPE = ("depth", "width", "alpha", "steps", "batch", "lr", "samples", "rule", "task", "scale", "variant")
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
    theory: dict[str, float]  # factor per layer at initialisation; empty without a recorded weight scale

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


def backward(pair: Pair) -> Backward:
    """Of the last epoch; a norm is undefined relative to a last layer whose own is 0."""
    norms = by_layer(pair, "preact_grad_norm")
    last = norms.rows.filter(layer=pair.depth).select("run", last="value", last_defined="defined")
    ratio = norms.rows.join(last, on="run", how="left").with_columns(
        defined=pl.col("defined") & pl.col("last_defined").fill_null(False) & (pl.col("last") > 0),
        value=pl.col("value") / pl.col("last"),
    )
    ratio = ratio.with_columns(value=pl.when("defined").then("value").otherwise(float("nan")))
    factors = (
        {m: backward_factor(m == "res_mlp", pair.alpha) for m in MODELS} if pair.alpha is not None else {}
    )
    return Backward(norms, curves(pair, ratio, "layer", range(1, pair.depth + 1)), factors)


@dataclass(frozen=True)
class LossEnds:
    """First and last loss of both networks and the reduction in per cent, over seeds."""

    pair: Pair
    summary: pl.DataFrame

    def of(self, model: str, quantity: str) -> tuple[float, float, int]:
        """Mean, sample standard deviation (NaN for n < 2) and n of `initial`, `final` or `reduction`."""
        mean, std, n = self.summary.filter(model=model, quantity=quantity).select("mean", "std", "n").row(0)
        return (math.nan if mean is None else mean), (math.nan if std is None else std), n

    @property
    def verdicts(self) -> dict[str, str]:
        """Whether each network learned, as a sentence with its numbers."""
        trivial = self.pair.trivial_loss
        return {
            model: f"{label} "
            + loss_verdict(self.of(model, "reduction")[0], self.of(model, "final")[0], trivial)
            for model, label in self.pair.labels.items()
        }


def loss_ends(pair: Pair, rows: pl.DataFrame) -> LossEnds:
    """From every run's own ends; a run that does not reach the last step of the others has no final loss."""
    first, last = rows["step"].min(), rows["step"].max()
    ends = rows.group_by("model", "run", maintain_order=True).agg(
        initial=pl.col("value").filter((pl.col("step") == first) & pl.col("defined")).first(),
        final=pl.col("value").filter((pl.col("step") == last) & pl.col("defined")).first(),
    )
    fell = 100 * (pl.col("initial") - pl.col("final")) / pl.col("initial")
    tidy = ends.with_columns(reduction=pl.when(pl.col("initial") > 0).then(fell)).unpivot(
        ["initial", "final", "reduction"], index=["model", "run"], variable_name="quantity"
    )
    tidy = tidy.with_columns(defined=pl.col("value").is_not_null() & pl.col("value").is_finite())
    return LossEnds(pair, over_seeds(tidy, "model", "quantity"))
