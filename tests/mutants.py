"""Planted bugs: each is put into a copy of the tree, and the tests that ought to notice it are run there.

    python tests/mutants.py             all of them, and exit code 1 if one survives
    python tests/mutants.py "log K"     those whose name has these letters

Every text to be replaced has to stand in its file exactly once; where the code has moved on, update the table first.
"""

import importlib
import multiprocessing
import os
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "docs", "mkdocs.yml", "benchmarks", "pyproject.toml", "README.md")
KILLED, SURVIVED = 1, 0  # exit codes of pytest: some test failed, all passed
TIMEOUT = 1200  # seconds


class Mutant(NamedTuple):
    name: str
    file: str  # below src/sonde
    text: str
    bug: str
    tests: str  # below tests


FIELD = "equivalence/test_rules_of_the_field.py"
MOVING = "equivalence/test_rules_that_move_the_states.py"
LIMITS = "equivalence/test_rules_in_exact_limits.py"
BRIDGES = "equivalence/test_bridges_against_naive_twins.py"
TWINS = "equivalence/test_probes_against_naive_twins.py"
BY_HAND = "equivalence/test_backward_by_hand.py"
BARE = "equivalence/test_training_against_a_bare_loop.py"
RECOMPUTED = "contract/test_every_rule_and_model_is_recomputed.py -k residual_mlp-dfa"
RULES = "unit/test_rules.py"
METRICS = "unit/test_metrics.py"
TRAINING = "unit/test_probes_training.py"
TAILS = "unit/test_probes_tails.py"
SPREADS = "unit/test_seed_statistics.py"
RESUMED = "contract/test_rules_on_models.py -k resumed"

