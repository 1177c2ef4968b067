"""Whether a run learns, and whether it could: what diagnoses read of it beside its record."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from sonde.analysis.diagnosis.constant_answer import (
    CONSTANT_LOSS,
    FEW_TARGETS,
    loss_of_constant,
    loss_score,
    pooled_variance,
)
from sonde.analysis.diagnosis.run_record import (
    BINARY_LOSSES,
    CLASS_LOSSES,
    DISTANCE_LOSSES,
    EARLY,
    LINEAR_OPS,
    Audited,
    RunRecord,
)
from sonde.core.formatting import number
from sonde.core.seed_statistics import summarise
from sonde.store.run import Run

FEWEST_STEPS = 100  # a run of fewer steps may be short, not faulty
FAILED = 0.1  # score below which a run failed
LEARNED = 0.5  # score from which on it learned
CLEARLY = 0.02  # share of a constant answer's loss by which another is better
DONE = 0.9  # score from which on no more is asked of a run
HELPED = 0.3  # score that a copy must reach with it
HELPS = 0.2  # score that a change must add in fifty steps on a copy
FIT_STEPS = 50  # on one batch, in the experiments; a large model gets fewer
_END_METRICS = ("train_acc", "test_acc", "test_loss")  # of a trained run, besides the training loss
_COMPARISONS = frozenset({"Sum", "Div", "Mul", "Bmm", "Cat", "Exp", "Neg", "Pow", "Sqrt", "LinalgVectorNorm", "Cdist"})
_MEASURES = CLASS_LOSSES | BINARY_LOSSES | DISTANCE_LOSSES
POLICY_OPS = frozenset({"Gather", "LogSumExp", "Logsumexp", "Exp", "Log"})
"""Operations by which a loss weighs the logarithm of a probability: of actions, rewards and advantages."""
_BETTER = 3.0  # standard errors by which a loss must differ
_SUCCESS_LOOKS = 6  # values of a success metric that show a trend
_COSTS = ("loss", "error", "perplexity", "mse", "mae", "rmse", "nll", "wer", "cer", "fid")
"""Words in names of metrics that should fall."""


_LAYER_METRICS = {"hidden_norm": "out_rms", "grad_norm": "grad_rms"}
"""Norms of a state, and the metrics that they become when divided by √width."""

_RUN_METRICS = ("train_loss", *_END_METRICS)
TRAINED_METRICS = (*_RUN_METRICS, *_LAYER_METRICS)
"""What the diagnoses of a trained run read beside the rows of its audit."""


@dataclass(frozen=True, kw_only=True)
class RunEvidence(RunRecord):
    """The record of a run, and what several diagnoses ask of it: does it learn, and could it?"""

    @cached_property
    def loss_of_chance(self) -> float | None:
        """The loss of the best constant answer, where it is known."""
        return loss_of_constant(self)

    def score_of(self, loss: float | None) -> float | None:
        """`loss_score` of a loss on the batch of the experiments."""
        return loss_score(self.trials or {}, loss)

    @cached_property
    def score(self) -> float | None:
        """How far the run came, from a constant answer (0) to the lowest loss (1).

        On the batch of the experiments, or in its last steps if that is less; without experiments by the logged
        loss, where that of a constant is known.  What the first answers had already is not learned.
        """
        if self.steps == 0:  # before training, fifty steps on the batch stand for the run
            return self.fit("1")
        if self.plays:
            return None
        reached = self._score_on_batch if self.has_many_targets else self._score_of_log
        if self.has_further_terms and (reached or 0.0) < LEARNED:
            return None  # one term may give way to the others
        if reached is None or self.fell is None or self.audited is not None:
            return reached
        return min(reached, self.fell) if self.fell < CLEARLY and reached < LEARNED else reached

    @property
    def _score_on_batch(self) -> float | None:
        on_batch: float | None = self.trial("score")
        at_end = self._score_at_end if self._same_loss else None
        if on_batch is None or at_end is None:
            return on_batch
        fits = on_batch >= LEARNED and (self.fell or 0.0) >= LEARNED  # the batch is harder or easier than the last ones
        return on_batch if fits else min(on_batch, at_end)

    @property
    def _score_at_end(self) -> float | None:
        known = {**(self.trial("loss") or {}), "trivial": self.constant_loss}
        return loss_score({"loss": known}, self.last_loss)

    @property
    def constant_loss(self) -> float | None:
        """The loss of the best constant answer: to the targets of many steps, to the batch of the experiments, or to
        the targets of the first step.
        """
        if self._has_no_constant:
            return None
        of_all = None if pooled_variance(self) is None else self.loss_of_chance
        if of_all is None and self.has_many_targets:
            of_batch: float | None = self.trial("loss", "trivial")
            return of_batch
        return self.loss_of_chance

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
        """Whether the logged loss is that of the experiments, on many targets: they agree on the first step."""
        if not self.has_many_targets or self.has_further_terms:
            return False
        logged, found = self.losses.get(0), self.trial("loss_start")
        return logged is not None and found is not None and abs(logged - found) <= 0.3 * max(abs(logged), abs(found))

    @cached_property
    def has_many_targets(self) -> bool:
        """Whether experiments were made, on a batch whose best constant answer is about that to all samples."""
        shape, many = self.trial("targets", "shape"), self.trial("targets", "many")
        enough = shape is None or (many or math.prod(shape)) >= FEW_TARGETS
        return self.trials is not None and enough

    def fit(self, name: str) -> float | None:
        """The score after fifty steps on the batch in one of the fits; −∞ where they diverge."""
        known = self.trial("fits", name)
        if known is None or "failed" in known:
            return None
        own = {"loss": known} if "trivial" in known else self.trials or {}  # of other targets, other bounds
        if self._has_no_constant:  # what is learned is counted from the first weights on
            own = {"loss": {**self.trial("loss"), "trivial": self.trial("loss_start")}}
        return -math.inf if known["last"] is None else loss_score(own, known["last"])

    def gain(self, name: str) -> float | None:
        """The score that one change adds in fifty steps on the batch, between −1 and 1; None where it was not tried."""
        with_it, without = self.fit(name), self.fit("1")
        if with_it is None or without is None:
            return None
        return min(max(with_it, -1.0), 1.0) - min(max(without, -1.0), 1.0)

    def helps(self, *names: str) -> str | None:
        """The first of these changes with which fifty steps learn the batch further than with the run's own settings.

        From a score below 0 on, only what is learned counts.
        """
        without = self.fit("1")
        for name in names if without is not None else ():
            with_it = self.fit(name)
            if with_it is not None and with_it >= HELPED and with_it - max(without or 0.0, 0.0) >= HELPS:
                return name
        return None

    def compared(self, name: str, words: str) -> str:
        """How far one batch is learned with a change and without it, as a sentence."""
        with_it, without = self.fit(name), self.fit("1")
        reached = "diverge" if without == -math.inf else f"come {number(without or 0.0)} of the way"
        steps = max(self.fit_steps(), self.fit_steps(name))
        return f"{steps} steps on one batch {reached} with the run's settings, and {number(with_it or 0.0)} {words}."

    def fit_steps(self, name: str = "1") -> int:
        """How many steps one of the fits took."""
        return self.trial("fits", name, "steps") or FIT_STEPS

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
        return self.success is not None or self.loss_measures

    @cached_property
    def loss_measures(self) -> bool:
        """The same, whatever metric is logged beside the loss."""
        if self.audited is not None:
            return True
        ops = self.loss_ops
        if self.plays or (ops & POLICY_OPS and not ops & _MEASURES):
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

    @cached_property
    def _noise(self) -> float:
        """The standard error of the last loss."""
        known = list(self.losses.values())
        tail = known[-max(self._fewest, len(known) // 10) :]
        return summarise(tail).std / math.sqrt(len(tail)) if len(tail) > 1 else math.inf

    @property
    def learned(self) -> bool | None:
        """Whether the score is at least 0.5; without a score, whether the loss halved, to below that of a constant."""
        if self.broke is not None:
            return False
        if self.success is not None:
            return self.success
        if self.score is not None:
            return self.score >= LEARNED
        if (self.leaves_nothing and not self.compares) or self.beats_a_constant is False:
            return False
        return None if self.fell is None else self.fell >= LEARNED

    @property
    def failed(self) -> bool:
        """Whether the run certainly learned almost nothing."""
        if self.broke is not None:
            return True
        if self.success is not None:
            return not self.success
        if self.score is not None:
            return self.score < FAILED
        if self.is_measure and self.beats_a_constant is False:
            return True
        return self.is_measure and self.fell is not None and self.fell < FAILED and not self._falls

    @property
    def leaves_nothing(self) -> bool:
        """Whether no answer to the batch has a lower loss than a constant one."""
        trivial, floor = self.trial("loss", "trivial"), self.trial("loss", "floor")
        if None in (trivial, floor):
            return False
        return self.trial("targets", "std") == 0 or bool(trivial - floor <= 1e-3 * abs(trivial))

    @property
    def _has_no_constant(self) -> bool:
        """Whether the best constant answer to the batch is out of the model's reach, and so no measure of it."""
        return self.leaves_nothing and self.compares

    @cached_property
    def compares(self) -> bool:
        """Whether outputs are products or distances of what the model computes, and not the answers of a layer.

        Their targets are constant on purpose, as are those of pairs that belong together, and no constant answer is
        in reach of the model.
        """
        last = self.trial("output", "operation") or self.facts.get("output_op")
        return last in _COMPARISONS and not self.trial("loss", "ignores_pairing")

    @property
    def _falls(self) -> bool:
        """Whether the loss fell a little, but by more than its noise."""
        fallen = (self.first_loss or 0.0) - (self.last_loss or 0.0)
        return (self.fell or 0.0) > FAILED / 2 and fallen > _BETTER * self._noise and len(self.losses) > EARLY

    @cached_property
    def beats_a_constant(self) -> bool | None:
        """Whether the run ends better than a constant answer, by more than the noise of its loss; None: not known."""
        chance, uncertain = self._constant
        ahead = (self.score or 0.0) >= FAILED
        if self.success is not None:
            return self.success
        if chance is None or self.last_loss is None:
            return False if self._is_beyond_spread else ahead or None
        apart = max(_BETTER * self._noise, uncertain * abs(chance))
        falls = self.fell is None or self.fell >= CLEARLY
        below = falls and (self.last_loss < chance - apart or self._second_half_is_below(chance, uncertain))
        return self.last_loss <= chance + apart and (ahead or below)

    @property
    def _is_beyond_spread(self) -> bool:
        """Whether a mean distance ends above the spread of the targets, which their mean would reach or go below."""
        known = self.facts.get("targets") or []
        spread, size = (known[0].get(key) for key in ("std", "rms")) if len(known) == 1 else (None, None)
        out = self.at("out_rms", "(model)")
        if not self.is_distance or "MseLoss" in self.loss_ops or not spread or size is None or out is None:
            return False
        is_mean = self.losses.get(0, math.inf) <= 1.1 * (size + out)
        return bool(is_mean and (self.last_loss or 0.0) > 2 * max(spread, spread * spread / 2))

    def _second_half_is_below(self, chance: float, uncertain: float) -> bool:
        """Whether the second half of the run is better than a constant answer: by little, but by more than its noise.

        Targets that inputs hardly predict leave no more to be learned.
        """
        known = list(self.losses.values())
        half = summarise(known[len(known) // 2 :])
        least = uncertain * abs(chance) / (2 if uncertain == CLEARLY else 1)
        return len(known) >= FEWEST_STEPS and chance - half.mean > max(
            _BETTER * half.std / math.sqrt(len(known) / 2), least
        )

    @property
    def _constant(self) -> tuple[float | None, float]:
        """The loss of the best constant answer, and by which share of it another is clearly better.

        That to the batch of the experiments, unless targets of many steps are known.  The variance of numeric targets
        has a relative standard error of √(2/targets) in a batch.
        """
        if self.has_further_terms or self._has_no_constant:
            return None, CLEARLY
        of_classes = self.loss_ops & (CLASS_LOSSES | BINARY_LOSSES) and self.loss_of_chance is not None
        if not self._same_loss or pooled_variance(self) is not None or of_classes:
            return self.loss_of_chance, CLEARLY
        of_batch = self.trial("loss", "trivial")
        if of_batch is None:
            return self.loss_of_chance, CLEARLY
        targets = self.trial("targets", "many") or math.prod(self.trial("targets", "shape") or [0])
        numeric = self.trial("targets", "kind") == "real" and targets > 0
        return of_batch + self._fitted(targets), max(CLEARLY, math.sqrt(2 / targets) if numeric else 0.0)

    def _fitted(self, targets: int) -> float:
        """By how much the best constant answer to a batch is better there than on other samples: of classes, one half
        of a parameter per target (Miller and Madow).
        """
        if self.trial("targets", "kind") != "classes" or not targets or self.loss_of_chance is None:
            return 0.0
        return float(self.trial("targets", "distinct") - 1) / (2 * targets)

    @property
    def is_sound(self) -> bool:
        """Whether it is known that the run learned, and more than a constant answer."""
        return bool(self.learned and self.beats_a_constant)

    @property
    def learning(self) -> str:
        """That the run learns, as a sentence; empty where it does not, or where that is not known."""
        if self.failed or self.learned is None or not self.is_measure:
            return ""
        if self.success:
            return "The metric that was logged became better."
        if not self.losses or self.beats_a_constant is False:
            return ""
        if self.learned:
            unknown = f"The loss fell {self._fall}; that of one constant answer is not known."
            return f"It learns: the loss fell {self._fall}." if self.is_sound else unknown
        way = f", {number(self.score)} of the way from a constant answer to the lowest loss" if self.score else ""
        return f"It learns in part: the loss fell {self._fall}{way}." if (self.fell or 0.0) > 0 else ""

    @property
    def _fall(self) -> str:
        return f"from {number(self.first_loss or 0.0, 3)} to {number(self.last_loss or 0.0, 3)}"

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
        return self._unclear

    @property
    def _unclear(self) -> str:
        if self.failed and (self.fell or 0.0) >= FAILED:
            came = (
                f"{number(self.score)} of the way down from"
                if self.beats_a_constant and self.score
                else "and ends close to"
            )
            return f"Its loss fell {self._fall}, {came} that of a constant answer."
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
