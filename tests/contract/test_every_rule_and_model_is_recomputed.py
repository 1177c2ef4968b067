"""What every rule, model and probe stores can be recomputed from what is stored, by its plain definition."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import sonde
from sonde.analysis.audit import audit
from sonde.analysis.recompute import MEASURED_DURING_EPOCH, Recomputation, recompute
from sonde.analysis.recompute.credits import CREDITS
from sonde.analysis.recompute.definitions import DEFINITIONS
from sonde.analysis.recompute.stored import read_last_epoch
from sonde.config import Optimiser, Probing, RunConfig
from sonde.metrics.probes import PROBES
from sonde.models import MODELS as MODEL_TABLE
from sonde.models import ConvNet, Model, PlainMLP, ResidualMLP, ResMLP, ResNet, StudentNet, VitMini
from sonde.rules import (
    RULES,
    CreditBridge,
    DirectFeedback,
    DualPropagation,
    EquilibriumPropagation,
    FeedbackAlignment,
    ForwardForward,
    Pepita,
    PredictiveCoding,
    Rule,
    StateBridge,
)
from sonde.rules.dfa import DirectKolenPollack
from sonde.store.run import open_run
from sonde.tasks import Identity, Parity, Task, Teacher

MODELS: dict[str, Model] = {
    "plain_mlp": PlainMLP(d=16, L=2),
    "res_mlp": ResMLP(d=16, L=2, weight_scale="1/sqrt(L)"),
    "residual_mlp": ResidualMLP(d=12, L=3, w2_std=0.3),
    "vit_mini": VitMini(d=8, L=2, heads=2, patch=2),
    "student_net": StudentNet(d=16, L=2),
    "conv_net": ConvNet(channels=(3, 4), d=8),
    "res_net": ResNet(d=2, norm="batch"),
}
MAPS = ("conv_net", "res_net")  # whose units change the shape of their states
RULE_CASES: dict[str, Rule] = {name: rule() for name, rule in RULES.items()} | {
    "fa, level: layer": FeedbackAlignment(level="layer")
}
PAIRS = [
    (model, rule) for model in MODELS for rule in RULE_CASES if not (model in MAPS and rule in ("fa", "credit_bridge"))
]
# A rule meets every network in the same code: one of vectors, one of tokens and one of maps will do, and of each other
# network three rules; the rest with `make test-slow`.
FEW = ("residual_mlp", "vit_mini", "conv_net")
FIRST_RULES = ("bp", "fa", "dfa", "state_bridge", "credit_bridge", "frozen")
OFTEN = ("bp", "dfa", "state_bridge")
TEACHER = Teacher(inputs=16, samples=96, test_samples=256, d=8, classes=5)  # two batches of cross_batch_cosine
IMAGES = Parity(samples=96, test_samples=256)
IDENTITY = Identity(d=16, samples=64, test_samples=256, steps_per_epoch=3)
EVERYTHING = Probing(names=tuple(PROBES), costly=(), size=6, directions=4)
# It asks the network alone, and its plain definition takes 256 samples one by one: under a few rules.
LESS = replace(EVERYTHING, names=tuple(name for name in PROBES if name != "cross_batch_cosine"))


def config_of(model: Model, rule: Rule, task: Task = TEACHER, **changes: object) -> RunConfig:
    values: dict[str, object] = {
        "model": model,
        "rule": rule,
        "task": task,
        "optimiser": Optimiser(lr=3e-3),
        "probes": EVERYTHING if rule in [RULE_CASES[name] for name in OFTEN] else LESS,
        "batch_size": 32,
        "epochs": 2,
        "log": "step",
    }
    return RunConfig(**(values | changes))  # type: ignore[arg-type]


def recomputed(config: RunConfig, runs: Path) -> Recomputation:
    sonde.train(config, runs=runs)
    found = recompute(read_last_epoch(open_run(runs / config.id)))
    assert not found.wrong, [line.wrong.words for line in found.lines if line.wrong is not None]
    return found


def assert_all_within_tolerance(found: Recomputation) -> None:
    for single, tolerance in ((False, 1e-9), (True, 1e-6)):
        worst = found.worst(single=single)
        assert worst is not None
        assert worst.relative < tolerance, worst.words
    assert {line.metric for line in found.lines if line.reason is not None} <= set(MEASURED_DURING_EPOCH)
    recomputed = [line for line in found.lines if line.reason is None]
    assert {line.verdict for line in recomputed} == {"agrees"}
    assert sum(line.values for line in recomputed) > 60


def test_every_probe_rule_and_model_is_among_the_definitions_and_the_cases() -> None:
    beside = {"evaluation", "grad_resolution"}  # of the whole test set; measured with grad_norm
    assert DEFINITIONS.keys() == PROBES.keys() | beside
    assert CREDITS.keys() == RULES.keys()
    assert MODELS.keys() == MODEL_TABLE.keys()


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (model, rule) if model in FEW or rule in OFTEN else pytest.param(model, rule, marks=pytest.mark.slow)
        for model, rule in PAIRS
        if model in FEW or rule in FIRST_RULES
    ],
)
def test_a_run_of_every_rule_and_model_is_recomputed_to_the_last_digits(model: str, rule: str, tmp_path: Path) -> None:
    task = IMAGES if model in MAPS else TEACHER
    assert_all_within_tolerance(recomputed(config_of(MODELS[model], RULE_CASES[rule], task), tmp_path))


@pytest.mark.parametrize("rule", [DirectFeedback(per_channel=True), DirectKolenPollack(per_channel=True)])
def test_so_is_credit_that_the_positions_of_a_map_share(rule: Rule, tmp_path: Path) -> None:
    config = config_of(MODELS["conv_net"], rule, IMAGES)
    assert_all_within_tolerance(recomputed(config, tmp_path))


@pytest.mark.parametrize(
    "rule", [FeedbackAlignment(credit_at="input"), StateBridge(input_norm="none", credit_at="input")]
)
def test_so_is_a_rule_whose_blocks_learn_from_the_credit_of_their_input(rule: Rule, tmp_path: Path) -> None:
    assert_all_within_tolerance(recomputed(config_of(MODELS["residual_mlp"], rule), tmp_path))


@pytest.mark.parametrize(
    "rule",
    [
        StateBridge(side="top_gradient", input_norm="none"),
        CreditBridge(warmup=1.0),
        CreditBridge(warmup=1.0, warmup_by="nothing"),
        CreditBridge(input_norm="none"),
        CreditBridge(warmup=0.0, perturb=0.1),
        StateBridge(hidden=4, hidden_layers=11),
    ],
    ids=["side", "warm-up", "waiting", "no norm", "perturbed", "more layers than digits"],
)
@pytest.mark.parametrize("model", ["residual_mlp", pytest.param("vit_mini", marks=pytest.mark.slow)])
def test_so_is_every_option_of_a_bridge(model: str, rule: Rule, tmp_path: Path) -> None:
    assert_all_within_tolerance(recomputed(config_of(MODELS[model], rule), tmp_path))


@pytest.mark.parametrize(
    "rule",
    [
        PredictiveCoding(learn_at="arrival"),
        PredictiveCoding(depth_scale=True),
        EquilibriumPropagation(one_sided=True),
        DualPropagation(alpha=0.8, passes=2),
        Pepita(scale=0.5),
        ForwardForward(prediction="readout"),
    ],
    ids=["on arrival", "depth scale", "one-sided", "asymmetric", "scale", "readout"],
)
def test_so_is_every_option_of_a_rule_that_moves_the_states(rule: Rule, tmp_path: Path) -> None:
    assert_all_within_tolerance(recomputed(config_of(MODELS["residual_mlp"], rule), tmp_path))


def test_the_credit_of_forward_forward_is_undefined_with_its_reason_in_rows_and_audit(tmp_path: Path) -> None:
    for rule in (ForwardForward(), RULES["frozen"]()):
        sonde.train(config_of(MODELS["residual_mlp"], rule), runs=tmp_path)
    runs = sonde.load(tmp_path)
    rows = runs.rows.filter(pl.col("run").str.contains("-ff-"))
    for metric in ("credit_norm", "credit_cosine", "rho", "nudge[0.01]"):
        found = rows.filter(metric=metric)
        assert found.height > 0
        assert set(found["reason"]) == {ForwardForward.undefined_credit}
    (recipe,) = audit(runs).recipes
    (line,) = (one for one in recipe.rules if one.rule == "ff")
    reasons = [line.tally(question).reason or "" for question in line.runs[0].answers]
    assert any(ForwardForward.undefined_credit in reason for reason in reasons)


@pytest.mark.parametrize(
    ("model", "rule"),
    [("res_mlp", rule) for rule in RULES if rule != "ff"] + [("plain_mlp", rule) for rule in OFTEN],
)
def test_so_is_a_regression(model: str, rule: str, tmp_path: Path) -> None:
    assert_all_within_tolerance(recomputed(config_of(MODELS[model], RULES[rule](), IDENTITY), tmp_path))


def test_so_is_a_step_of_a_given_length_and_a_run_in_float64(tmp_path: Path) -> None:
    probes = Probing(names=("rho", "nudge", "loss"), costly=(), size=6, directions=3, epsilon=1e-3, etas=(0.5,))
    config = config_of(MODELS["residual_mlp"], RULES["dfa"](), probes=probes, precision="float64")
    found = recomputed(config, tmp_path)
    assert found.worst(single=True) is None
    worst = found.worst(single=False)
    assert worst is not None
    assert worst.relative < 1e-9
    assert {"rho", "rho/bp", "rho/null", "nudge[0.5]", "test_loss", "test_acc"} <= {
        line.metric for line in found.lines if line.reason is None
    }