MUTANTS = (
    # bands, spikes and the ring
    Mutant(
        "noise is counted above a multiple of the median",
        "core/seed_statistics.py",
        "(factor - 1) * abs(middle))",
        "factor * abs(middle))",
        "unit/test_spikes.py -k band",
    ),
    Mutant(
        "every step of a long excursion is a spike of its own",
        "observe/ring.py",
        "if not self._leaves(value) or step < self._quiet_until:",
        "if not self._leaves(value):",
        "unit/test_spikes.py -k shortly",
    ),
    Mutant(
        "the ring divides by the entries after the step",
        "observe/ring.py",
        "self.before = tensor_norms(torch.split(before, self.sizes))",
        "self.before = tensor_norms(torch.split(now, self.sizes))",
        "unit/test_spikes.py -k naive",
    ),
    Mutant(
        "the ring writes a step more than it is said to hold",
        "observe/ring.py",
        "step - STEPS + 1), step + 1)",
        "step - STEPS), step + 1)",
        "unit/test_spikes.py -k naive",
    ),
    Mutant(
        "one step fewer is watched after a spike",
        "observe/spike_steps.py",
        "if alone:\n                self._until = step + 1 + DENSE",
        "if alone:\n                self._until = step + DENSE",
        "unit/test_spikes.py -k after_a_spike",
    ),
    # predicted moments
    Mutant(
        "a gradient passes an activation by its values",
        "analysis/moments.py",
        "square_slope(self._values(mean, std)[1], mean, std, rho)]",
        "square_slope(self._values(mean, std)[0], mean, std, rho)]",
        "unit/test_predict.py -k residual_study",
    ),
    Mutant(
        "a correlation keeps the square of the mean",
        "analysis/moments.py",
        "(moments.products - moments.mean**2) / variance",
        "moments.products / moments.square",
        "unit/test_predict.py -k with_a_mean",
    ),
    Mutant(
        "the mean of a product is that of one term",
        "analysis/moments.py",
        "Moments(summed * self.mean * other.mean,",
        "Moments(self.mean * other.mean,",
        "unit/test_predict.py -k with_a_mean",
    ),
    # verdicts over sizes
    Mutant(
        "an exponent is judged without its interval",
        "analysis/scaling_result.py",
        "> TOLERANCE and not self.low <= asked <= self.high:",
        "> TOLERANCE:",
        "unit/test_scaling.py -k certainty",
    ),
    Mutant(
        "an interval as wide as a fault counts as stable",
        "analysis/scaling_result.py",
        "is_sharp = self.high - self.low <= 2 * _FAULT",
        "is_sharp = True",
        "unit/test_scaling.py -k certainty",
    ),
    # states that move
    Mutant(
        "the threshold of a goodness does not grow with the width",
        "rules/ff.py",
        "(self.threshold * d - goodness(h))",
        "(self.threshold - goodness(h))",
        f"{MOVING} -k 'autograds or goodness'",
    ),
    Mutant(
        "an error that arrives is not scaled by the rate",
        "rules/pc.py",
        "found.append(Pair(below, self.rate * unit.vjp(a)))",
        "found.append(Pair(below, unit.vjp(a)))",
        f"{MOVING} -k arrival",
    ),
    # published numbers
    Mutant(
        "the interval of a claim is one-sided",
        "studies/claims.py",
        "t_quantile((1 + CONFIDENCE) / 2, freedom)",
        "t_quantile(CONFIDENCE, freedom)",
        "unit/test_reproduce.py -k 'welch or spread'",
    ),
    Mutant(
        "a published number without a spread counts as exact",
        "studies/claims.py",
        "known * (1 / len(values) + 1 / claim.n)",
        "known * (1 / len(values))",
        "unit/test_reproduce.py -k 'welch or spread'",
    ),
    Mutant(
        "close values are reproduced however wide the interval",
        "studies/claims.py",
        "if -tolerance <= low and high <= tolerance:",
        "if abs(apart) <= tolerance:",
        "unit/test_reproduce.py -k verdicts",
    ),
    # the score of a diagnosis
    Mutant(
        "a score is not relative to the lowest loss",
        "analysis/diagnosis/constant_answer.py",
        "float((trivial - loss) / (trivial - floor))",
        "float((trivial - loss) / trivial)",
        "unit/test_diagnosis.py -k 'score_of_a_loss or a_change_helps'",
    ),
    Mutant(
        "a change helps however little it reaches",
        "analysis/diagnosis/run_evidence.py",
        "with_it >= HELPED and with_it",
        "with_it",
        "unit/test_diagnosis.py -k 'score_of_a_loss or a_change_helps'",
    ),
    # exponents over sizes
    Mutant(
        "the largest size is part of its own fit",
        "analysis/scaling.py",
        "fitted = [size for size in sizes[:-1] if size in at]",
        "fitted = [size for size in sizes if size in at]",
        "unit/test_scaling.py -k slope",
    ),
    Mutant(
        "the effect of a step is not relative to the error",
        "observe/scaling_probe.py",
        "scale = torch.ones(()) if error is None else",
        "scale = torch.ones(()) if True else",
        "unit/test_scaling.py -k definitions",
    ),
    Mutant(
        "a drift of all groups is taken for a fault",
        "analysis/scaling.py",
        "return middle if abs(middle) <= _MOST_DRIFT else 0.0",
        "return 0.0",
        "unit/test_scaling.py -k drift",
    ),
    # the table of metrics
    Mutant(
        "a name's control is taken for its metric",
        "metrics/metric.py",
        'return family_of(name).partition("/")[0]',
        "return family_of(name)",
        METRICS,
    ),
    Mutant(
        "a cosine lies between 0 and 1",
        "metrics/metric.py",
        "COSINE: Bounds = (-1.0, 1.0)",
        "COSINE: Bounds = (0.0, 1.0)",
        METRICS,
    ),
    Mutant(
        "figures and diagnoses part on what vanishes",
        "core/formatting.py",
        "if ratio < GRADIENT_VANISHED:",
        "if ratio < 10 * GRADIENT_VANISHED:",
        METRICS,
    ),
    # one training step
    Mutant(
        "credit is not divided by N",
        "training/step.py",
        'return samples if credit_scale == "none"',
        'return 1 if credit_scale == "none"',
        LIMITS,
    ),
    Mutant(
        "credit's epsilon grows as 1/N",
        "training/step.py",
        ".add_(1e-6 * samples)",
        ".add_(1e-6)",
        BRIDGES,
    ),
    Mutant(
        "credit is normalised by a sample's size",
        "training/step.py",
        "math.sqrt(math.prod(a.shape[lead:]))",
        "math.sqrt(a.shape[-1])",
        LIMITS,
    ),
    Mutant(
        "the penalty rewards growth",
        "training/step.py",
        "value = value + rule.penalty",
        "value = value - rule.penalty",
        LIMITS,
    ),
    Mutant(
        "frozen trains its blocks",
        "training/step.py",
        "trained = net.outside()",
        "trained = list(net.parameters())",
        LIMITS,
    ),
    Mutant(
        "rules see the gradient of the batch mean",
        "training/step.py",
        "signal_of(mean_gradient * samples)",
        "signal_of(mean_gradient)",
        BRIDGES,
    ),
    # the step that is written out
    Mutant(
        "a residual unit forgets its skip on the way back",
        "training/backward_by_hand.py",
        "torch.add(g, through, out=self.stream)",
        "through",
        BY_HAND,
    ),
    Mutant(
        "residual ReLU blocks forget their skip on the way back",
        "training/backward_by_hand.py",
        "self.back.append(partial(self.g.add_, below))",
        "self.back.append(partial(self.g.copy_, below))",
        BY_HAND,
    ),
    Mutant(
        "the slope of the squared error forgets the outputs",
        "network/losses.py",
        "(2 / math.prod(output_NC.shape[-2:]))",
        "(2 / output_NC.shape[-2])",
        BY_HAND,
    ),
    Mutant(
        "credits by hand come from the gradient of the batch mean",
        "training/backward_by_hand.py",
        "top * samples",
        "top",
        BY_HAND,
    ),
    # rules
    Mutant(
        "a mirror forgets to subtract the means",
        "rules/fa.py",
        "(y_So - y_So.mean(0)).mT, x_Si - x_Si.mean(0)",
        "y_So.mT, x_Si",
        f"{FIELD} -k mirror",
    ),
    Mutant(
        "kp gives its matrices the weights",
        "rules/fa.py",
        "state: BackwardMatrices, units: Sequence[Matrix]) -> Matrix:\n        return cast_like(state.matrices, units)",
        "state: BackwardMatrices, units: Sequence[Matrix]) -> Matrix:\n        return weights_of(units)",
        f"{FIELD} -k kp",
    ),
    Mutant(
        "kp's matrices are not the optimiser's",
        "training/program.py",
        "self.credit.parameters()",
        "list(self.net.parameters())",
        "contract/test_rules_on_models.py -k kps_matrices",
    ),
    Mutant(
        "a nudge of equilibrium propagation counts twice",
        "rules/ep.py",
        "error / (-beta * len(nudges))",
        "error / -beta",
        MOVING,
    ),
    Mutant(
        "the energy descends without the error of the state itself",
        "rules/pc.py",
        "rate * (slope + errors[layer])",
        "rate * slope",
        MOVING,
    ),
    Mutant(
        "the mean of two states moves with α alone",
        "rules/dualprop.py",
        "(2 * self.alpha - 1) * self.beta",
        "self.alpha * self.beta",
        MOVING,
    ),
    Mutant(
        "PEPITA learns to follow the changed input",
        "rules/pepita.py",
        "[h - above.input for",
        "[above.input - h for",
        MOVING,
    ),
    Mutant(
        "a wrong label may be the true one",
        "rules/ff.py",
        "torch.randint(1, classes,",
        "torch.randint(0, classes,",
        MOVING,
    ),
    Mutant(
        "a unit that runs again counts in the statistics of BatchNorm",
        "training/step.py",
        "with rerun(layer), torch.enable_grad():\n        return Evaluation",
        "with torch.enable_grad():\n        return Evaluation",
        MOVING,
    ),
    Mutant(
        "credit of the input goes one block too far",
        "training/step.py",
        "[credits[0], *credits[:-1]]",
        "[credits[0], credits[0], *credits[:-2]]",
        "equivalence/test_credit_at.py",
    ),
    Mutant(
        "DFA's feedback is N(0, 1)",
        "rules/dfa.py",
        "scale = facts.outputs**-0.5",
        "scale = 1.0",
        RULES,
    ),
    Mutant(
        "FA's feedback has scale 1/d",
        "rules/fa.py",
        "generator=rng) / above**0.5",
        "generator=rng) / above",
        RULES,
    ),
    Mutant(
        "FA carries credit down in the wrong order",
        "rules/fa.py",
        "in reversed(state.matrices)",
        "in state.matrices",
        LIMITS,
    ),
    Mutant(
        "DFA divides tokens by T",
        "rules/dfa.py",
        "h.shape[1] ** 0.5",
        "h.shape[1]",
        LIMITS,
    ),
    Mutant(
        "the soft-min is without log K",
        "rules/bridges.py",
        "torch.logsumexp(-value_KlN1 / self.temperature, 0) - math.log(self.copies)",
        "torch.logsumexp(-value_KlN1 / self.temperature, 0)",
        BRIDGES,
    ),
    Mutant(
        "Credit Bridge's noise comes before LayerNorm",
        "rules/bridges.py",
        """        next_lNd = _normalised(h_lNd[1:].detach(), self.input_norm)
        noise = torch.randn(self.copies, *next_lNd.shape, generator=state.noise, dtype=torch.float32)
        copies_KlNd = noise.to(next_lNd.device, next_lNd.dtype).mul_(self.noise).add_(next_lNd)
""",
        """        next_lNd = h_lNd[1:].detach()
        noise = torch.randn(self.copies, *next_lNd.shape, generator=state.noise, dtype=torch.float32)
        copies_KlNd = noise.to(next_lNd.device, next_lNd.dtype).mul_(self.noise).add_(next_lNd)
        copies_KlNd = _normalised(copies_KlNd, self.input_norm)
""",
        BRIDGES,
    ),
    Mutant(
        "Credit Bridge's target is the same layer",
        "rules/bridges.py",
        "_normalised(h_lNd[1:].detach(), self.input_norm)",
        "_normalised(h_lNd[:-1].detach(), self.input_norm)",
        BRIDGES,
    ),
    Mutant(
        "the terminal gradient is not relative",
        "rules/bridges.py",
        "((slope_1Nd[0] - g_Nd) / scale)",
        "(slope_1Nd[0] - g_Nd)",
        BRIDGES,
    ),
    Mutant(
        "Credit Bridge has no warm-up",
        "rules/bridges.py",
        "math.ceil(self.warmup * facts.steps))",
        "0)",
        BRIDGES,
    ),
    Mutant(
        "the moving average forgets",
        "rules/bridges.py",
        "list(net.parameters()), 1 - self.average)",
        "list(net.parameters()), self.average)",
        BRIDGES,
    ),
    Mutant(
        "state_pred_error is not divided by the final state's norm",
        "rules/bridges.py",
        ".square().sum(-1) / scale_N).mean()",
        ".square().sum(-1)).mean()",
        BRIDGES,
    ),
    Mutant(
        "State Bridge predicts the state without LayerNorm",
        "rules/bridges.py",
        "_normalised(signal.pooling.read(signal.states[-1]), self.input_norm)",
        "signal.pooling.read(signal.states[-1])",
        BRIDGES,
    ),
    Mutant(
        "a bridge's depth is l/(L + 1)",
        "rules/bridges.py",
        "dtype=s_NS.dtype) / depth",
        "dtype=s_NS.dtype) / (depth + 1)",
        BRIDGES,
    ),
    # what a run measures and how it is trained
    Mutant(
        "the probe batch is the last test samples",
        "training/program.py",
        "self.data.test(0, probing.size)",
        "self.data.test(self.data.test_samples - probing.size, self.data.test_samples)",
        f"{TRAINING} -k first_test_samples",
    ),
    Mutant(
        "train_acc counts the least likely class",
        "training/program.py",
        "self.loss.hits(torch.cat(self.outputs, self.lead),",
        "self.loss.hits(-torch.cat(self.outputs, self.lead),",
        BARE,
    ),
    Mutant(
        "train_acc is a share of batches",
        "training/program.py",
        "self.counted += hits_RN.shape[1]",
        "self.counted += len(self.losses)",
        BARE,
    ),
    Mutant(
        "a smaller last batch counts like the others",
        "training/program.py",
        "torch.tensor(self.sizes, dtype=torch.float64) / samples",
        "torch.ones(len(self.sizes), dtype=torch.float64) / len(self.sizes)",
        "unit/test_epoch_log.py",
    ),
    Mutant(
        "test_loss leaves out the last batch",
        "training/program.py",
        "range(0, samples, TEST_BATCH)",
        "range(0, samples - TEST_BATCH, TEST_BATCH)",
        BARE,
    ),
    Mutant(
        "the cosine schedule begins an epoch late",
        "training/program.py",
        "math.cos(math.pi * (epoch - 1) / epochs)",
        "math.cos(math.pi * epoch / epochs)",
        BARE,
    ),
    Mutant(
        "the data's order comes from the weights' generator",
        "training/program.py",
        'generator(config.seed, "order")',
        'generator(config.seed, "init")',
        BARE,
    ),
    Mutant(
        "the initial weights move with the network",
        "training/program.py",
        "{name: p.detach().clone() for",
        "{name: p.detach() for",
        "unit/test_recompute.py -k holds_its_initial_weights",
    ),
    Mutant(
        "AdamW is Adam",
        "training/kernels.py",
        "torch._fused_adamw_ if decoupled else torch._fused_adam_",
        "torch._fused_adam_",
        "equivalence/test_adam.py",
    ),
    Mutant(
        "a network that is not finite goes on",
        "training/session.py",
        "torch.isfinite(trained.losses).all() and program.finite()",
        "True",
        "unit/test_store.py -k diverges",
    ),
    Mutant(
        "a resumed run draws another order",
        "training/program.py",
        '        self.order.set_state(state["order"])\n',
        "",
        RESUMED,
    ),
    Mutant(
        "a resumed rule begins anew",
        "training/program.py",
        '        self.credit.load_state_dict(state["rule"])\n',
        "",
        RESUMED,
    ),
    Mutant(
        "the initial weights are stored as the final ones",
        "training/session.py",
        "safetensors.torch.save(program.initial)",
        "safetensors.torch.save(program.weights())",
        "unit/test_recompute.py -k holds_its_initial_weights",
    ),
    # probes
    Mutant(
        "the gradient is that of the batch mean",
        "metrics/probes/signal.py",
        "torch.autograd.grad(losses_N.sum(), wanted",
        "torch.autograd.grad(losses_N.mean(), wanted",
        TWINS,
    ),
    Mutant(
        "every epoch has the same random directions",
        "metrics/probes/signal.py",
        'f"probe/{purpose}/{self.context.epoch}"',
        'f"probe/{purpose}"',
        TWINS,
    ),
    Mutant(
        "every draw of chance is the same",
        "metrics/probes/credit.py",
        'f"probe/null/{context.epoch}/{k}"',
        'f"probe/null/{context.epoch}/0"',
        TWINS,
    ),
    Mutant(
        "the gradient is not taken per error",
        "metrics/probes/signal.py",
        "torch.where(defined_N, top_N / error_N, torch.nan)",
        "torch.where(defined_N, top_N, torch.nan)",
        TWINS,
    ),
    Mutant(
        "the median is the upper of the two middle values",
        "metrics/reductions.py",
        "float(ordered[(n - 1) // 2] + (ordered[n // 2] - ordered[(n - 1) // 2]) / 2)",
        "float(ordered[n // 2])",
        RECOMPUTED,
    ),
    Mutant(
        "a cosine is clamped",
        "metrics/reductions.py",
        "cosine_of(dots_N, a.norms_N, b.norms_N)",
        "cosine_of(dots_N, a.norms_N, b.norms_N.clamp_min(2))",
        TWINS,
    ),
    Mutant("ρ's step is ten times as long", "metrics/probes/credit.py", "EPSILON = 1e-3", "EPSILON = 1e-2", TWINS),
    Mutant("a nudge follows the credit", "metrics/probes/credit.py", "h - eta * unit", "h + eta * unit", TWINS),
    Mutant(
        "a moved state skips a block",
        "metrics/probes/credit.py",
        "net.tail(copies.flatten(0, 1), layer, snapshot.x)",
        "net.tail(copies.flatten(0, 1), min(layer + 1, net.depth), snapshot.x)",
        TWINS,
    ),
    Mutant(
        "rounding passes for a correlation",
        "metrics/probes/credit.py",
        "_MARGIN = 10 ",
        "_MARGIN = 0 ",
        TAILS,
    ),
    Mutant(
        "a batch is compared with itself",
        "metrics/probes/signal.py",
        "len(means), offset=1)",
        "len(means), offset=0)",
        TWINS,
    ),
    Mutant(
        "growth is upside down",
        "metrics/probes/signal.py",
        "value=after / before",
        "value=before / after",
        TWINS,
    ),
    Mutant(
        "a branch is measured against the state behind it",
        "metrics/probes/signal.py",
        "compare(read(f), read(snapshot.states[block]))",
        "compare(read(f), read(snapshot.states[block + 1]))",
        TWINS,
    ),
    Mutant(
        "drift is not relative",
        "metrics/probes/signal.py",
        "rms(parameter - start) / length",
        "rms(parameter - start)",
        TWINS,
    ),
    Mutant("a spread is the population's", "metrics/probes/signal.py", "z.std()", "z.std(correction=0)", TWINS),
    Mutant(
        "the last epoch is not looked at",
        "metrics/probes/__init__.py",
        "{0, *powers, epochs}",
        "{0, *powers}",
        TRAINING + " -k schedule",
    ),
    # losses, models, tasks, random numbers
    Mutant(
        "the error of a squared loss is halved",
        "network/losses.py",
        "(2 / output_NC.shape[-1])",
        "(1 / output_NC.shape[-1])",
        LIMITS,
    ),
    Mutant(
        "the error of a cross entropy adds the label",
        "network/losses.py",
        "-error_NC.new_ones(",
        "error_NC.new_ones(",
        LIMITS,
    ),
    Mutant(
        "w2 starts at another scale",
        "models/mlps.py",
        "std=self.w2_std,",
        "std=self.w2_std / self.L,",
        "unit/test_models.py",
    ),
    Mutant(
        "the student's w2 ignores its depth",
        "models/mlps.py",
        "std=(self.d * self.L) ** -0.5",
        "std=self.d**-0.5",
        "unit/test_models.py",
    ),
    Mutant(
        "the head reads every token",
        "models/model.py",
        "h[..., 0, :] if self.tokens",
        "h.mean(-2) if self.tokens",
        "unit/test_models.py",
    ),
    Mutant(
        "samples come in file order",
        "tasks/task.py",
        "torch.randperm(self.train_samples, generator=rng)",
        "torch.arange(self.train_samples)",
        BARE,
    ),
    Mutant(
        "pixels are scaled by test images too",
        "tasks/images.py",
        "x[train_N].std(correction=0)",
        "x.std(correction=0)",
        "unit/test_tasks_digits.py",
    ),
    Mutant(
        "images are never mirrored",
        "tasks/images.py",
        "[..., ::-1]",
        "[..., :]",
        "unit/test_tasks_cifar10.py -k mirror",
    ),
    Mutant(
        "a generator is derived from other bytes",
        "core/generators.py",
        'digest[:8], "big"',
        'digest[:8], "little"',
        "unit/test_generators.py -k stored_feedback",
    ),
    # spreads, audit, comparison
    Mutant(
        "a spread over seeds is the population's",
        "core/seed_statistics.py",
        "statistics.stdev(finite)",
        "statistics.pstdev(finite)",
        SPREADS,
    ),
    Mutant(
        "an interval is one-sided",
        "core/seed_statistics.py",
        "t_quantile((1 + confidence) / 2, known.n - 1)",
        "t_quantile(confidence, known.n - 1)",
        SPREADS,
    ),
    Mutant(
        "a paired difference has the wrong sign",
        "core/seed_statistics.py",
        "round(value - base,",
        "round(base - value,",
        SPREADS,
    ),
    Mutant(
        "an ignored label is a miss",
        "network/losses.py",
        "likeliest if ignored is None or y.is_floating_point() else likeliest[y != ignored]",
        "likeliest",
        "unit/test_loss_adapter.py",
    ),
    Mutant(
        "blocks that share a module repeat the first one's output",
        "metrics/probes/signal.py",
        "        begun = len(states) - 1\n",
        "        begun = 0\n",
        "unit/test_silent_numbers.py",
    ),
    Mutant(
        "rules are ranked over all recipes",
        "analysis/recovery.py",
        "by_recipe.setdefault(point.recipe, [])",
        'by_recipe.setdefault("", [])',
        "unit/test_recovery.py",
    ),
    Mutant(
        "a seed at which BP loses is left out of the share",
        "analysis/recovery.py",
        "share_of_margin(rule.margin.by_seed, margin)",
        "share_of_margin(shares, margin)",
        "unit/test_recovery.py",
    ),
    Mutant(
        "FDFA adds up the tokens",
        "rules/dfa.py",
        ", over_tokens=True",
        "",
        FIELD,
    ),
    Mutant(
        "the band of a figure is the population's",
        "core/seed_statistics.py",
        "value.std(ddof=1)",
        "value.std(ddof=0)",
        "unit/test_figures_numbers.py",
    ),
    Mutant(
        "D1 takes the calmest block",
        "analysis/questions.py",
        "largest = max(finite,",
        "largest = min(finite,",
        "unit/test_audit.py -k d1",
    ),
    Mutant(
        "D2 reads the layer that is resolved best",
        "analysis/questions.py",
        "any(found[layer] < limits[metric]",
        "all(found[layer] < limits[metric]",
        "unit/test_audit.py -k d2",
    ),
    Mutant(
        "D1 forgets where h_L began",
        "analysis/questions.py",
        "top = norms[-1] / at_init[-1] if",
        "top = norms[-1] if",
        "unit/test_audit.py -k d1",
    ),
    Mutant(
        "the gradient of training is computed in float64",
        "metrics/probes/signal.py",
        "copy.deepcopy(snapshot.net).to(snapshot.precision)",
        "copy.deepcopy(snapshot.net).to(torch.float64)",
        "unit/test_probes_null.py -k resol",
    ),
    Mutant(
        "products that training rounds are exact in the probe",
        "metrics/probes/signal.py",
        "module.rounds = True",
        "module.rounds = False",
        "unit/test_probes_null.py -k resol",
    ),
    Mutant(
        "the spread of BP's margin is left out of recovery's interval",
        "core/seed_statistics.py",
        "b * b - t2 * v_bb, a * b - t2 * v_ab",
        "b * b, a * b - t2 * v_ab",
        "unit/test_recovery.py",
    ),
    Mutant(
        "Holm's correction forgets how many tests there are",
        "core/seed_statistics.py",
        "(len(ordered) - rank) * chances[key]",
        "chances[key]",
        SPREADS,
    ),
    Mutant(
        "the odd sample of grad_noise is in the second half",
        "metrics/reductions.py",
        "grad[half : 2 * half]",
        "grad[half:]",
        "unit/test_watch_numbers.py -k odd",
    ),
    Mutant(
        "D3 passes a credit below chance",
        "analysis/questions.py",
        'layer.side in ("at", "below", "disagree")',
        'layer.side in ("at", "disagree")',
        "unit/test_audit.py",
    ),
    Mutant(
        "D4 takes an interval across 0 for help",
        "analysis/questions.py",
        "if interval.low > 0:",
        "if interval.high > 0:",
        "unit/test_audit.py",
    ),
    # configuration and store
    Mutant(
        "runs of different recipes share an id",
        "core/run_ids.py",
        "hashlib.sha256(json.dumps(tree, ",
        'hashlib.sha256(json.dumps({part: tree[part] for part in ("model", "rule", "task")}, ',
        "unit/test_config.py",
    ),
    Mutant(
        "a rule's own first options are ignored",
        "core/run_ids.py",
        "FIRST_OPTIONS[part].get(name, stated)",
        "FIRST_OPTIONS[part].get(name)",
        "golden/test_identity.py -k states_its_first",
    ),
    Mutant(
        "the folder of a plugin comes before what is installed",
        "plugins/source.py",
        "sys.path.append(code.at)",
        "sys.path.insert(0, code.at)",
        "unit/test_plugin_sources.py -k beside_its_file",
    ),
    Mutant(
        "unknown keys are taken",
        "config/__init__.py",
        "        if key not in fields:\n",
        "        if key not in fields and False:\n",
        "unit/test_config.py",
    ),
    Mutant(
        "the manifest is written before what it names",
        "store/folder.py",
        """        files.write(path / names[stem], content)
    manifest = replace(manifest, files=names, checksums=checksums)
    put_manifest(path, manifest)
""",
        """    manifest = replace(manifest, files=names, checksums=checksums)
    put_manifest(path, manifest)
    for name, content in contents.items():
        files.write(path / names[name.split(".")[0]], content)
""",
        "unit/test_store.py unit/test_store_remote.py -k 'interrupted or invisible'",
    ),
    Mutant(
        "the index is believed when a run has changed",
        "store/index.py",
        'return lines.filter(pl.col("stamp") == _now(present))',
        'return lines.filter(pl.col("id").is_in(list(present)))',
        "unit/test_index.py",
    ),
    Mutant(
        "a write that fails destroys the old file",
        "store/files.py",
        'aside = {target.with_name(f"{ASIDE}{mark}{target.name}"): target for target in targets}',
        "aside = {target: target for target in targets}",
        "unit/test_store.py -k failed_write",
    ),
    # what figures, files and recompute say
    Mutant(
        "a bar shows the first epoch",
        "show/figures/panels.py",
        'epoch = max(rows["epoch"].to_list())',
        'epoch = min(rows["epoch"].to_list())',
        "unit/test_figures_cifar10.py -k last_epoch",
    ),
    Mutant(
        "each chain of the highway has its own scale",
        "show/figures/residual_gradient.py",
        "_draw_chain(ax, line, largest, highway",
        "_draw_chain(ax, line, float(np.nanmax(line.mean)), highway",
        "unit/test_figures_drawing.py -k arrows",
    ),
    Mutant(
        "guessing is too often right",
        "show/figures/groups.py",
        "return 1 / classes if classes else None",
        "return 1 / (classes - 1) if classes else None",
        "unit/test_figures_cifar10.py -k chance",
    ),
    Mutant(
        "the points against frozen blocks have the wrong sign",
        "show/figures/accuracy.py",
        'paired(by_seed[final.rule], by_seed["frozen"])',
        'paired(by_seed["frozen"], by_seed[final.rule])',
        "unit/test_figures_cifar10.py -k frozen",
    ),
    Mutant(
        "theory forgets a factor of √2",
        "analysis/theory.py",
        "alpha * math.sqrt(2 * q)",
        "alpha * math.sqrt(q)",
        "unit/test_figures_numbers.py",
    ),
    Mutant(
        "the floor of a network that ends in a ReLU is forgotten",
        "analysis/theory.py",
        'return INPUT_SECOND_MOMENT / 2 if model == "plain_mlp" and output == "relu" else 0.0',
        "return 0.0",
        "unit/test_claims_of_studies.py -k floor",
    ),
    Mutant(
        "the gradient of the identity is taken to be independent of the stream",
        "analysis/theory.py",
        "a, c, mean, square = 1.0, -1.0, 0.0, 0.0",
        "a, c, mean, square = 0.0, 0.0, 0.0, moments(residual, alpha, depth, q0)[-1][0]",
        "unit/test_claims_of_studies.py -k identitys_own_loss",
    ),
    Mutant(
        "a stored rule is called by its name alone",
        "store/run.py",
        'one_line(rule_label(about["rule_label"], self.config["rule"]))',
        'about["rule_label"].partition(" (")[0]',
        "unit/test_claims_of_studies.py -k a_stored_rule_is_called",
    ),
    Mutant(
        "probe size is ignored when an export is read",
        "show/paper/log_files.py",
        'size = run.fields["probe_size"] or 1',
        "size = 1",
        "unit/test_paper_provenance.py -k own_loss_again",
    ),
    Mutant(
        "the report's rules are ordered by their first seed",
        "show/report/answers.py",
        'ordered = sorted(rules, key=lambda rule: -rule.scalar("test_acc").mean)',
        "ordered = sorted(rules, key=lambda rule: -next(iter(_accuracies(rule).values())))",
        "unit/test_claims_of_studies.py -k ordered_by_their_mean",
    ),
    Mutant(
        "the report's networks are ordered by their first seed",
        "show/report/answers.py",
        "key=lambda one: summarise(one.values.values()).mean",
        "key=lambda one: next(iter(one.values.values()))",
        "unit/test_claims_of_studies.py -k ordered_by_their_mean",
    ),
    Mutant(
        "exported gradients are per sample",
        "show/paper/log_files.py",
        "[norm / samples for norm",
        "[norm for norm",
        "unit/test_paper_logs.py",
    ),
    Mutant(
        "recompute forgives a thousandth",
        "analysis/recompute/__init__.py",
        "FLOAT64_TOLERANCE = 1e-9",
        "FLOAT64_TOLERANCE = 1e-3",
        "unit/test_recompute.py -k 'hundred_millionth or other_feedback'",
    ),
    Mutant(
        "recompute takes undefined for a number",
        "analysis/recompute/__init__.py",
        "return math.isnan(self.stored) == math.isnan(self.number) or self.found.either",
        "return True",
        "unit/test_recompute.py -k stored_as_undefined",
    ),
    # a watched loop
    Mutant(
        "a watched step forgets all but its latest passes",
        "observe/passes.py",
        "if known.step != self.step or grad is None:",
        "if known.step != self.step or grad is None or known not in self._passes:",
        "equivalence/test_watch_pools_passes.py",
    ),
    Mutant(
        "folded passes are added up as norms, not as squares",
        "observe/step_record.py",
        "return joined.to(exact_dtype(joined)).square().sum().sqrt().reshape(1)",
        "return joined.to(exact_dtype(joined)).sum().reshape(1)",
        "equivalence/test_watch_pools_passes.py",
    ),
    Mutant(
        "the losses of one backward pass are averaged",
        "observe/step_record.py",
        "sums = [sum(_weighted(loss, read) for loss in group) / scale",
        "sums = [sum(_weighted(loss, read) for loss in group) / scale / len(group)",
        "equivalence/test_watch_losses.py",
    ),
    Mutant(
        "a GradScaler's scale stays in the loss",
        "observe/step_record.py",
        "for loss in group) / scale for group",
        "for loss in group) for group",
        "equivalence/test_watch_losses.py -k scaler",
    ),
    Mutant(
        "shares of a loss are averaged",
        "observe/step_record.py",
        "if len(by_pass) == 1 or shares:",
        "if len(by_pass) == 1:",
        "unit/test_integrations.py -k micro_batches",
    ),
    Mutant(
        "a file of a watched model names its hooks",
        "observe/hooks.py",
        "return (*made[:2], _cleared(made[2]), *made[3:])",
        "return made",
        "unit/test_watched_models_are_portable.py -k pickle",
    ),
    Mutant(
        "a graph is cut like a batch",
        "observe/experiments/copies.py",
        "return sizes.pop() if len(sizes) == 1 else None",
        "return max(sizes, default=None)",
        "unit/test_diagnose_batches.py -k 'graph or another_length'",
    ),
    Mutant(
        "a replaced layer is not noticed",
        "observe/watched_modules.py",
        "held == self._identities(module) or _is_borrowed(module)",
        "True",
        "unit/test_watch_replacements.py",
    ),
)


