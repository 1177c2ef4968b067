"""What is said of the numbers: the floor of a loss, the way of a gradient back, the name of a rule."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import sonde
from conftest import tiny_config
from evidence import RESIDUAL, residual_evidence
from sonde.analysis.audit import AuditCache, audit
from sonde.analysis.theory import backward_norms, independent_factor, lowest_loss, moments
from sonde.config import Optimiser, RunConfig, label_of
from sonde.core.formatting import loss_change, loss_status, loss_verdict
from sonde.core.generators import generator
from sonde.core.run_ids import RULE_DEFAULTS as DEFAULTS
from sonde.core.run_ids import VERSIONS, rule_label
from sonde.metrics.rows import empty
from sonde.models import PlainMLP, ResMLP
from sonde.network import Signature
from sonde.rules import RULES, CreditBridge, FeedbackAlignment, PredictiveCoding, StateBridge
from sonde.show.figures import Evidence
from sonde.show.figures.groups import by_step, pair_of
from sonde.show.figures.residual_gradient import backward_flow
from sonde.show.figures.residual_loss import loss_ends
from sonde.show.report.answers import of_networks, of_recipe
from sonde.store.run import Runs
from sonde.studies import STUDIES
from sonde.studies.residual import DEPTHS, configs, findings, with_linear_output
from sonde.studies.study import Gathered, gather
from stores import config, healthy, run, store

TRIVIAL = 1 / 3
FLOOR = 1 / 6


# ── the floor of a network that ends in a ReLU ──────────────────────────────────────────────────────
def test_no_weights_of_a_plain_network_bring_its_loss_below_the_floor() -> None:
    """With W = 1 the loss is what the ReLU cuts off: the floor itself."""
    x = torch.rand(200_000, 4, generator=generator(1, "x"), dtype=torch.float64) * 2 - 1
    signature = Signature(shape=(4,), outputs=4, classifies=False)
    losses = {}
    for output in ("relu", "linear"):
        net = PlainMLP(d=4, L=1, output=output).build(signature, generator(1, "init")).double()  # type: ignore[arg-type]
        with torch.no_grad():
            net.blocks[0].linear.weight.copy_(torch.eye(4))  # type: ignore[union-attr]
            losses[output] = float(((net(x) - x) ** 2).mean())
    assert losses["relu"] == pytest.approx(FLOOR, rel=0.01)
    assert losses["linear"] == 0
    assert lowest_loss("plain_mlp", "identity") == FLOOR
    assert lowest_loss("plain_mlp", "identity", "linear") == lowest_loss("res_mlp", "identity") == 0
    assert lowest_loss("plain_mlp", "digits") is None


def test_a_plain_network_at_its_floor_has_learned() -> None:
    """0.52 times the loss of predicting zero, after 200 epochs of one layer: there is hardly more to learn."""
    final = 0.52 * TRIVIAL
    change = loss_change(0.6, [final] * 10, FLOOR)
    assert loss_status(change.fell, final, TRIVIAL, FLOOR) == "learned"
    assert loss_status(change.fell, final, TRIVIAL) == "learned little"


def test_a_change_within_the_noise_of_the_batches_is_neither_rise_nor_fall() -> None:
    noisy = [TRIVIAL * (1 + 0.014 * (-1) ** step) for step in range(50)]
    change = loss_change(TRIVIAL * 0.992, noisy, FLOOR)
    assert 2 < change.fell_error < 4
    said = loss_verdict(change.fell, change.final, TRIVIAL, FLOOR, change.fell_error)
    assert "rose" not in said
    assert "fell" not in said
    assert "0.167" in said
    assert "rose 50.0" in loss_verdict(-50, 0.5, TRIVIAL, 0.0, 1.0)


def test_figures_show_the_floor_and_judge_what_lies_above_it() -> None:
    one = residual_evidence()
    for name in ("training_loss", "learning_comparison"):
        figure, caption = RESIDUAL[name].draw(one)
        floors = [line.get_ydata()[0] for line in figure.axes[0].lines if "lowest for" in str(line.get_label())]
        assert floors == [FLOOR]
        assert "0.167" in caption
    pair = pair_of(one.of(variant="raw"))
    ends = loss_ends(pair, by_step(pair).rows)
    initial, final = ends.of("plain_mlp", "initial")[0], ends.of("plain_mlp", "final")[0]
    assert ends.of("plain_mlp", "reduction")[0] == pytest.approx(100 * (initial - final) / (initial - FLOOR))


def test_the_study_trains_networks_without_a_floor_at_every_depth_and_keeps_its_own_runs() -> None:
    own, beside = configs("full", [42]), with_linear_output("full", [42])
    assert [one.id.rpartition("-")[2] for one in own] == [
        "c3fa4fc54f", "bc6499289c", "6019588394", "6525816cb4",
    ]  # fmt: skip
    assert {one.model.L for one in beside} == set(DEPTHS) == {1, 2, 5, 10, 20}
    assert {type(one.model) for one in beside} == {PlainMLP, ResMLP}
    assert len({one.id for one in beside}) == len(beside) == 18
    for one in beside:
        assert lowest_loss("plain_mlp", "identity", one.model.output) == 0  # type: ignore[attr-defined]


def small(one: RunConfig) -> RunConfig:
    task = replace(one.task, d=16, samples=64, steps_per_epoch=10)  # type: ignore[call-arg]
    model = replace(one.model, d=16, L=min(one.model.L, 3))
    return replace(one, task=task, model=model, epochs=2, batch_size=16, optimiser=Optimiser(name="adam", lr=1e-2))


def test_the_first_sentence_is_of_networks_that_can_represent_the_identity(tmp_path: Path) -> None:
    own = {one.id: one for one in map(small, configs("full", [42]))}
    beside = {one.id: one for one in map(small, with_linear_output("full", [42]))}
    for one in (own | beside).values():
        sonde.train(one, runs=tmp_path)
    gathered = gather(sonde.load(tmp_path), list(own.values()), "runs", beside=list(beside.values()))
    found = findings(gathered)
    assert found[0].numbers["network"] == "Plain MLP, linear output"
    assert found[0].numbers["variant"] == "scaled"
    assert set(found[0].numbers["losses_over_trivial"]) == {1, 2, 3}
    plain = next(one for one in found if one.numbers["network"] == "Plain MLP")
    assert plain.numbers["lowest_loss"] == FLOOR
    assert plain.shown["lowest"] == "0.167"
    figure, caption = RESIDUAL["loss_by_depth"].draw(gathered.evidence)
    assert "n = 1 seed" in figure.get_suptitle()
    assert "×" in caption
    answer = of_networks(gathered, found)
    assert answer is not None
    assert all("linear output" in dots.label for dots in answer.dots)
    assert found[0].sentence == answer.beside[0]
    assert len(answer.dots) == 4
    assert set(answer.runs) <= beside.keys()


# ── the gradient's way back ─────────────────────────────────────────────────────────────────────────
def measured(residual: bool, alpha: float, depth: int, width: int, *, linear: bool, draws: int = 6) -> list[float]:
    """Root mean square over draws, samples and units of the gradient at every linear output."""
    squares = [0.0] * depth
    for seed in range(draws):
        draw = generator(seed, "theory")
        x = torch.rand(32, width, generator=draw, dtype=torch.float64) * 2 - 1
        h, outputs = x, []
        for layer in range(depth):
            weight = torch.randn(width, width, generator=draw, dtype=torch.float64) * alpha * (2 / width) ** 0.5
            z = (h @ weight.T).requires_grad_()
            outputs.append(z)
            branch = z if linear and layer == depth - 1 else z.relu()
            h = h + branch if residual else branch
        gradients = torch.autograd.grad(((h - x) ** 2).sum() / 2, outputs)
        squares = [total + float(g.square().mean()) / draws for total, g in zip(squares, gradients, strict=True)]
    return [math.sqrt(square) for square in squares]


@pytest.mark.parametrize(
    ("residual", "alpha", "linear"),
    [(True, 1.0, False), (True, 20**-0.5, False), (True, 0.5, True), (False, 1.0, True), (False, 0.5, False)],
)
def test_the_theory_of_the_gradient_is_that_of_the_identitys_own_loss(
    residual: bool, alpha: float, linear: bool
) -> None:
    depth = 12
    theory = backward_norms(residual, alpha, depth, linear_output=linear)
    assert measured(residual, alpha, depth, 256, linear=linear) == pytest.approx(theory, rel=0.15)


def test_an_independent_gradient_is_another_one() -> None:
    """At α = 1 and 20 layers the factor √(1 + α²) is wrong for the identity by more than an order of magnitude."""
    theory = backward_norms(True, 1.0, 20)
    assert theory[0] / theory[-1] > 40 * independent_factor(True, 1.0) ** 19
    grown = moments(True, 1.0, 20)
    assert math.sqrt(grown[-1][0] / grown[0][0]) > independent_factor(True, 1.0) ** 20


def test_the_line_of_the_theory_is_drawn_for_the_identity_alone() -> None:
    one = residual_evidence()
    assert backward_flow(pair_of(one.of(variant="scaled"))).theory.keys() == {"plain_mlp", "res_mlp"}
    other = Evidence(one.rows, one.runs.with_columns(task=pl.lit("digits")), one.source)
    assert backward_flow(pair_of(other.of(variant="scaled"))).theory == {}


def test_the_signal_is_drawn_before_and_after_training_and_the_theory_before() -> None:
    figure, caption = RESIDUAL["signal_flow"].draw(residual_evidence())
    titles = [ax.get_title(loc="left") for ax in figure.axes[:4]]
    assert ["initialisation" in title for title in titles] == [True, True, False, False]
    lines = [[line.get_label() for line in ax.lines] for ax in figure.axes[:4]]
    assert ["theory at init" in labels for labels in lines] == [True, True, False, False]
    assert "at initialisation and after 200 steps" in caption


# ── what a rule is called ───────────────────────────────────────────────────────────────────────────
def test_what_differs_from_a_rules_defaults_stands_in_its_label() -> None:
    assert label_of("rule", StateBridge()) == "State Bridge"
    assert label_of("rule", StateBridge(hidden_layers=1, every=4)) == "State Bridge (hidden_layers=1, every=4)"
    assert label_of("rule", CreditBridge(warmup=0, perturb=0.1)) == "Credit Bridge (warmup=0.0, perturb=0.1)"
    assert label_of("rule", FeedbackAlignment(level="layer")) == "FA by layers"
    assert label_of("rule", PredictiveCoding(steps=5, depth_scale=True)) == "µPC (steps=5)"


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ("µPC (steps=16, depth_scale=true)", "µPC (steps=16)"),
        ("µPC (depth_scale=true)", "µPC"),
        ("µPC (steps=16)", "µPC (steps=16)"),
        ("PC", "PC"),
    ],
)
def test_a_stored_label_loses_the_option_that_the_name_states(stored: str, said: str) -> None:
    assert rule_label(stored, {"name": "pc"}) == said


@pytest.mark.parametrize(
    "rule", [StateBridge(hidden_layers=1, every=4), FeedbackAlignment(level="layer"), StateBridge()]
)
def test_a_stored_rule_is_called_what_its_configuration_says(rule: Any, tmp_path: Path) -> None:
    trained = tiny_config(rule=rule)
    sonde.train(trained, runs=tmp_path)
    (stored,) = sonde.load(tmp_path).runs
    assert stored.about["rule_label"] == label_of("rule", rule)
    assert rule_label(type(rule)().label, stored.config["rule"]).startswith(type(rule)().label)
    if rule == StateBridge(hidden_layers=1, every=4):  # as runs were stored before labels had their settings
        assert rule_label("State Bridge", stored.config["rule"]) == label_of("rule", rule)


def test_the_table_of_defaults_is_that_of_the_rules() -> None:
    for name, defaults in DEFAULTS.items():
        default = RULES[name]()
        assert defaults == {option: getattr(default, option) for option in defaults}, name
    assert {n: v for n in DEFAULTS if (v := getattr(RULES[n], "version", 1)) != 1} == VERSIONS["rule"]
    versioned = {"name": "dfa", "version": 2, "credit_scale": "rms", "penalty": 0.0}
    assert rule_label("DFA", versioned) == "DFA (version=2)"


def test_two_settings_of_a_rule_have_two_labels_in_the_audit() -> None:
    other = {"rule__input_norm": "layer", "rule__side": "error"}
    runs = [run(config("state_bridge", 1, **other), healthy(1), rule_label="State Bridge")]
    shorter = config("state_bridge", 1, **other, rule__every=4)
    runs.append(run(shorter, healthy(1), rule_label=rule_label("State Bridge", shorter["rule"])))
    (recipe,) = audit(store(*runs)).recipes
    assert sorted(rule.label for rule in recipe.rules) == ["State Bridge", "State Bridge (every=4)"]


# ── the order of answers ────────────────────────────────────────────────────────────────────────────
def test_rules_are_ordered_by_their_mean_and_not_by_their_first_seed() -> None:
    """DFA has the better first seed and the worse mean."""
    accuracies = {"dfa": (0.9, 0.5, 0.5), "fa": (0.7, 0.8, 0.8)}
    runs = [
        run(config(rule, seed), healthy(seed, accuracy))
        for rule, of_seeds in accuracies.items()
        for seed, accuracy in enumerate(of_seeds, 1)
    ]
    stored = store(*runs)
    (recipe,) = audit(stored).recipes
    answer = of_recipe(recipe, {one.id: one for one in stored.runs})
    assert answer is not None
    assert [dots.label for dots in answer.dots] == ["FA", "DFA"]


def test_networks_are_ordered_by_their_mean_and_not_by_their_first_seed() -> None:
    evidence = residual_evidence(seeds=(42, 43, 44), variants=("scaled",), steps=20)
    first = pl.col("run") == "plain_mlp-scaled-42"  # the lowest loss of all, once
    lower = pl.when((pl.col("metric") == "batch_loss") & first).then(1e-6).otherwise("value")
    lowered = Evidence(evidence.rows.with_columns(value=lower), evidence.runs, evidence.source)
    nothing = Runs(empty(), [])
    gathered = Gathered(nothing, lowered, {}, AuditCache(nothing), nothing)
    answer = of_networks(gathered, STUDIES["residual"].findings(gathered))
    assert answer is not None
    assert [dots.style for dots in answer.dots] == ["res_mlp", "plain_mlp"]
