"""Probes in a run: when they look, what survives a crash, and that training does not notice."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import sonde
from sonde.config import Probing, RunConfig
from sonde.metrics.probes import PROBES, Schedule, epochs_of
from sonde.models import ResidualMLP, ResMLP, VitMini
from sonde.rules import RULES, Backprop, CreditBridge
from sonde.tasks import Digits, Identity, Task
from sonde.training.program import Program, pack

CPU = torch.device("cpu")
EVERYTHING = Probing(names=tuple(name for name in PROBES if name != "trace"), costly=(), size=16, directions=3)
SMALL = RunConfig(
    model=ResidualMLP(d=8, L=2), rule=Backprop(), task=Digits(), probes=EVERYTHING, batch_size=256, epochs=3
)


@pytest.mark.parametrize("rule", RULES)
def test_weights_and_rule_are_bit_identical_with_and_without_probes(rule: str) -> None:
    config = replace(SMALL, rule=RULES[rule](), epochs=2)
    data = config.task.load(config.seed, None, CPU, torch.float32)
    probed, bare = (Program(config, data, CPU) for _ in range(2))
    probed.probe(0)
    for epoch in (1, 2):
        probed.train_epoch(epoch)
        assert len(probed.probe(epoch)) > 50
        bare.train_epoch(epoch)
    for name, value in bare.weights().items():
        assert torch.equal(probed.weights()[name], value), name
    assert pack(probed.state()) == pack(bare.state())


@pytest.mark.parametrize("rule", ["bp", "credit_bridge"])
def test_a_run_that_stops_and_resumes_reads_the_same_to_the_last_bit(rule: str, tmp_path: Path) -> None:
    config = replace(SMALL, rule=CreditBridge(warmup=0.5) if rule == "credit_bridge" else RULES[rule]())
    sonde.train(config, runs=tmp_path / "whole")
    for _ in range(config.epochs + 1):
        sonde.train(config, runs=tmp_path / "parts", should_stop=lambda: True)
    whole, parts = (sonde.load(tmp_path / folder).rows for folder in ("whole", "parts"))
    assert_frame_equal(whole, parts, check_exact=True)
    drift = whole.filter(pl.col("metric").str.starts_with("drift["))
    assert set(drift.filter(epoch=0, defined=True)["value"]) == {0.0}
    assert drift.filter(epoch=3, metric="drift[blocks.0.w1.weight]")["value"].item() > 0
    assert drift.filter(metric="drift[blocks.0.w2.bias]")["reason"].unique().to_list() == ["the initial tensor is zero"]


@pytest.mark.parametrize("task", [Digits(), Identity(d=8, samples=32, test_samples=40)], ids=["digits", "identity"])
def test_probes_look_at_the_first_test_samples(task: Task) -> None:
    probing = Probing(names=("loss", "trace"), costly=(), size=5)
    model = ResidualMLP(d=8, L=2) if task.classifies else ResMLP(d=8, L=2)
    config = replace(SMALL, model=model, task=task, probes=probing)
    data = task.load(config.seed, None, CPU, torch.float64)
    program = Program(replace(config, precision="float64"), data, CPU)
    found = {(reading.metric, reading.layer): reading for reading in program.probe(0)}
    x, y = data.test(0, data.test_samples)
    losses_N = data.loss.per_sample(program.net(x), y)
    assert found["loss", None].value == pytest.approx(losses_N[:5].mean().item(), rel=1e-12)
    assert found["loss", None].value != pytest.approx(losses_N[-5:].mean().item(), rel=1e-6)
    assert found["loss", None].samples == 5
    states, _ = program.net.states(x[:1])
    assert [found[f"state[{unit}]", 2].value for unit in range(8)] == pytest.approx(states[2][0].tolist())


def test_costly_probes_keep_their_own_schedule(tmp_path: Path) -> None:
    probing = Probing(size=16, directions=2, schedule="every_k", k=2, costly=("nudge",), costly_k=3)
    config = replace(SMALL, probes=probing, epochs=5)
    sonde.train(config, runs=tmp_path)
    rows = sonde.load(tmp_path).rows
    assert sorted(rows.filter(metric="credit_cosine/null")["epoch"].unique()) == [0, 2, 4, 5]
    assert sorted(rows.filter(metric="nudge[0.01]/bp")["epoch"].unique()) == [0, 1, 3, 5]
    assert sorted(rows.filter(metric="test_acc")["epoch"].unique()) == [0, 1, 2, 3, 4, 5]


def test_the_test_set_is_read_as_often_as_is_said_and_nothing_else_changes(tmp_path: Path) -> None:
    often = replace(SMALL, epochs=5)
    seldom = replace(often, probes=replace(often.probes, test_every=3))
    assert often.id != seldom.id
    for config in (often, seldom):
        sonde.train(config, runs=tmp_path)
    stored = sonde.load(tmp_path).rows
    rows = {config.id: stored.filter(run=config.id).drop("run") for config in (often, seldom)}
    tested = pl.col("metric").is_in(["test_acc", "test_loss"])
    kept = rows[often.id].filter(~tested | pl.col("epoch").is_in([0, 3, 5]))
    assert rows[seldom.id].equals(kept)
    assert kept.height < rows[often.id].height


def test_the_loss_of_a_smaller_last_batch_has_its_own_n(tmp_path: Path) -> None:
    config = replace(SMALL, log="step", epochs=1)
    sonde.train(config, runs=tmp_path)
    rows = sonde.load(tmp_path).rows.filter(metric="batch_loss").sort("step")
    samples = config.task.load(config.seed, None, CPU, torch.float32).train_samples
    assert rows["samples"].to_list()[-1] == samples % config.batch_size != 0
    assert rows["samples"].sum() == samples


def test_a_run_may_go_on_with_other_generators_than_those_of_its_device() -> None:
    config = SMALL
    program = Program(config, config.task.load(config.seed, None, CPU, torch.float32), CPU)
    state = program.state()
    (own,) = state["draws"]
    program.restore(program.weights(), state | {"draws": [own, own]})  # as of a GPU
    assert [one.tolist() for one in program.draws.state] == [own.tolist()]


def test_by_default_every_control_stands_beside_its_measurement(tmp_path: Path) -> None:
    config = replace(SMALL, model=VitMini(d=8, L=1, heads=2), probes=Probing(size=8, directions=2), epochs=1)
    sonde.train(config, runs=tmp_path)
    metrics = set(sonde.load(tmp_path).rows["metric"])
    for metric in ("credit_cosine", "rho", "nudge[0.001]", "nudge[0.01]", "nudge[0.1]"):
        assert {metric, f"{metric}/bp", f"{metric}/null"} <= metrics
    assert {"cross_batch_cosine", "branch_ratio", "branch_cosine", "growth", "credit_norm"} <= metrics


@given(
    schedule=st.sampled_from(["every_epoch", "every_k", "log_spaced", "final"]),
    k=st.integers(2, 12),
    epochs=st.integers(1, 300),
)
def test_every_schedule_looks_at_both_ends(schedule: Schedule, k: int, epochs: int) -> None:
    chosen = epochs_of(schedule, k, epochs)
    assert chosen <= set(range(epochs + 1))
    assert epochs in chosen
    assert (0 in chosen) == (schedule != "final")


def test_schedules() -> None:
    assert epochs_of("every_epoch", 5, 3) == {0, 1, 2, 3}
    assert epochs_of("every_k", 4, 10) == {0, 4, 8, 10}
    assert epochs_of("log_spaced", 4, 30) == {0, 1, 4, 16, 30}
    assert epochs_of("log_spaced", 2, 8) == {0, 1, 2, 4, 8}
    assert epochs_of("final", 5, 30) == {30}


def test_a_probe_in_both_lists_looks_once() -> None:
    probing = Probing(names=("loss", "rho"), costly=("rho",))
    assert probing.due(0, 1) == ["loss", "rho"]


def test_cross_batch_cosine_says_how_many_samples_it_used() -> None:
    probing = Probing(names=("cross_batch_cosine",), costly=())
    data = SMALL.task.load(SMALL.seed, None, CPU, torch.float32)
    (reading,) = Program(replace(SMALL, probes=probing), data, CPU).probe(1)
    assert reading.layer == 1
    assert reading.samples == min(8, data.test_samples // 128) * 128
    assert -1 <= reading.value <= 1
    data.test_samples = 255
    (reading,) = Program(replace(SMALL, probes=probing), data, CPU).probe(1)
    assert reading.reason == "fewer than two batches of 128 test samples"


def test_a_diverged_network_is_read_as_undefined() -> None:
    data = SMALL.task.load(SMALL.seed, None, CPU, torch.float32)
    for rule, value in itertools.product(RULES, (math.nan, math.inf)):
        program = Program(replace(SMALL, rule=RULES[rule]()), data, CPU)
        with torch.no_grad():
            program.net.blocks[0].w2.weight[0, 0] = value  # type: ignore[union-attr, index]
        readings = {(r.metric, r.layer): r for r in program.probe(0)}
        for metric in ("hidden_norm", "credit_cosine", "credit_cosine/bp", "rho/bp", "nudge[0.01]/bp"):
            assert not readings[metric, 2].defined, (rule, metric)