def warm_up() -> None:
    """Import once what takes long, for all the processes that are forked; sonde they import themselves."""
    sys.dont_write_bytecode = True  # a bug of the same length within a second would not be noticed
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    for package in (
        "torch._dynamo",
        "matplotlib.pyplot",
        "polars",
        "pydantic",
        "scipy.special",
        "hypothesis",
    ):
        importlib.import_module(package)


def check(mutants: tuple[Mutant, ...]) -> None:
    """Every bug can be planted, once and under a name of its own."""
    assert len({mutant.name for mutant in mutants}) == len(mutants), "two mutants share a name"
    stale = []
    for mutant in mutants:
        found = (ROOT / "src" / "sonde" / mutant.file).read_text().count(mutant.text)
        if found != 1:
            stale.append(f"{mutant.name}: its text stands {found} times in src/sonde/{mutant.file}")
    if stale:
        sys.exit("update the table of tests/mutants.py:\n" + "\n".join(stale))


def copy_tree(to: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, to / name)


def run_tests(tree: Path, tests: str) -> tuple[int, str]:
    """Pytest's exit code and what it said, in a process forked from this one: it has torch, but not yet sonde."""
    words = [word if word.startswith("-") or "/" not in word else f"tests/{word}" for word in shlex.split(tests)]
    said = tree / "said.txt"
    child = multiprocessing.get_context("fork").Process(target=_pytest, args=(tree, words, said))
    child.start()
    child.join(TIMEOUT)
    if child.is_alive():
        child.kill()
        child.join()
        return KILLED, "FAILED it took too long\n"
    assert child.exitcode is not None
    return child.exitcode, said.read_text()


