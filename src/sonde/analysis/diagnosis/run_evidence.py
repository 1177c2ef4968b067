"""What diagnoses read of a run.

Of a watched run: rows, facts of the first step, results of experiments.  Of a trained run: rows by epoch, in which
layers stand for modules, and the answers of the audit.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from sonde.analysis.audit import RuleAudit, RunAudit
from sonde.core.formatting import number
from sonde.core.seed_statistics import summarise
from sonde.metrics import NONFINITE
from sonde.store.run import Run

EARLY = 10  # the first steps, which are all measured
FEWEST_STEPS = 100  # a run of fewer steps may be short, not faulty
LARGE_STEP = 0.3  # ‖ΔW‖/‖W‖ of a step
FAILED = 0.1  # score below which a run failed
_END_METRICS = ("train_acc", "test_acc", "test_loss")  # of a trained run, besides the training loss
_MAP_LOSSES = frozenset({"NllLossNd", "NllLoss2D", "NllLoss2d"})  # with the classes at axis 1
CLASS_LOSSES = _MAP_LOSSES | {"NllLoss", "LogSoftmax"}
BINARY_LOSSES = frozenset({"BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"})
_DISTANCE_LOSSES = frozenset({"MseLoss", "SmoothL1Loss", "HuberLoss", "L1Loss"})
_MEASURES = CLASS_LOSSES | BINARY_LOSSES | _DISTANCE_LOSSES
_POLICY_OPS = frozenset({"Gather", "LogSumExp", "Logsumexp", "Exp", "Log"})
"""Operations by which a loss weighs the logarithm of a probability: of actions, rewards and advantages."""
SHAPE_OPS = frozenset(
    {"View", "UnsafeView", "Reshape", "ReshapeAlias", "Transpose", "Permute", "Squeeze", "Clone", "Alias"}
)
"""Operations of a loss, as autograd names them."""
_FEW_TARGETS = 32  # with fewer, shares of classes are not known
_BETTER = 3.0  # standard errors by which a loss must differ
_SUCCESS_LOOKS = 6  # values of a success metric that show a trend
_COSTS = ("loss", "error", "perplexity", "mse", "mae", "rmse", "nll", "wer", "cer", "fid")
"""Words in names of metrics that should fall."""
LINEAR_OPS = ("Addmm", "Mm", "Convolution", "Linear", "MkldnnLinear")
"""Operations that multiply by weights."""
HAS_NO_GRADIENT = "the parameter has no gradient"  # a row's reason
WEIGHTED_KINDS = ("linear", "convolution", "recurrent", "attention")
"""Kinds of modules that multiply their input by weights."""


_LAYER_METRICS = {"hidden_norm": "out_rms", "grad_norm": "grad_rms"}
"""Norms of a state, and the metrics that they become when divided by √width."""

_RUN_METRICS = ("train_loss", *_END_METRICS)
TRAINED_METRICS = (*_RUN_METRICS, *_LAYER_METRICS)
"""What the diagnoses of a trained run read beside the rows of its audit."""


def _log_classes(classes: Any) -> float | None:
    """log(classes), if a configuration has a valid number."""
    return math.log(classes) if isinstance(classes, int) and classes > 0 else None


CONSTANT_LOSS: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "identity": lambda task: 1 / 3,  # the variance of U(−1, 1)
    "linear_quadratic": lambda task: None,  # targets do not depend on inputs: no network beats a constant
    "teacher": lambda task: _log_classes(task.get("classes")),
    "digits": lambda task: math.log(10),
    "parity": lambda task: math.log(2),
    "rhm": lambda task: _log_classes(task.get("classes")),
    "cifar10": lambda task: math.log(10),
}
"""The loss of a constant answer by task: the mean of the targets, or equal probabilities for all classes.

