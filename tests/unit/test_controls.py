"""Studies of controls: what each varies, the exact values of what they rest on, and what their findings say."""

import math
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch

from evidence import rules_evidence
from sonde.config import RunConfig, change, name_of
from sonde.core.errors import SondeError
from sonde.models import ResidualMLP, StudentNet
from sonde.network.losses import MEAN_SQUARED_ERROR
from sonde.rules import Backprop, DirectFeedback, Frozen, StateBridge
from sonde.show.figures import FIGURES, Evidence
from sonde.store.load import load
from sonde.store.run import Runs, with_readings
from sonde.studies import STUDIES
from sonde.studies.controls import CONTROL_STUDIES, PENALTIES
from sonde.studies.recipes import depth_matters
from sonde.studies.study import gather
from sonde.tasks import Cifar10, Digits, LinearQuadratic
from sonde.training.program import Program
from sonde.training.step import exact_gradients
from sonde.training.train import stackable
from stores import write_run

CPU = torch.device("cpu")


def program(config: RunConfig) -> Program:
    return Program(config, config.task.load(config.seed, None, CPU, torch.float32), CPU)


def on_digits(rule: Backprop | DirectFeedback | Frozen | StateBridge, trained: int | None) -> RunConfig:
    (config,) = (one for one in STUDIES["random_targets"].configs("quick", [7]) if name_of("rule", one.rule) == "bp")
    return replace(config, rule=rule, task=Digits(), model=ResidualMLP(d=16, L=4, trained_blocks=trained), epochs=1)


def moved(one: Program) -> list[bool]:
    """Whether each block has changed."""
    changed = {name: not torch.equal(p, one.initial[name]) for name, p in one.net.named_parameters()}
    return [any(is_ for name, is_ in changed.items() if name.startswith(f"blocks.{block}.")) for block in range(4)]


@pytest.mark.parametrize("rule", [Backprop(), DirectFeedback(), StateBridge()])
def test_only_the_last_blocks_learn(rule: Backprop | DirectFeedback | StateBridge) -> None:
    one = program(on_digits(rule, 1))
    one.train_epoch(1)
    assert moved(one) == [False, False, False, True]


def test_backprop_with_no_trained_block_is_the_frozen_baseline() -> None:
    fixed, frozen = program(on_digits(Backprop(), 0)), program(on_digits(Frozen(), None))
    for one in (fixed, frozen):
        one.train_epoch(1)
    for (name, p), q in zip(fixed.net.named_parameters(), frozen.net.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6), name


def test_all_blocks_trained_is_the_rule_as_it_is_to_rounding() -> None:
    every, plain = (program(on_digits(Backprop(), trained)) for trained in (4, None))
    for one in (every, plain):
        one.train_epoch(1)
    assert moved(every) == [True] * 4
    for p, q in zip(every.net.parameters(), plain.net.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-5)


def test_fixed_blocks_do_not_train_in_a_stack_and_more_blocks_than_there_are_is_an_error() -> None:
    assert stackable(on_digits(Backprop(), None))
    assert not stackable(on_digits(Backprop(), 2))
    with pytest.raises(SondeError, match="choose at most 4"):
        program(on_digits(Backprop(), 5))


def test_random_labels_differ_by_seed_and_tell_nothing_of_the_images() -> None:
    true, one, again, other = (
        Digits(random_labels=random).load(seed, None, CPU, torch.float32).test(0, 360)
        for random, seed in ((False, 1), (True, 1), (True, 1), (True, 2))
    )
    assert torch.equal(true[0], one[0])
    assert torch.equal(one[1], again[1])
    assert not torch.equal(one[1], other[1])
    assert (one[1] == true[1]).double().mean() < 0.2
    assert Cifar10().label == "CIFAR-10"
    assert Cifar10(random_labels=True).label == "CIFAR-10, random labels"


def test_new_options_change_no_id() -> None:
    """The ids of runs that were stored before there were these options."""
    (config,) = (one for one in STUDIES["audit"].configs("full", [42]) if name_of("rule", one.rule) == "dfa")
    assert config.id == "residual_mlp-dfa-cifar10-s42-5fa8cb956f"
    for key, value in {"model.trained_blocks": 4, "task.random_labels": True}.items():
        assert change(config, {key: value}).id != config.id


def linear(config: RunConfig) -> list[torch.Tensor]:
    """1 + W2 W1 of every block, then the head, in float64."""
    net = config.model.build(config.signature, torch.Generator().manual_seed(0)).double()
    eye = torch.eye(config.model.d, dtype=torch.float64)
    blocks = [eye + block.w2.weight @ block.w1.weight for block in net.blocks]
    return [*(m.detach() for m in blocks), net.readout.out_head.weight.detach()]


def test_the_gradient_that_credit_is_compared_with_is_the_costate_of_the_linear_quadratic_problem() -> None:
    """g_l = (1 + A_l)ᵀ … (1 + A_{L−1})ᵀ Wᵀ · 2(z − y)/d, by matrix products alone."""
    config = STUDIES["linear_quadratic"].configs("quick", [1])[0]
    assert isinstance(config.model, StudentNet)
    assert config.model.alpha == 0
    net = config.model.build(config.signature, torch.Generator().manual_seed(0)).double()
    x, y = torch.randn(2, 5, 16, dtype=torch.float64)
    with torch.no_grad():
        states, z = net.states(x)
    *blocks, head = linear(config)
    costate = 2 * (z - y) / 16 @ head
    found = exact_gradients(net, states, y, MEAN_SQUARED_ERROR, x)
    for layer in reversed(range(len(states))):
        assert torch.allclose(found[layer], costate, atol=1e-12)
        costate = costate @ blocks[layer - 1] if layer else costate