def _pytest(tree: Path, words: list[str], said: Path) -> None:
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree / "src")  # for the processes that tests start
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(tree / ".hypothesis")
    sys.path.insert(0, str(tree / "src"))
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        options = ["-q", "-x", "-p", "no:cacheprovider", "--rootdir", str(tree)]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is imported already
        sys.exit(int(pytest.main([*options, *words])))


def healthy(tree: Path, mutants: tuple[Mutant, ...]) -> None:
    """Without a bug all the tests pass, in the copy: otherwise a failure would kill nothing."""
    assert "sonde" not in sys.modules, "the tests have to import the copy"
    groups = list(dict.fromkeys(mutant.tests for mutant in mutants))
    for number, tests in enumerate(groups, start=1):
        code, said = run_tests(tree, tests)
        if code != SURVIVED:
            sys.exit(f"without any bug, {tests} ends with {code}:\n{said[-3000:]}")
        print(f"[{number}/{len(groups)}] passes without a bug: {tests}", flush=True)


def plant(tree: Path, mutant: Mutant) -> str | None:
    """The first test that fails with the bug in place; None where all of them pass."""
    path = tree / "src" / "sonde" / mutant.file
    sound = path.read_text()
    path.write_text(sound.replace(mutant.text, mutant.bug))
    try:
        code, said = run_tests(tree, mutant.tests)
    finally:
        path.write_text(sound)
    if code == SURVIVED:
        return None
    failed = [line for line in said.splitlines() if line.startswith("FAILED ")]
    if code != KILLED or not failed:
        sys.exit(f"{mutant.name}: the tests did not run:\n{said[-3000:]}")
    return failed[0].removeprefix("FAILED ").split(" - ")[0].split("::")[-1]


def main(wanted: list[str]) -> None:
    check(MUTANTS)
    mutants = tuple(m for m in MUTANTS if not wanted or any(word in m.name for word in wanted))
    if not mutants:
        sys.exit(f"no mutant is called {' or '.join(wanted)}")
    warm_up()
    begin, survivors = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder).resolve()
        copy_tree(tree)
        healthy(tree, mutants)
        for number, mutant in enumerate(mutants, start=1):
            killer = plant(tree, mutant)
            said = f"killed by {killer}" if killer else f"SURVIVED {mutant.tests}"
            print(f"[{number}/{len(mutants)}] {mutant.name}: {said}", flush=True)
            if killer is None:
                survivors.append(mutant.name)
    minutes = (time.monotonic() - begin) / 60
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} killed in {minutes:.0f} min")
    if survivors:
        sys.exit("survived: " + "; ".join(survivors))


if __name__ == "__main__":
    main(sys.argv[1:])
