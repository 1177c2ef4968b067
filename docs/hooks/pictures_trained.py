"""Probes, rules and questions of the audit, drawn from runs that Sonde trained."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
from contrast import Case, Measure, draw_contrast, draw_portrait, keep_lines
from matplotlib.figure import Figure

from sonde.analysis.runs import evidence_lines
from sonde.core.formatting import Thresholds
from sonde.metrics import TRAINED, base_of, label_of
from sonde.show.figures import Evidence
from sonde.show.figures.groups import cohort_of, pair_of
from sonde.store.load import load
from sonde.studies import STUDIES
from sonde.studies.study import gather

DOCS = Path(__file__).parents[1]
sys.path.insert(0, str(DOCS / "findings"))

from write import found  # noqa: E402

EXAMPLES = DOCS / "examples" / "runs"
COMMANDS = {
    "residual": "sonde run residual --scale full",
    "rules": "sonde run rules --scale full",
    "audit": "sonde run audit --scale full",
    "digits": "python docs/examples/train.py",
    "parity": "sonde run rules --seeds 42 --only model=residual_mlp",
}


@dataclass(frozen=True)
class Trained:
    """One metric of two rules or networks of a study, a good one and a bad one."""

    study: str
    metric: str
    good: str
    bad: str
    derived: str = ""  # what is drawn, where it is not the metric itself
    along: str = ""  # by default what the metric is measured of; of the whole network, epochs
    log: bool | None = None  # by default as the metric is drawn
    level: float | None = None
    of: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows
    frame: str | None = None  # a rule that stands beside both
    words: tuple[str, str] = ("Good", "Bad")

    @property
    def measure(self) -> Measure:
        known = TRAINED[base_of(self.metric)]
        return Measure(
            name=self.derived or label_of(self.metric),
            along=self.along or ("epoch" if known.axis == "network" else known.axis),
            log=known.log if self.log is None else self.log,
            level=self.level,
            level_name="threshold",
        )


@dataclass(frozen=True)
class Ready:
    """One of the figures that the studies draw."""

    study: str
    figure: str


def _largest(rows: pl.DataFrame) -> pl.DataFrame:
    """Of all blocks, at every epoch."""
    return rows.sort("value", nulls_last=True).group_by("run", "epoch", maintain_order=True).last()


LIMITS = Thresholds()
PICTURES: dict[str, dict[str, Trained | Ready]] = {
    "probe": {
        "loss": Trained("residual", "loss", "res_mlp", "plain_mlp"),
        "hidden_norm": Trained("rules", "hidden_norm", "bp", "dfa"),
        "growth": Trained("rules", "growth", "bp", "drtp"),
        "branch_ratio": Trained("audit", "branch_ratio", "bp", "dfa"),
        "branch_cosine": Trained("audit", "branch_cosine", "state_bridge", "fa"),
        "grad_norm": Trained("residual", "grad_norm", "res_mlp", "plain_mlp"),
        "credit_norm": Trained(
            "rules", "credit_norm", "bp", "frozen", log=False, words=("To every layer", "To layer 0 alone")
        ),
        "credit_cosine": Trained("rules", "credit_cosine", "kp", "dfa"),
        "rho": Trained("rules", "rho", "kp", "dfa"),
        "nudge": Trained("rules", "nudge[0.01]", "kp", "dfa"),
        "cross_batch_cosine": Trained(
            "audit",
            "cross_batch_cosine",
            "frozen",
            "bp",
            along="epoch",
            words=("Batches agree", "They agree less and less"),
        ),
        "drift": Ready("audit", "weight_drift"),
        "activation_mean": Ready("residual", "activation_mean"),
        "activation_std": Ready("residual", "activation_std"),
        "preact_grad_norm": Ready("residual", "gradient_magnitude"),
        "trace": Ready("residual", "one_input"),
        "weight_alignment": Ready("rules", "rules_alignment"),
    },
    "diagnosis": {"not_learning": Trained("residual", "train_loss", "res_mlp", "plain_mlp")},
    "question": {
        "state_explosion": Trained(
            "audit",
            "growth",
            "bp",
            "dfa",
            "largest growth of a block",
            along="epoch",
            level=LIMITS.growth,
            of=_largest,
        ),
        "gradient_collapse": Trained(
            "rules",
            "rho/bp",
            "bp",
            "dfa",
            f"{TRAINED['rho'].symbol} of the BP gradient",
            level=LIMITS.ceiling,
            words=("Resolved", "Resolved, too"),
        ),
        "credit_at_chance": Trained("rules", "rho", "mirror", "drtp"),
        "blocks_hurt": Trained("digits", "test_acc", "bp", "drtp", frame="frozen"),
    },
}
"""A probe without a line here has no picture."""


def command(study: str) -> str:
    """What trains the runs of a picture, as its caption ends."""
    return f"Command: `{COMMANDS[study]}`"


@cache
def evidence_of(study: str) -> Evidence:
    if study == "digits":
        stored = load(EXAMPLES)
        runs = evidence_lines(stored.runs)
        rows = stored.rows.join(runs.select("run"), on="run", how="semi")
        return Evidence(rows, runs, "docs/examples/runs")
    if study == "parity":
        stored = load(DOCS / "rules-runs")
        configs = STUDIES["rules"].configs("quick", (42,))
        return gather(stored, configs, "docs/rules-runs").evidence
    of = "residual_mlp" if study == "rules" else None  # a picture has one network
    return found(load(DOCS / "findings" / "runs"), study, model=of).evidence


def draw_trained(what: Trained) -> tuple[Figure, str]:
    evidence = evidence_of(what.study)
    evidence = evidence.of(variant="scaled") if what.study == "residual" else evidence
    group: Any = pair_of(evidence) if what.study == "residual" else cohort_of(evidence)
    keys = (what.good, what.bad)
    group = keep_lines(group, keys)
    rows = what.of(group.evidence.metric(what.metric))
    last = pl.col("epoch") == pl.col("epoch").max()
    beside: dict[str, pl.DataFrame] = {}
    moment = also = ""
    measure = what.measure
    if measure.along in ("layer", "block"):
        rows = rows.with_columns(block="layer")
        moment = f", epoch {rows['epoch'].max()}"
        beside = {"at init": rows.filter(epoch=0)}
        controls = {"chance": "null", "ceiling (BP)": "bp"}
        for label, control in controls.items():
            measured = group.evidence.metric(f"{what.metric}/{control}")
            if not measured.is_empty():
                beside = {**{k: v for k, v in beside.items() if k != "at init"}, label: measured.filter(last)}
        rows = rows.filter(last)
    if what.frame is not None:
        framed = evidence.metric(what.metric).filter(rule=what.frame)
        beside = {what.frame: pl.concat([framed.with_columns(rule=pl.lit(key)) for key in keys])}
        ids = framed["run"].unique().sort().to_list()
        also = f" Grey: {what.frame}, the mean of {len(ids)} runs: {', '.join(ids)}."
    cases = [
        Case(title=f"{word}: {group.labels[key]}", key=key, beside=beside)
        for word, key in zip(what.words, keys, strict=True)
    ]
    figure, caption = draw_contrast(
        group,
        rows,
        cases,
        measure,
        title=f"{what.metric}{moment}",
        shown=f"`{what.metric}`{moment}: {measure.name}.{also}",
    )
    return figure, f"{caption.strip()}. {command(what.study)}"


def trained_rules() -> set[str]:
    """The rules that have a stored run, by the names of the folders; a rule without one has no picture."""
    stores = (DOCS / "findings" / "runs", DOCS / "rules-runs")
    return {run.name.split("-")[1] for store in stores for run in store.glob("[!.]*")}


def draw_rule(name: str) -> tuple[Figure, str]:
    """A rule's portrait on parity, which frozen blocks do not learn; on CIFAR-10 where no run on parity is stored."""
    for study in ("parity", "rules"):
        evidence = evidence_of(study).of(model="residual_mlp")
        if name in evidence.runs["rule"]:
            figure, caption = draw_portrait(evidence, name)
            return figure, f"{caption.strip()}. {command(study)}"
    raise LookupError(f"no stored run under {name}: train it, and hand it round into docs/rules-runs")