def test_at_rate_0_the_network_stays_and_the_bridge_learns() -> None:
    (config,) = (
        one for one in STUDIES["linear_quadratic"].configs("quick", [1]) if name_of("rule", one.rule) == "state_bridge"
    )
    one = program(replace(config, task=LinearQuadratic(d=16, samples=6400), epochs=1))

    def cosine() -> float:
        found = {reading.layer: reading.value for reading in one.probe(0) if reading.metric == "credit_cosine"}
        return math.fsum(found[layer] for layer in (1, 2, 3)) / 3

    before = cosine()
    for _ in range(2):
        one.train_epoch(1)
    assert all(torch.equal(p, one.initial[name]) for name, p in one.net.named_parameters())
    assert cosine() > before + 0.2


@pytest.mark.parametrize("name", CONTROL_STUDIES)
def test_the_runs_of_a_control_differ_in_one_thing_and_its_findings_have_every_setting(
    name: str, tmp_path: Path
) -> None:
    configs = STUDIES[name].configs("quick", [1, 2])
    for config in configs:
        write_run(tmp_path, config)
    found = STUDIES[name].findings(gather(load(tmp_path), configs, "the store"))
    headline, *settings = found
    assert not headline.shown
    assert {run for one in settings for run in one.runs} == {config.id for config in configs} == set(headline.runs)
    assert all(one.shown["n"] == "2" and len(one.runs) == 2 for one in settings)
    assert len({tuple(one.shown) for one in settings}) == 1


@pytest.mark.parametrize("seeds", [(42,), (42, 123, 456)])
def test_a_rule_is_above_frozen_blocks_only_by_more_than_two_standard_errors(
    tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    chosen = [one for one in STUDIES["deep"].configs("quick", seeds) if one.model.L == 4]
    chosen = [one for one in chosen if name_of("rule", one.rule) in ("bp", "frozen")]
    frozen = {write_run(tmp_path, one): name_of("rule", one.rule) == "frozen" for one in chosen}
    stored = load(tmp_path)
    samples = int(stored.rows.filter(metric="test_acc")["samples"][0])
    spread = 0.01  # of the seeds: 0.4 − 0.01, 0.4, 0.4 + 0.01
    error = math.sqrt(2 * 0.24 / samples) if len(seeds) == 1 else math.sqrt(2 * spread**2 / 3)
    for gain, above in ((1.8 * error, "none"), (2.3 * error, "BP")):
        values = {
            run.id: 0.4 + spread * (seeds.index(run.seed) - len(seeds) // 2) + (0 if frozen[run.id] else gain)
            for run in stored.runs
        }
        accurate = pl.col("metric") == "test_acc"
        rows = stored.rows.with_columns(
            value=pl.when(accurate).then(pl.col("run").replace_strict(values)).otherwise("value")
        )
        runs = with_readings(rows, stored.runs, rows["metric"].unique().to_list())
        gathered = gather(Runs(rows, list(runs.values())), chosen, "runs")
        headline = STUDIES["deep"].findings(gathered)[0].sentence
        assert f"standard errors: {above} at L = 4." in headline, headline


def test_a_penalty_of_the_sweep_is_the_rule_with_that_penalty() -> None:
    configs = STUDIES["penalty"].configs("full", [42])
    assert {config.rule.penalty for config in configs} == set(PENALTIES)
    assert {config.epochs for config in configs} == {30}
    assert len(configs) == 5 * len(PENALTIES)
    bp = depth_matters(ResidualMLP(d=256, L=4), Backprop(), scale="full", seed=42, epochs=30, probes=configs[0].probes)
    assert bp.id in {config.id for config in configs}
    assert bp.id == "residual_mlp-bp-cifar10-s42-3b8cb25097", "the run that the rules study has stored"


def test_accuracy_by_depth_has_a_line_for_a_rule_at_several_depths_through_its_means() -> None:
    shallow, deep = (rules_evidence(seeds=(42, 123), epochs=4, depth=depth) for depth in (4, 64))
    rename = pl.format("{}-deep", "run").alias("run")
    frozen_alone = pl.col("rule") != "dfa"
    runs = pl.concat([shallow.runs, deep.runs.filter(frozen_alone).with_columns(rename)])
    rows = pl.concat([shallow.rows, deep.rows.with_columns(rename)])
    rows = rows.join(runs.select("run"), on="run", how="semi")
    figure, caption = FIGURES["accuracy_by_depth"].draw(Evidence(rows, runs, "runs"))
    lines = {str(line.get_label()): line for line in figure.axes[0].lines if not str(line.get_label()).startswith("_")}
    assert "BP" in lines
    assert "DFA" not in lines
    assert "At one depth, and not shown: DFA." in caption
    last = rows.filter(metric="test_acc", epoch=4).join(runs.select("run", "rule", "depth"), on="run")
    for depth, y in zip((4, 64), lines["BP"].get_ydata(), strict=True):
        assert y == pytest.approx(last.filter(rule="bp", depth=depth)["value"].mean())
