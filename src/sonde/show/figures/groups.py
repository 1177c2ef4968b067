"""Groups of runs that one figure compares: a `Cohort` of rules or a `Pair` of networks, checked to share a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from sonde.analysis.evidence import NO_DATA_SET, Evidence, NoData
from sonde.analysis.theory import INPUT_SECOND_MOMENT, lowest_loss
from sonde.core.errors import SondeError
from sonde.core.formatting import number, weights
from sonde.show.figures.series import Curves, Series, curves, n_text
from sonde.show.figures.style import RULE_ORDER, rule_rank

TRAINING_FIELDS = ("task", "task_label", "scale", "variant", "epochs", "steps", "batch", "lr", "samples")
NETWORK_FIELDS = ("model", "label", "out_ln", "depth", "width", "alpha")
"""What the runs of one cohort have in common; only rule and seed differ."""

AT_START = "at initialisation"
PAIR_MODELS = ("plain_mlp", "res_mlp")
_PAIR_FIELDS = (
    *("depth", "width", "alpha", "output", "steps", "batch", "lr", "samples"),
    *("rule", "task", "scale", "variant"),
)
"""What the runs of one pair have in common; only model and seed differ."""

_REGRESSION = ", regression"
"""The label of a plugin task ends so if its targets are numbers."""


def check_recipe(runs: pl.DataFrame, fields: Sequence[str], *, free: str) -> None:
    """Refuse runs that differ in any of the fields, naming field and values; `free` is what may differ."""
    differing = []
    for field in fields:
        values = runs[field].unique(maintain_order=True).to_list()
        if len(values) > 1:
            differing.append(f"{field} ({' and '.join(map(_recorded, values))})")
    if differing:
        raise SondeError(
            f"the runs of one figure differ in {', '.join(differing)}: choose runs that differ only in {free}"
        )


def _recorded(value: object) -> str:
    if value is None:
        return "not recorded"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _check_replicates(runs: pl.DataFrame, *by: str) -> None:
    """Refuse two runs with the same seed that agree in the columns `by`."""
    seeded = runs.drop_nulls("seed")
    for (*kind, seed), twins in seeded.group_by(*by, "seed", maintain_order=True):
        if twins.height > 1:
            raise SondeError(
                f"{twins.height} runs of {', '.join(map(str, kind))} have seed {seed} "
                f"({', '.join(twins['run'])}): choose one, a repeated seed is not another sample"
            )


@dataclass(frozen=True)
class _EvidenceGroup:
    """What `Cohort` and `Pair` share: the evidence, and a label for each line."""

    evidence: Evidence
    labels: dict[str, str]  # rule or model → label
    depth: int  # 0 if neither the runs nor their rows tell

    @property
    def runs(self) -> pl.DataFrame:
        return self.evidence.runs

    @property
    def source(self) -> str:
        return self.evidence.source


@dataclass(frozen=True)
class Cohort(_EvidenceGroup):
    """Runs of one network that differ in nothing but the rule and the seed."""

    by: ClassVar[str] = "rule"

    @property
    def network(self) -> str:
        """The label of the network."""
        return str(self.runs["label"][0])

    @property
    def task(self) -> str:
        """The label of the task, or that it is not recorded."""
        return self.runs["task_label"][0] or NO_DATA_SET

    @property
    def chance(self) -> float | None:
        """The accuracy of guessing among the task's classes, if they are known."""
        classes = self.runs["classes"][0]
        return 1 / classes if classes else None

    @property
    def setting(self) -> str:
        """Network, size and task: "ResMLP, L = 12, d = 512, CIFAR-10"."""
        sizes = {"L": self.depth or None, "d": self.runs["width"][0]}
        known = [f"{name} = {size}" for name, size in sizes.items() if size is not None]
        return ", ".join([self.network, *known, self.task])

    @property
    def epochs(self) -> int:
        """How many epochs the runs were trained; the last epoch with rows if that is not recorded."""
        recorded = self.runs["epochs"][0]
        return int(self.evidence.rows["epoch"].max() or 0) if recorded is None else int(recorded)  # type: ignore[arg-type]

    @property
    def recipe(self) -> str:
        """Network, size and training recipe."""
        return f"{self.network}: {self.training}"

    @property
    def training(self) -> str:
        """Size and training recipe; ends with the names of what is not recorded."""
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
        known = ", ".join(text for text in parts.values() if text)
        return f"{known} ({missing} not recorded)" if missing else known