None where it does not tell whether a run learns.
"""


def loss_score(trials: Mapping[str, Any], loss: float | None) -> float | None:
    """How far a loss on the batch of the experiments came, from the best constant answer (0) to the lowest loss (1).

    None where the experiments do not know both of these, or where they are equal.
    """
    known = trials.get("loss")
    known = known if isinstance(known, Mapping) else {}
    trivial, floor = known.get("trivial"), known.get("floor")
    if loss is None or trivial is None or floor is None or not trivial - floor > 1e-9 * max(1.0, abs(trivial)):
        return None
    return float((trivial - loss) / (trivial - floor))


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

    rule: RuleAudit  # over all seeds
    run: RunAudit | None  # None: it diverged
    diverged: int | None = None  # after which epoch


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """Rows, facts, results of experiments and audit of one run; computes what several diagnoses ask for."""

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
    def targets(self) -> Mapping[str, Any]:
        """Statistics of the targets, from experiments or from the first step; empty where they were not seen."""
        return self.trial("targets") or next(iter(self.facts.get("targets", [])), None) or {}

    @cached_property
    def parameters(self) -> list[dict[str, Any]]:
        """Facts about the parameters, in the order of the model."""
        return list(self.facts.get("parameters", []))

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
    def loss_of_chance(self) -> float | None:
        """The loss of the best constant answer: as the task of a trained run says; of a watched one from the targets
        seen, where the operations of the loss show a plain cross-entropy or mean squared error.
        """
        if self.audited is not None:
            known: float | None = self.facts["constant_loss"]
            return known
        if not self.facts.get("output_shape") or not self.loss_ops or self.first_loss is None:
            return None
        if self.loss_ops <= {"MseLoss", *SHAPE_OPS} and "MseLoss" in self.loss_ops:
            return self._variance
        return self._entropy

    @property
    def _variance(self) -> float | None:
        """The mean squared error of the mean of each target; None where the loss may be no mean."""
        targets = self._only_targets
        spread, size, out = targets.get("feature_variance"), targets.get("rms"), self.at("out_rms", "(model)")
        if not spread or size is None or out is None or self.first_loss is None:
            return None
        return float(spread) if self.losses.get(0, self.first_loss) <= 1.1 * (size + out) ** 2 else None

    @property
    def _entropy(self) -> float | None:
        """The entropy of the shares of classes."""
        shape, ops = self.facts["output_shape"], self.loss_ops
        named, binary = ops & CLASS_LOSSES, ops & BINARY_LOSSES
        if not named | binary or ops - CLASS_LOSSES - BINARY_LOSSES - SHAPE_OPS or len(shape) < 1 + bool(named):
            return None
        classes = 2 if binary else self._classes
        if classes is None or self.first_loss is None:
            return None
        many = math.prod(shape) // (1 if binary else classes)
        equal = math.log(classes)
        one = min(equal, self._entropy_of_targets)
        summed = abs(self.first_loss - many * equal) < 0.3 * many * equal
        return (many * one if summed and many > 3 else one) or None

    @property
    def _entropy_of_targets(self) -> float:
        """The entropy of the targets seen; ∞ where they are too few or not known."""
        known = self._only_targets.get("entropy")
        few = math.prod(self._only_targets.get("shape") or [0]) < _FEW_TARGETS
        return math.inf if known is None or few else float(known)

    @property
    def _only_targets(self) -> Mapping[str, Any]:
        """Statistics of the first step's targets, where the loss was called once."""
        known = self.facts.get("targets") or []
        return known[0] if len(known) == 1 else {}

    @property
    def _classes(self) -> int | None:
        """The number of classes of a cross-entropy: the size of the class axis of the output.

        As it is (samples × classes × …), or as the loss sees it (places × classes); where neither is known, the one
        axis that the targets lack.
        """
        shape, ops = self.facts["output_shape"], self.loss_ops
        if len(shape) == 2:
            return int(shape[-1])
        if ops & _MAP_LOSSES and not ops & {"Transpose", "Permute"}:
            return int(shape[1])
        in_loss = self.facts.get("loss_shape") or []
        if len(in_loss) > 1 and math.prod(in_loss) == math.prod(shape):
            return int(in_loss[1])
        targets = [known["shape"] for known in self.facts.get("targets") or []][:1]
        fitting = {shape[axis] for axis in (1, -1) if targets == [[*shape[:axis], *shape[axis:][1:]]]}
        return int(fitting.pop()) if len(fitting) == 1 else None

    @cached_property
    def is_distance(self) -> bool:
        """Whether the loss consists of the operations of a mean distance only."""
        ops = self.loss_ops
        of_numbers = bool(ops & _DISTANCE_LOSSES) or ops >= {"Mean", "Abs", "Sub"}
        return of_numbers and not ops - _DISTANCE_LOSSES - SHAPE_OPS - {"Mean", "Abs", "Sub", "Expand"}

    @cached_property
    def moved(self) -> float | None:
        """How far weight matrices moved, in their norms: the median of mean ‖ΔW‖/‖W‖ × steps."""
        known = [statistics.fmean(steps.values()) for steps in self.update_ratios if steps]
        return statistics.median(known) * self.steps if known else None

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

    def score_of(self, loss: float | None) -> float | None:
        """`loss_score` of a loss on the batch of the experiments."""
        return loss_score(self.trials or {}, loss)

    @cached_property
    def score(self) -> float | None:
        """How far the run came, from a constant answer (0) to the lowest loss (1).

        On the batch of the experiments, or in its last steps if that is less; without experiments by the logged
        loss, where that of a constant is known.
        """
        if self.steps == 0:  # before training, fifty steps on the batch stand for the run
            return self.fit("1")
        if self.plays:
            return None
        on_batch = self.trial("score")
        if on_batch is None:
            return None if self.trials is not None else self._score_of_log
        at_end = self.score_of(self.last_loss) if self._same_loss else None
        fits = on_batch >= 0.5 and (self.fell or 0.0) >= 0.5  # the batch is harder or easier than the last ones
        return float(on_batch) if at_end is None or fits else min(float(on_batch), at_end)

    @property
    def _score_of_log(self) -> float | None:
        if not self.loss_of_chance or self.last_loss is None:
            return None
        return max(1 - self.last_loss / self.loss_of_chance, self._by_samples)

    @property
    def _by_samples(self) -> float:
        """The same of a trained run by its test samples and by the share of right answers: dropout, or answers that are
        too bold, make a loss high without it.
        """
        if self.audited is None or self.loss_of_chance is None:
            return -math.inf
        chance = math.exp(-self.loss_of_chance)
        ends = {metric: known[max(known)] for metric in _END_METRICS if (known := self.of_run(metric))}
        reached = [(ends[metric] - chance) / (1 - chance) for metric in ("train_acc", "test_acc") if metric in ends]
        return max([*reached, 1 - ends.get("test_loss", math.inf) / self.loss_of_chance])

    @property
    def _same_loss(self) -> bool:
        """Whether the logged loss is that of the experiments: they agree on the first step."""
        logged, found = self.losses.get(0), self.trial("loss_start")
        return logged is not None and found is not None and abs(logged - found) <= 0.3 * max(abs(logged), abs(found))

    def fit(self, name: str) -> float | None:
        """The score after fifty steps on the batch in one of the fits; −∞ where they diverge."""
        known = self.trial("fits", name)
        if known is None or "failed" in known:
            return None
        return -math.inf if known["last"] is None else self.score_of(known["last"])

    def gain(self, name: str) -> float | None:
        """The score that one change adds in fifty steps on the batch, between −1 and 1; None where it was not tried."""
        with_it, without = self.fit(name), self.fit("1")
        if with_it is None or without is None:
            return None
        return min(max(with_it, -1.0), 1.0) - min(max(without, -1.0), 1.0)

    # Does it learn?

    @cached_property
    def success(self) -> bool | None:
        """Whether a metric that the user logs (reward, accuracy) became better; None where none was logged.

        Its last third is compared with its first, by the standard error of their difference.
        """
        answers = [
            self._improved(list(steps.values()), lower=any(word in name.casefold() for word in _COSTS))
            for name, steps in self.series("success").items()
            if len(steps) >= _SUCCESS_LOOKS
        ]
        return any(answers) if answers else None

    @staticmethod
    def _improved(values: Sequence[float], *, lower: bool) -> bool:
        third = max(2, len(values) // 3)
        early, late = values[:third], values[-third:]
        first, last = summarise(early), summarise(late)
        error = math.hypot(first.std, last.std) / math.sqrt(third)
        risen = last.mean - first.mean
        return (-risen if lower else risen) > max(_BETTER * error, 1e-9)

    @cached_property
    def is_measure(self) -> bool:
        """Whether a loss that does not fall shows that nothing is learned: not so where players compete, where actions
        are rewarded, or where targets move.
        """
        if self.audited is not None or self.success is not None:
            return True
        ops = self.loss_ops
        if self.plays or (ops & _POLICY_OPS and not ops & _MEASURES):
            return False
        return self.trial("score") is not None or "NllLoss" in ops or not any(x < 0 for x in self.losses.values())

    @cached_property
    def plays(self) -> bool:
        """Whether the model is one of two players: a discriminator, called several times a step with targets that are
        all equal in each call; or a generator, whose yes or no another network gives.
        """
        if self.loss_ops & BINARY_LOSSES and self.loss_ops & {*LINEAR_OPS}:
            return True
        seen = self.facts.get("targets") or ([self.trial("targets")] if self.trial("targets", "shape") else [])
        if self.model_calls < 2 or "NllLoss" in self.loss_ops:
            return False
        return all(one.get("std") == 0 for one in seen)

    @property
    def model_calls(self) -> int:
        """How often the model was called in the first step: outputs of several passes are pooled in its rows."""
        shape: list[int] = next((one["shape"] for one in self.modules if one["name"] == "(model)"), [])
        rows = self.rows.filter(
            (pl.col("metric") == "out_rms") & (pl.col("module") == "(model)") & (pl.col("step") == 0)
        )
        pooled = int(rows["samples"][0]) if rows.height and "samples" in rows.columns else 0
        return max(1, round(pooled / shape[0]) if shape and shape[0] else 1)

    @cached_property
    def _noise(self) -> float:
        """The standard error of the last loss."""
        known = list(self.losses.values())
        tail = known[-max(self._fewest, len(known) // 10) :]
        return summarise(tail).std / math.sqrt(len(tail)) if len(tail) > 1 else math.inf

    @property
    def learned(self) -> bool | None:
        """Whether the score is at least 0.5; without a score, whether the loss halved."""
        if self.broke is not None:
            return False
        if self.success is not None:
            return self.success
        if self.score is not None:
            return self.score >= 0.5
        return None if self.fell is None else self.fell >= 0.5

    @property
    def failed(self) -> bool:
        """Whether the run certainly learned almost nothing."""
        if self.broke is not None:
            return True
        if self.success is not None:
            return not self.success
        if self.score is not None:
            return self.score < FAILED
        return self.is_measure and self.fell is not None and self.fell < FAILED and not self._falls

    @property
    def _falls(self) -> bool:
        """Whether the loss fell a little, but by more than its noise."""
        fallen = (self.first_loss or 0.0) - (self.last_loss or 0.0)
        return (self.fell or 0.0) > FAILED / 5 and fallen > _BETTER * self._noise and len(self.losses) > EARLY

    @cached_property
    def beats_a_constant(self) -> bool | None:
        """Whether the run ends better than a constant answer, by more than the noise of its loss; None: not known."""
        chance = self.trial("loss", "trivial") if self._same_loss else None
        chance = self.loss_of_chance if chance is None else chance
        if self.success is not None or chance is None or self.last_loss is None:
            return self.success
        return (self.score or 0.0) >= FAILED or self.last_loss < chance - max(_BETTER * self._noise, 0.01 * abs(chance))

    @property
    def learning(self) -> str:
        """That the run learns, as a sentence; empty where it does not, or where that is not known."""
        if self.failed or self.learned is None or not self.is_measure:
            return ""
        if self.success:
            return "The metric that was logged became better."
        if self.first_loss is None or self.last_loss is None or self.beats_a_constant is False:
            return ""
        falls = self.last_loss < self.first_loss or self.learned
        return f"It learns: the loss fell from {number(self.first_loss, 3)} to {number(self.last_loss, 3)}." * falls

    @property
    def not_asked(self) -> str:
        """What could not be asked, and why, as a sentence; empty where it was asked."""
        if self.steps == 0 or self.learning or self.broke is not None:
            return ""
        if self.audited is not None and self.audited.rule.rule == "frozen":
            return "Whether it learns was not asked, because frozen blocks are a baseline."
        if self.first_loss is None and self.success is None and self.trial("score") is None:
            return (
                "Whether it learns was not asked, because no loss was seen: give loss= a module, "
                "or call watch.log(loss) in the loop."
                if self.audited is None
                else "Whether it learns was not asked, because no loss was stored."
            )
        if not self.is_measure:
            return (
                "Whether it learns was not asked, because this loss is no measure of success: log one, "
                "as in watch.log(loss, reward=value)."
            )
        return f"Whether it learns is not known: its loss did not fall clearly in {self.length}."


def evidence_of_trained(run: Run, rows: pl.DataFrame, audited: Audited) -> RunEvidence:
    """The evidence of a trained run in a store.  The stored gradient is BP's, so it is read only for runs by BP."""
    width, layers, task = run.about["width"], dict(_LAYER_METRICS), run.complete_config["task"]
    if not width:  # several widths, or an unknown one
        layers.clear()
    if run.config["rule"]["name"] != "bp":
        layers.pop("grad_norm", None)
    of_layers = rows.filter(pl.col("metric").is_in(layers)).with_columns(
        pl.col("metric").replace(layers),
        value=pl.col("value") / math.sqrt(width or 1),
        module=pl.format("layer {}", "layer"),
    )
    of_run = rows.filter(pl.col("metric").is_in(_RUN_METRICS))
    is_loss = (pl.col("metric") == "train_loss") | ((pl.col("metric") == "test_loss") & (pl.col("epoch") == 0))
    losses = of_run.filter(is_loss).with_columns(metric=pl.lit("loss"))
    constant = CONSTANT_LOSS.get(task["name"])
    return RunEvidence(
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


def evidence_of_watched(run: Run, rows: pl.DataFrame) -> RunEvidence:
    """The evidence of a watched run in a store."""
    own = rows.filter(pl.col("run") == run.id)
    steps = max(run.manifest.step or 0, 0 if own.is_empty() else int(str(own["step"].max())) + 1)
    return RunEvidence(rows=own, facts=run.facts, steps=steps, trials=run.facts.get("experiments"))
