"""The plain and the residual network of the residual study, under one recipe."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from sonde.errors import SondeError
from sonde.figures.evidence import NO_DATA_SET, Evidence, NoData
from sonde.figures.recipe import check_recipe, check_replicates
from sonde.statistics import over_seeds
from sonde.theory import INPUT_SECOND_MOMENT
from sonde.verdicts import number

MODELS = ("plain_mlp", "res_mlp")
RECIPE = ("depth", "width", "alpha", "steps", "batch", "lr", "samples", "rule", "task", "scale", "variant")
"""What the runs of one figure must have in common; only model and seed may differ."""


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
    def trivial_loss(self) -> float | None:
        """The loss of predicting zero, where the target is the input."""
        return INPUT_SECOND_MOMENT if set(self.runs["task"]) == {"identity"} else None

    @property
    def recipe(self) -> str:
        """Depth, width and training recipe, from the columns of the runs."""
        said = {field: self.runs[field][0] for field in ("width", "steps", "batch", "lr", "samples")}
        shown = {field: "unrecorded" if value is None else f"{value:,.6g}" for field, value in said.items()}
        beside = f" (not shown: {', '.join(self.rules[1:])})" if len(self.rules) > 1 else ""
        return (
            f"{self.depth} layers of width {shown['width']}, {weights_text(self)}, {shown['steps']} steps of "
            f"batch {shown['batch']}, learning rate {shown['lr']}, {shown['samples']} training samples, {self.data}"
            + (f", trained by {self.rules[0]}{beside}" if beside else "")
        )

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


def weights_text(pair: Pair) -> str:
    """The variant and its weight scale: "scaled weights (α = 0.224)"."""
    variant = pair.runs["variant"][0]
    name = "weights" if variant is None else f"{variant} weights"
    return name if pair.alpha is None else f"{name} (α = {number(pair.alpha, 3)})"


def last_rows(pair: Pair, metric: str) -> pl.DataFrame:
    """Rows of a metric at the last epoch that holds any, for both networks."""
    rows = pair.evidence.metric(metric)
    if rows.is_empty():
        raise NoData(f"no {metric} rows in {pair.evidence.source}")
    return _of_both(pair, metric, rows.filter(pl.col("epoch") == pl.col("epoch").max()))


def loss_rows(pair: Pair) -> pl.DataFrame:
    """The loss of every step, for both networks."""
    return _of_both(pair, "batch_loss", pair.evidence.metric("batch_loss"))


def _of_both(pair: Pair, metric: str, rows: pl.DataFrame) -> pl.DataFrame:
    for model in MODELS:
        if rows.filter(model=model).is_empty():
            when = "" if rows.is_empty() or metric == "batch_loss" else f" {moment(rows)}"
            called = " (loss_history in the paper layout)" * (metric == "batch_loss")
            raise NoData(f"no {metric} rows{called} of {model}{when} in {pair.evidence.source}")
    if not rows["defined"].any():
        reasons = ", ".join(sorted(set(rows["reason"].drop_nulls()))) or "no reason recorded"
        raise NoData(f"every {metric} value in {pair.evidence.source} is undefined: {reasons}")
    return rows


def initial_rows(pair: Pair, metric: str) -> pl.DataFrame:
    """Rows of a metric at initialisation; there may be none."""
    return pair.evidence.metric(metric).filter(epoch=0)


def moment(rows: pl.DataFrame) -> str:
    """When the rows were measured, in words."""
    epochs, steps = sorted(set(rows["epoch"])), rows["step"].drop_nulls().unique().to_list()
    if epochs == [0]:
        return "at initialisation"
    return f"after {steps[0]} steps" if len(steps) == 1 else f"at epoch {epochs[-1]}"


def over_depth(pair: Pair, rows: pl.DataFrame) -> pl.DataFrame:
    """Mean, spread and n over seeds for every network and layer 1 … L; a layer without rows has n = 0."""
    grid = pl.DataFrame({"model": MODELS}).join(
        pl.DataFrame({"layer": range(1, pair.depth + 1)}, schema={"layer": pl.Int64}), how="cross"
    )
    summary = over_seeds(rows, "model", "layer")
    return grid.join(summary, on=["model", "layer"], how="left").with_columns(pl.col("n").fill_null(0))


def over_steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean, spread and n over seeds for every network and step up to the last."""
    grid = rows.select(pl.col("model").unique()).join(
        rows.select(step=pl.int_range(pl.col("step").min(), pl.col("step").max() + 1)), how="cross"
    )
    summary = over_seeds(rows, "model", "step")
    return grid.join(summary, on=["model", "step"], how="left").with_columns(pl.col("n").fill_null(0))


def relative_to_last(pair: Pair, rows: pl.DataFrame) -> pl.DataFrame:
    """Every value divided by the same run's value at the last layer; undefined where that is 0."""
    last = rows.filter(layer=pair.depth).select("run", last="value", last_defined="defined")
    ratio = rows.join(last, on="run", how="left").with_columns(
        defined=pl.col("defined") & pl.col("last_defined").fill_null(False) & (pl.col("last") > 0),
        value=pl.col("value") / pl.col("last"),
    )
    return ratio.with_columns(value=pl.when("defined").then("value").otherwise(float("nan")))


def loss_ends(rows: pl.DataFrame) -> pl.DataFrame:
    """First and last loss of every run and the reduction in per cent, as rows to summarise.

    A run that does not reach the last step of the others has no final loss.
    """
    first, last = rows["step"].min(), rows["step"].max()
    ends = rows.group_by("model", "run").agg(
        initial=pl.col("value").filter((pl.col("step") == first) & pl.col("defined")).first(),
        final=pl.col("value").filter((pl.col("step") == last) & pl.col("defined")).first(),
    )
    fell = 100 * (pl.col("initial") - pl.col("final")) / pl.col("initial")
    tidy = ends.with_columns(reduction=pl.when(pl.col("initial") > 0).then(fell)).unpivot(
        ["initial", "final", "reduction"], index=["model", "run"], variable_name="quantity"
    )
    return tidy.with_columns(defined=pl.col("value").is_not_null() & pl.col("value").is_finite())