def cohort_of(evidence: Evidence, *, rules: Sequence[str] | None = None, named: str = "", **choice: object) -> Cohort:
    """The runs whose columns equal the choice, checked to share one recipe.

    Of the rules in `RULE_ORDER` only `rules` are taken, if they are given; a rule beyond that list always is.  `named`
    is how an error message calls the network.
    """
    runs = evidence.runs.filter(**choice) if choice else evidence.runs
    if rules is not None:
        runs = runs.filter(pl.col("rule").is_in(rules) | ~pl.col("rule").is_in(RULE_ORDER))
    if runs.is_empty():
        under = "" if rules is None else f" under {' or '.join(rules)}"
        raise NoData(f"no run{f' of {named}' if named else ''}{under} in {evidence.source}")
    depths = runs["depth"].drop_nulls().unique()
    if depths.len() == 1:  # a file tells the depth only if it holds something per layer
        runs = runs.with_columns(pl.col("depth").fill_null(depths[0]))
    check_recipe(runs, (*NETWORK_FIELDS, *TRAINING_FIELDS), free="rule and seed")
    trained = set(runs["rule"])
    present = sorted(trained, key=lambda rule: (rule_rank(rule), rule))
    for rule in present:
        check_recipe(runs.filter(rule=rule), ("rule_label", "input_norm"), free="seed")
    _check_replicates(runs, "label", "rule_label")
    order = {rule: rank for rank, rule in enumerate(present)}
    runs = runs.sort(pl.col("rule").replace_strict(order, return_dtype=pl.Int64), "seed", "run")
    chosen = evidence.of_runs(runs)
    labels = {rule: str(runs.filter(rule=rule)["rule_label"][0]) for rule in present}
    depth = depths[0] if depths.len() else max(chosen.rows["layer"].drop_nulls().to_list(), default=0)
    return Cohort(chosen, labels, int(depth))


@dataclass(frozen=True)
class Lines:
    """Runs that differ in more than rule and seed, as the lines of one figure."""

    runs: pl.DataFrame  # with the column that `by` names
    labels: Mapping[str, str]
    recipe: str
    source: str
    by: str = "line"


def line_key(cohort: Cohort, rule: str) -> str:
    """The name of a rule's line among those of several cohorts."""
    return f"{cohort.labels[rule]} ({cohort.network})"


def join_cohorts(cohorts: Sequence[Cohort]) -> Lines:
    """Every rule of every cohort as a line; the recipe names cohorts that share one together."""
    runs = [with_lines(cohort, cohort.runs) for cohort in cohorts]
    keys = [line_key(cohort, rule) for cohort in cohorts for rule in cohort.labels]
    sharing: dict[str, list[str]] = {}
    for cohort in cohorts:
        sharing.setdefault(cohort.training, []).append(cohort.network)
    recipe = "; ".join(f"{' and '.join(names)}: {training}" for training, names in sharing.items())
    labels = cohorts[0].labels.values() if len(cohorts) == 1 else keys
    return Lines(pl.concat(runs), dict(zip(keys, labels, strict=True)), recipe, cohorts[0].source)


def with_lines(cohort: Cohort, table: pl.DataFrame) -> pl.DataFrame:
    """A table that has a column `rule`, with a column `line` added."""
    keys = {rule: line_key(cohort, rule) for rule in cohort.labels}
    return table.with_columns(line=pl.col("rule").replace_strict(keys, return_dtype=pl.String))


@dataclass(frozen=True)
class Pair(_EvidenceGroup):
    """Runs of the plain and the residual network that differ in nothing but the residual connection and the seed."""

    alpha: float | None
    rules: tuple[str, ...] = ()  # labels: the rule that is shown, then those that are not
    by: ClassVar[str] = "model"

    @property
    def identity(self) -> bool:
        """Whether the target is the input, drawn from U(−1, 1): the theory holds for no other task."""
        return set(self.runs["task"]) == {"identity"}

    @property
    def trivial_loss(self) -> float | None:
        """The loss of predicting zero, if the target is the input."""
        return INPUT_SECOND_MOMENT if self.identity else None

    def floor(self, model: str) -> float | None:
        """The lowest loss that a network can reach, if it is known."""
        return lowest_loss(model, str(self.runs["task"][0]), self.runs["output"][0] or "relu")

    @property
    def floors(self) -> list[str]:
        """A sentence for each network that cannot reach a loss of 0."""
        known = {model: self.floor(model) for model in PAIR_MODELS}
        return [
            f"{self.labels[model]}: no weights bring its loss below {number(floor, 3)}, because it ends in a ReLU and "
            "half of the targets are negative; what counts is its loss above that floor."
            for model, floor in known.items()
            if floor
        ]

    @property
    def loss(self) -> str:
        """What the batch loss is: squared error for numbers, cross entropy for classes."""
        label = str(self.runs["task_label"][0] or "")
        return "mean squared error" if self.identity or label.endswith(_REGRESSION) else "cross entropy"

    @property
    def recipe(self) -> str:
        """Depth, width and training recipe."""
        known = {field: self.runs[field][0] for field in ("width", "steps", "batch", "lr", "samples")}
        shown = {field: "unrecorded" if value is None else f"{value:,.6g}" for field, value in known.items()}
        task = self.runs["task_label"][0]
        if task is None:  # a file that does not record its task has the one that the paper layout means
            data = f"{NO_DATA_SET} (read as the {self.runs['task'][0]} task, as the paper layout has it)"
        else:
            data = f"{task} task"
        others = f", trained by {self.rules[0]} (not shown: {', '.join(self.rules[1:])})" if self.rules[1:] else ""
        return (
            f"{self.depth} layers of width {shown['width']}, {self.weights}, {shown['steps']} steps of "
            f"batch {shown['batch']}, learning rate {shown['lr']}, {shown['samples']} training samples, {data}{others}"
        )

    @property
    def weights(self) -> str:
        """What the weights are: "weights × 1/√L (α = 0.224)"."""
        variant = self.runs["variant"][0]
        name = "weights" if variant is None else weights(variant)
        return name if self.alpha is None else f"{name} (α = {number(self.alpha, 3)})"

    def title(self, what: str, summary: pl.DataFrame) -> str:
        """A figure's title: what it shows, the weights and n."""
        return f"{what}, {self.weights}, {n_text(self, summary)}"


