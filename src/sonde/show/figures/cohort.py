"""Runs of one network under several rules, checked to share one recipe, so that only the tested factor differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from sonde.analysis.evidence import NO_DATA_SET, Evidence, NoData
from sonde.core.errors import SondeError

RULES = ("bp", "fa", "dfa", "state_bridge", "credit_bridge", "frozen")
"""The order in which rules appear in every legend; others follow."""

TRAINING = ("task", "task_label", "scale", "variant", "epochs", "steps", "batch", "lr", "samples")
NETWORK = ("model", "label", "out_ln", "depth", "width", "alpha")
"""What the runs of one cohort must have in common; only rule and seed may differ."""


@dataclass(frozen=True)
class Cohort:
    """Runs that differ in nothing but the rule and the seed."""

    evidence: Evidence
    labels: dict[str, str]  # rule → label
    depth: int  # 0 where neither the runs nor their rows tell
    by: ClassVar[str] = "rule"

    @property
    def runs(self) -> pl.DataFrame:
        return self.evidence.runs

    @property
    def source(self) -> str:
        return self.evidence.source

    @property
    def network(self) -> str:
        return str(self.runs["label"][0])

    @property
    def task(self) -> str:
        return self.runs["task_label"][0] or NO_DATA_SET

    @property
    def setting(self) -> str:
        """Network, size and task: "ResMLP L = 12 d = 512, CIFAR-10"."""
        sizes = {"L": self.depth or None, "d": self.runs["width"][0]}
        said = "".join(f" {name} = {size}" for name, size in sizes.items() if size is not None)
        return f"{self.network}{said}, {self.task}"

    @property
    def epochs(self) -> int:
        """How long the runs were trained; where that is not recorded, the last epoch with rows."""
        recorded = self.runs["epochs"][0]
        return int(self.evidence.rows["epoch"].max() or 0) if recorded is None else int(recorded)  # type: ignore[arg-type]

    @property
    def recipe(self) -> str:
        return f"{self.network}: {self.training}"

    @property
    def training(self) -> str:
        """Size and training recipe, from the columns of the runs; what a file does not record is named."""
        width, samples, batch, lr, scale = (
            self.runs[field][0] for field in ("width", "samples", "batch", "lr", "scale")
        )
        depth = self.depth or None
        parts = {
            "depth": depth and f"{depth} block{'s' * (depth != 1)}",
            "width": width and f"width {width:,}",
            "task": self.task,
            "training samples": samples and f"{samples:,} training samples",
            "epochs": f"{self.epochs} epoch{'s' * (self.epochs != 1)}",
            "batch": batch and f"batch {batch:,}",
            "learning rate": lr and f"learning rate {lr:g}",
            "scale": scale and f"{scale} scale",
        }
        missing = ", ".join(name for name, text in parts.items() if not text)
        said = ", ".join(text for text in parts.values() if text)
        return f"{said} ({missing} not recorded)" if missing else said


def cohort_of(evidence: Evidence, *, rules: Sequence[str] | None = None, named: str = "", **choice: object) -> Cohort:
    """The runs whose columns equal the choice, of these rules and strangers or of all, checked to share one recipe.

    `named` is what a reader calls the network, for the message where there is none.
    """
    runs = evidence.runs.filter(**choice) if choice else evidence.runs
    if rules is not None:
        runs = runs.filter(pl.col("rule").is_in(rules) | ~pl.col("rule").is_in(RULES))
    if runs.is_empty():
        under = "" if rules is None else f" under {' or '.join(rules)}"
        raise NoData(f"no run{f' of {named}' if named else ''}{under} in {evidence.source}")
    depths = runs["depth"].drop_nulls().unique()
    if depths.len() == 1:  # a file tells the depth only where it holds something per layer
        runs = runs.with_columns(pl.col("depth").fill_null(depths[0]))
    check_recipe(runs, (*NETWORK, *TRAINING), free="rule and seed")
    trained = set(runs["rule"])
    present = [rule for rule in RULES if rule in trained] + sorted(trained - set(RULES))
    for rule in present:
        check_recipe(runs.filter(rule=rule), ("rule_label", "input_norm"), free="seed")
    check_replicates(runs, "label", "rule_label")
    order = {rule: rank for rank, rule in enumerate(present)}
    runs = runs.sort(pl.col("rule").replace_strict(order, return_dtype=pl.Int64), "seed", "run")
    rows = evidence.rows.join(runs.select("run"), on="run", how="semi")
    labels = {rule: str(runs.filter(rule=rule)["rule_label"][0]) for rule in present}
    depth = depths[0] if depths.len() else max(rows["layer"].drop_nulls().to_list(), default=0)
    return Cohort(Evidence(rows, runs, evidence.source), labels, int(depth))


def check_recipe(runs: pl.DataFrame, fields: Sequence[str], *, free: str) -> None:
    """Refuse runs that differ in any of the fields, naming field and values; `free` is what may differ."""
    differing = []
    for field in fields:
        values = runs[field].unique(maintain_order=True).to_list()
        if len(values) > 1:
            differing.append(f"{field} ({' and '.join(map(_said, values))})")
    if differing:
        raise SondeError(
            f"the runs of one figure differ in {', '.join(differing)}: choose runs that differ only in {free}"
        )


def _said(value: object) -> str:
    if value is None:
        return "not recorded"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def check_replicates(runs: pl.DataFrame, *by: str) -> None:
    """Refuse two runs of one kind with the same seed."""
    seeded = runs.drop_nulls("seed")
    for (*kind, seed), twins in seeded.group_by(*by, "seed", maintain_order=True):
        if twins.height > 1:
            raise SondeError(
                f"{twins.height} runs of {', '.join(map(str, kind))} have seed {seed} "
                f"({', '.join(twins['run'])}): choose one, a repeated seed is not another sample"
            )


@dataclass(frozen=True)
class Together:
    """The lines of several cohorts in one figure, as one group."""

    runs: pl.DataFrame  # with a column `line`
    labels: Mapping[str, str]
    recipe: str
    source: str
    by: ClassVar[str] = "line"


def line_key(cohort: Cohort, rule: str) -> str:
    return f"{cohort.labels[rule]} ({cohort.network})"


def together(cohorts: Sequence[Cohort]) -> Together:
    """Every rule of every cohort as a line of its own; cohorts with one recipe are named together."""
    runs = [with_lines(cohort, cohort.runs) for cohort in cohorts]
    keys = [line_key(cohort, rule) for cohort in cohorts for rule in cohort.labels]
    sharing: dict[str, list[str]] = {}
    for cohort in cohorts:
        sharing.setdefault(cohort.training, []).append(cohort.network)
    recipe = "; ".join(f"{' and '.join(names)}: {training}" for training, names in sharing.items())
    labels = cohorts[0].labels.values() if len(cohorts) == 1 else keys
    return Together(pl.concat(runs), dict(zip(keys, labels, strict=True)), recipe, cohorts[0].source)


def with_lines(cohort: Cohort, table: pl.DataFrame) -> pl.DataFrame:
    """A table with a column `rule`, beside the line each row belongs to."""
    keys = {rule: line_key(cohort, rule) for rule in cohort.labels}
    return table.with_columns(line=pl.col("rule").replace_strict(keys, return_dtype=pl.String))
