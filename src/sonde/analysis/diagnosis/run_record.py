"""What was recorded of a run: rows, facts of the first step, results of experiments; of a trained run, its audit.

Of a trained run, rows are by epoch, and layers stand for modules.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from sonde.metrics import NONFINITE

if TYPE_CHECKING:
    from sonde.analysis.audit import RuleAudit, RunAudit

EARLY = 10  # the first steps, which are all measured
NEARLY_UNMOVED = 0.1  # how far weights moved in all steps, in their norms
LARGE_STEP = 0.3  # ‖ΔW‖/‖W‖ of a step
MAP_LOSSES = frozenset({"NllLossNd", "NllLoss2D", "NllLoss2d"})  # with the classes at axis 1
CLASS_LOSSES = MAP_LOSSES | {"NllLoss", "LogSoftmax"}
BINARY_LOSSES = frozenset({"BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"})
DISTANCE_LOSSES = frozenset({"MseLoss", "SmoothL1Loss", "HuberLoss", "L1Loss"})
SHAPE_OPS = frozenset(
    {"View", "UnsafeView", "Reshape", "ReshapeAlias", "Transpose", "Permute", "Squeeze", "Clone", "Alias"}
)
"""Operations of a loss, as autograd names them."""
LINEAR_OPS = ("Addmm", "Mm", "Convolution", "Linear", "MkldnnLinear")
"""Operations that multiply by weights."""
HAS_NO_GRADIENT = "the parameter has no gradient"  # a row's reason
WEIGHTED_KINDS = ("linear", "convolution", "recurrent", "attention")
"""Kinds of modules that multiply their input by weights."""
_FORMER_KEYS = {"nearest": "neighbours"}  # of experiments that earlier versions stored


def describe_nonfinite(module: str | None, value: float, reason: str | None) -> str:
    """What a row of the metric `nonfinite` says, as a clause."""
    if reason is not None:
        return f"a value is not finite: {reason}"
    if module is None:
        return "the loss is not finite, though every output is"
    return f"the {NONFINITE.get(value, 'output')} of {module} is the first that is not finite"


@dataclass(frozen=True, kw_only=True)
class Audited:
    """A run that Sonde trained, as the audit sees it."""

    rule: "RuleAudit"  # over all seeds
    run: "RunAudit | None"  # None: it diverged
    diverged: int | None = None  # after which epoch


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Rows, facts, results of experiments and audit of one run."""

    rows: pl.DataFrame  # step, module, metric, value, defined, reason, …
    facts: Mapping[str, Any]
    steps: int  # optimiser steps of the run
    trials: Mapping[str, Any] | None = None  # results of experiments on a copy of the model
    audited: Audited | None = None  # of a trained run; its layers stand for modules
    epochs: Mapping[int, int] = field(default_factory=dict)  # of a trained run: step → epoch

    @property
    def length(self) -> str:
        """The length of the run as text."""
        if self.audited is None:
            return f"{self.steps} steps"
        return f"{self.audited.diverged if self.audited.run is None else self.audited.run.run.epochs} epochs"

    def when(self, step: int) -> str:
        """A time as text: the step, or the epoch of a trained run."""
        return f"step {step}" if self.audited is None else f"epoch {self.epochs[step]}"

    @property
    def at_first(self) -> str:
        """The beginning as text: a trained run is first measured before its first step."""
        return "In the first steps" if self.audited is None else "At initialisation"

    # Rows

    @cached_property
    def _by_metric(self) -> dict[str, dict[str | None, dict[int, float]]]:
        found: dict[str, dict[str | None, dict[int, float]]] = {}
        known = self.rows.filter(pl.col("defined")).select("metric", "module", "step", "value")
        for metric, module, step, value in known.iter_rows():
            found.setdefault(metric, {}).setdefault(module, {})[step] = value
        return found

    def series(self, metric: str) -> dict[str, dict[int, float]]:
        """module → step → value, where defined."""
        return {name: steps for name, steps in self._by_metric.get(metric, {}).items() if name is not None}

    def of_run(self, metric: str) -> dict[int, float]:
        """step → value of a metric of the whole run."""
        return self._by_metric.get(metric, {}).get(None, {})

    def at(self, metric: str, module: str, step: int = 0) -> float | None:
        """The value of a module's metric at a step; None where it is undefined or was not measured."""
        return self._by_metric.get(metric, {}).get(module, {}).get(step)

    @cached_property
    def watched(self) -> list[int]:
        """Steps with measurements of modules."""
        there = (
            self.rows.filter(pl.col("module").is_not_null() & (pl.col("metric") != "success"))["step"].unique().sort()
        )
        return there.to_list()

    # Facts

    @cached_property
    def modules(self) -> list[dict[str, Any]]:
        """Modules that were called, in the order in which they returned."""
        return [module for module in self.facts.get("modules", []) if module["calls"]]

    @cached_property
    def leaves(self) -> list[dict[str, Any]]:
        """Modules that contain no other called module."""
        names = [module["name"] for module in self.modules]
        return [
            m
            for m in self.modules
            if m["name"] != "(model)" and not any(other.startswith(f"{m['name']}.") for other in names)
        ]

    @cached_property
    def depth(self) -> list[tuple[str, float]]:
        """Modules with weights, or states of a trained run, in order, each with √(numbers per sample)."""
        if self.audited is not None:
            return [(name, math.sqrt(self.facts["width"])) for name in self.facts["states"]]
        return [
            (m["name"], math.sqrt(max(1, math.prod(m["shape"][1:]))))
            for m in self.leaves
            if m.get("kind") in WEIGHTED_KINDS and m["shape"]
        ]

    @cached_property
    def loss_ops(self) -> frozenset[str]:
        """Operations of the loss, as autograd names them."""
        return frozenset(self.facts.get("loss_ops") or [])

    @property
    def has_broken_inputs(self) -> bool:
        """Whether inputs hold values that are not finite."""
        return self.broken_share > 0

    @property
    def broken_share(self) -> float:
        """The largest share of an input that is not finite; a mask of zeros and −∞ does not count."""
        known = self.trial("inputs") or self.facts.get("inputs") or []
        return max((one.get("not_finite_share") or 0.0 for one in known if one.get("max") != 0), default=0.0)

    @property
    def targets(self) -> Mapping[str, Any]:
        """Statistics of the targets, from experiments or from the first step; empty where they were not seen."""
        return self.trial("targets") or next(iter(self.facts.get("targets", [])), None) or {}

    @cached_property
    def parameters(self) -> list[dict[str, Any]]:
        """Facts about the parameters, in the order of the model."""
        return list(self.facts.get("parameters", []))

    @cached_property
    def copies(self) -> frozenset[str]:
        """Parameters without a gradient that begin as copies of one that learns: a target network, a moving average."""
        learning = {self.look(p) for p in self.parameters if p["requires_grad"] and p["in_optimiser"] is not False}
        still = [p for p in self.parameters if p.get("start") and not p["requires_grad"]]
        return frozenset(p["name"] for p in still if self.look(p) in learning)

    @staticmethod
    def look(parameter: Mapping[str, Any]) -> tuple[Any, ...]:
        """Shape and statistics of the initial values of a parameter; equal for a copy of it."""
        start = parameter.get("start") or {}
        return (*(parameter["shape"] or []), *(start.get(key) for key in ("mean", "std", "max")))

    def moves(self, parameter: str) -> bool:
        """Whether the norm of a parameter changes during the run."""
        return len({*self.series("weight_norm").get(parameter, {}).values()}) > 1

    @cached_property
    def decays(self) -> list[float]:
        """Weight decay of each parameter group."""
        return [group.get("weight_decay") or 0.0 for one in self.facts.get("optimisers", []) for group in one["groups"]]

    @property
    def has_further_terms(self) -> bool:
        """Whether the loss has terms that the output of the model does not enter: of codes, weights, other outputs."""
        return bool(self.facts.get("further_terms")) and self.model_calls == 1

    def of_pairs(self, name: str) -> Any:
        """What a batch tells of inputs and their targets: that of the experiments, or of the first step."""
        if self.trials is None:
            return (self.facts.get("pairs") or {}).get(name)
        return self.trial(name if name in self.trials else _FORMER_KEYS.get(name, name))

    def owner(self, parameter: str) -> str:
        """The module that a parameter belongs to."""
        return parameter.rpartition(".")[0] or "(model)"

    @cached_property
    def update_ratios(self) -> list[dict[int, float]]:
        """step → ‖ΔW‖/‖W‖ of each weight matrix."""
        matrices = {p["name"] for p in self.parameters if len(p["shape"] or []) > 1}
        return [steps for name, steps in self.series("update_ratio").items() if name in matrices]

    @cached_property
    def step_size(self) -> float | None:
        """The median over weight matrices of the largest ‖ΔW‖/‖W‖ of the first ten steps."""
        early = [[value for step, value in steps.items() if step < EARLY] for steps in self.update_ratios]
        return statistics.median(largest) if (largest := [max(values) for values in early if values]) else None

    @property
    def has_large_steps(self) -> bool:
        """Whether the first steps are large, or usual ones after a warm-up: then growth comes from the rate."""
        usual = max((statistics.median(steps.values()) for steps in self.update_ratios), default=0.0)
        return max(self.step_size or 0.0, 10 * usual) >= LARGE_STEP

    @cached_property
    def kinds(self) -> dict[str, str | None]:
        """Name of a called module → its kind (linear, norm, …); None where it is of no known kind."""
        return {module["name"]: module.get("kind") for module in self.modules}

    @cached_property
    def types(self) -> dict[str, str]:
        """Name of a called module → its class."""
        return {module["name"]: module["type"] for module in self.modules if module.get("type")}

    @cached_property
    def without_gradient(self) -> set[str]:
        """Parameters that had no gradient in any watched step; a gradient that is not finite counts as one."""
        never = (pl.col("reason") == HAS_NO_GRADIENT).fill_null(False).all()
        known = self.rows.filter(pl.col("metric") == "weight_grad_norm").group_by("module").agg(never)
        return {module for module, had_none in known.iter_rows() if had_none}

    # The loss

    @cached_property
    def losses(self) -> dict[int, float]:
        """step → loss, in the order of steps."""
        return dict(sorted(self.of_run("loss").items()))

    @property
    def _fewest(self) -> int:
        """How many losses to average at least: 3 of steps, 1 of epochs, which are means already."""
        return 3 if self.audited is None else 1

    @cached_property
    def first_loss(self) -> float | None:
        """The mean of the first three steps; the first alone where the mean is more than twice as large."""
        known = list(self.losses.values())[: self._fewest]
        if not known:
            return None
        mean = statistics.fmean(known)
        return known[0] if abs(mean) > 2 * abs(known[0]) > 0 else mean

    @cached_property
    def last_loss(self) -> float | None:
        """The mean of the last tenth, three steps at least."""
        known = list(self.losses.values())
        return statistics.fmean(known[-max(self._fewest, len(known) // 10) :]) if known else None

    @cached_property
    def fell(self) -> float | None:
        """The relative decrease of the loss."""
        if self.first_loss is None or self.last_loss is None or self.first_loss == 0:
            return None
        return (self.first_loss - self.last_loss) / abs(self.first_loss)

    @cached_property
    def is_distance(self) -> bool:
        """Whether the loss consists of the operations of a mean distance only."""
        ops = self.loss_ops
        of_numbers = bool(ops & DISTANCE_LOSSES) or ops >= {"Mean", "Abs", "Sub"}
        return of_numbers and not ops - DISTANCE_LOSSES - SHAPE_OPS - {"Mean", "Abs", "Sub", "Expand"}

    @cached_property
    def moved(self) -> float | None:
        """How far weight matrices moved, in their norms: the median of mean ‖ΔW‖/‖W‖ × steps."""
        known = [statistics.fmean(steps.values()) for steps in self.update_ratios if steps]
        return statistics.median(known) * self.steps if known else None

    @property
    def is_unmoved(self) -> bool:
        """Whether all steps together hardly moved the weights."""
        return self.moved is not None and self.moved < NEARLY_UNMOVED

    @cached_property
    def broke(self) -> int | None:
        """The first step in which something was not finite."""
        if self.audited is not None:
            return None if self.audited.diverged is None else self.steps
        found = self.rows.filter(pl.col("metric") == "nonfinite")["step"]
        return None if found.is_empty() else int(found.min())  # type: ignore[arg-type]

    # Experiments

    def trial(self, *path: str) -> Any:
        """A result of the experiments by its path of keys, or None."""
        found: Any = self.trials
        for key in path:
            if not isinstance(found, Mapping):
                return None
            found = found.get(key)
        return found

    @property
    def model_calls(self) -> int:
        """How often the model was called in the first step: outputs of several passes are pooled in its rows."""
        shape: list[int] = next((one["shape"] for one in self.modules if one["name"] == "(model)"), [])
        rows = self.rows.filter(
            (pl.col("metric") == "out_rms") & (pl.col("module") == "(model)") & (pl.col("step") == 0)
        )
        pooled = int(rows["samples"][0]) if rows.height and "samples" in rows.columns else 0
        return max(1, round(pooled / shape[0]) if shape and shape[0] else 1)