def pair_of(evidence: Evidence) -> Pair:
    """Both networks, checked to share one recipe; of several rules BP's runs, or those of the first by name."""
    runs = evidence.runs.filter(pl.col("model").is_in(PAIR_MODELS)).sort("model", "seed", "run")
    rules = dict(runs.select("rule", "rule_label").unique().sort(pl.col("rule") != "bp", "rule").iter_rows())
    if len(rules) > 1:
        runs = runs.filter(rule=next(iter(rules)))
    for model in PAIR_MODELS:
        if runs.filter(model=model).is_empty():
            raise NoData(f"no {model} run in {evidence.source}")
    check_recipe(runs, _PAIR_FIELDS, free="network and seed")
    _check_replicates(runs, "model")
    depth = runs["depth"][0]
    if depth is None:
        raise SondeError(f"{evidence.source} does not record the depth of its networks")
    labels = {model: str(runs.filter(model=model)["label"][0]) for model in PAIR_MODELS}
    return Pair(evidence.of_runs(runs), labels, depth, runs["alpha"][0], tuple(rules.values()))


def by_layer(pair: Pair, metric: str) -> Curves:
    """A metric of layers 1 … L of both networks, at the last epoch that has rows of it."""
    rows = pair.evidence.metric(metric)
    if rows.is_empty():
        raise NoData(f"no {metric} rows in {pair.source}")
    rows = rows.filter(pl.col("epoch") == pl.col("epoch").max())
    _check_both(pair, rows, metric, when=f" {moment(rows)}")
    return curves(pair, rows, "layer", range(1, pair.depth + 1))


def by_step(pair: Pair) -> Curves:
    """The loss of every step of both networks."""
    rows = pair.evidence.metric("batch_loss")
    _check_both(pair, rows, "batch_loss", called=" (loss_history in the paper layout)")
    first, last = rows.select(first=pl.col("step").min(), last=pl.col("step").max()).row(0)
    return curves(pair, rows, "step", range(first, last + 1))


def at_start(pair: Pair, metric: str) -> dict[str, Series]:
    """A metric of layers 1 … L at initialisation, by network; files of the paper layout hold none."""
    rows = pair.evidence.metric(metric).filter(epoch=0)
    return {line.key: line for line in curves(pair, rows, "layer", range(1, pair.depth + 1)).lines}


def _check_both(pair: Pair, rows: pl.DataFrame, metric: str, *, called: str = "", when: str = "") -> None:
    """Raise NoData if a network has no rows, or if no value is defined."""
    for model in PAIR_MODELS:
        if rows.filter(model=model).is_empty():
            raise NoData(f"no {metric} rows{called} of {model}{when} in {pair.source}")
    if not rows["defined"].any():
        reasons = ", ".join(sorted(set(rows["reason"].drop_nulls()))) or "no reason recorded"
        raise NoData(f"every {metric} value in {pair.source} is undefined: {reasons}")


def moment(rows: pl.DataFrame) -> str:
    """When the rows were measured: "at initialisation", "after 200 steps"."""
    epochs, steps = sorted(set(rows["epoch"])), rows["step"].drop_nulls().unique().to_list()
    if epochs == [0]:
        return AT_START
    return f"after {steps[0]} steps" if len(steps) == 1 else f"at epoch {epochs[-1]}"
