"""Replicas trained as a stack against the same runs trained alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sonde
from sonde.config import Probing, RunConfig
from sonde.core.errors import SondeError
from sonde.models import PlainMLP, ResidualMLP, ResMLP, StudentNet
from sonde.rules import Backprop, CreditBridge, DirectFeedback, FeedbackAlignment, Frozen
from sonde.store.folder import read_manifest, read_tensors, read_trained
from sonde.tasks import Data, Digits, Identity, Teacher
from sonde.training.program import DTYPES, Program, pack, unpack
from sonde.training.train import Stack, stackable, train, train_together
from stores import forge

CPU = torch.device("cpu")
STEPS = 50
RESIDUAL = ResidualMLP(d=32, L=2)
CASES = {
    "plain, identity": RunConfig(
        model=PlainMLP(d=64, L=6, weight_scale="1/sqrt(L)"),
        rule=Backprop(),
        task=Identity(steps_per_epoch=STEPS),
        batch_size=64,
    ),
    "residual, identity": RunConfig(
        model=ResMLP(d=64, L=6, weight_scale="1/sqrt(L)"),
        rule=Backprop(penalty=0.01),
        task=Identity(steps_per_epoch=STEPS),
        batch_size=64,
    ),
    "plain, linear output": RunConfig(
        model=PlainMLP(d=64, L=6, output="linear"),
        rule=Backprop(),
        task=Identity(steps_per_epoch=STEPS),
        batch_size=64,
    ),
    "bp": RunConfig(model=RESIDUAL, rule=Backprop(), task=Digits(), batch_size=29),
    "bp, normalised": RunConfig(model=RESIDUAL, rule=Backprop(credit_scale="rms"), task=Digits(), batch_size=29),
    "fa": RunConfig(model=RESIDUAL, rule=FeedbackAlignment(), task=Digits(), batch_size=29),
    "dfa": RunConfig(model=RESIDUAL, rule=DirectFeedback(), task=Digits(), batch_size=29),
    "dfa, penalty": RunConfig(model=RESIDUAL, rule=DirectFeedback(penalty=0.01), task=Digits(), batch_size=29),
    "fa, credit of the input": RunConfig(
        model=RESIDUAL, rule=FeedbackAlignment(credit_at="input"), task=Digits(), batch_size=29
    ),
    "frozen": RunConfig(model=RESIDUAL, rule=Frozen(), task=Digits(), batch_size=29),
    "frozen, normalised": RunConfig(model=RESIDUAL, rule=Frozen(credit_scale="rms"), task=Digits(), batch_size=29),
    "student": RunConfig(model=StudentNet(d=32, L=2), rule=DirectFeedback(), task=Teacher(samples=3150), batch_size=63),
}


def programs(config: RunConfig, seeds: range) -> list[Program]:
    configs = [replace(config, seed=seed, epochs=4) for seed in seeds]
    return [
        Program(config, config.task.load(config.seed, None, CPU, DTYPES[config.precision]), CPU) for config in configs
    ]


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
@pytest.mark.parametrize("name", CASES)
def test_a_stack_takes_the_steps_its_replicas_take_alone(name: str, precision: str, tolerance: float) -> None:
    config = replace(CASES[name], precision=precision)  # type: ignore[arg-type]
    alone = [program.train_epoch(1).losses for program in programs(config, range(3))]
    stacked = [epoch.losses for epoch in Stack(programs(config, range(3))).train_epoch(1)]
    for one, other in zip(alone, stacked, strict=True):
        assert len(one) == STEPS
        torch.testing.assert_close(other, one, rtol=tolerance, atol=0)
    assert not torch.equal(stacked[0], stacked[1])


@pytest.mark.parametrize("name", CASES)
def test_initial_weights_and_data_order_are_those_of_the_run_alone(name: str) -> None:
    alone, together = programs(CASES[name], range(2)), programs(CASES[name], range(2))
    Stack(together)
    for one, other in zip(alone, together, strict=True):
        assert {k: v.tolist() for k, v in one.weights().items()} == {k: v.tolist() for k, v in other.weights().items()}
        for (x, y), (x_, y_) in zip(*(p.data.batches(29, p.order) for p in (one, other)), strict=True):
            assert torch.equal(x, x_)
            assert torch.equal(y, y_)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_what_a_replica_computes_does_not_depend_on_its_neighbours(name: str, precision: str) -> None:
    """Bit for bit: so a run may be resumed alone, or in other company."""
    config = replace(CASES[name], precision=precision)  # type: ignore[arg-type]
    ends = []
    for seeds in (range(1, 2), range(3), range(1, 9)):
        replicas = programs(config, seeds)
        stack = Stack(replicas)
        for epoch in (1, 2):
            stack.train_epoch(epoch)
        one = replicas[list(seeds).index(1)]
        ends.append({**one.weights(), **{f"moment {i}": m for i, m in enumerate(one.optimiser.second)}})
    for other in ends[1:]:
        assert all(torch.equal(value, other[key]) for key, value in ends[0].items())


def test_small_networks_of_linear_maps_are_stacked_and_others_are_not() -> None:
    small = CASES["bp"]
    assert stackable(small)
    assert not stackable(replace(small, model=ResidualMLP(d=512)))
    assert not stackable(replace(small, model=ResidualMLP(d=40)))
    assert not stackable(replace(small, rule=CreditBridge()))


def small(seed: int, lr: float = 1e-3) -> RunConfig:
    config = RunConfig(
        model=RESIDUAL,
        rule=DirectFeedback(),
        task=Digits(),
        epochs=3,
        seed=seed,
        probes=Probing(names=("loss", "hidden_norm", "credit_cosine"), costly=()),
    )
    return replace(config, optimiser=replace(config.optimiser, lr=lr))


def stored(root: Path, config: RunConfig) -> tuple[object, ...]:
    folder = root / config.id
    manifest, rows = read_trained(folder)
    tensors = [read_tensors(folder, name) for name in ("weights", "initial", "rule")]
    return manifest.state, manifest.epoch, rows.to_dicts(), *tensors


def test_runs_trained_together_are_stored_as_if_alone(tmp_path: Path) -> None:
    configs = [small(seed) for seed in (1, 2, 3)]
    manifests = train_together(configs, runs=tmp_path / "together")
    assert [manifest.state for manifest in manifests] == ["complete"] * 3
    for config in configs:
        train(config, runs=tmp_path / "alone")
        assert stored(tmp_path / "alone", config) == stored(tmp_path / "together", config)
    assert len(sonde.load(tmp_path / "together").runs) == 3


def test_runs_at_different_epochs_meet_and_go_on_together(tmp_path: Path) -> None:
    """As after a crash between two commits of one epoch, with one run at its end and one not begun."""
    configs = [small(seed) for seed in (1, 2, 3, 4)]
    train(configs[0], runs=tmp_path / "runs")
    for config, epochs in ((configs[1], 2), (configs[2], 1)):
        seen: list[object] = []
        train(
            config,
            runs=tmp_path / "runs",
            on_progress=seen.append,
            should_stop=lambda seen=seen, n=epochs: len(seen) > n,  # type: ignore[misc]
        )
    manifests = train_together(configs, runs=tmp_path / "runs")
    assert [len(manifest.sessions) for manifest in manifests] == [1, 2, 2, 1]
    assert [m.sessions[-1]["from_epoch"] for m in manifests] == [None, 2, 1, None]
    train_together(configs, runs=tmp_path / "undisturbed")
    for config in configs:
        assert stored(tmp_path / "runs", config) == stored(tmp_path / "undisturbed", config)


def test_a_replica_that_diverges_leaves_the_others_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [small(seed) for seed in (1, 2)]
    spoil = Program.__init__

    def spoiled(self: Program, config: RunConfig, *others: object) -> None:
        spoil(self, config, *others)  # type: ignore[arg-type]
        if config.seed == 2:
            next(self.net.blocks.parameters()).data[0] = torch.inf

    monkeypatch.setattr(Program, "__init__", spoiled)
    first, second = train_together(configs, runs=tmp_path / "runs")
    assert (first.state, first.epoch) == ("complete", 3)
    assert (second.state, second.epoch) == ("diverged", 1)
    monkeypatch.undo()
    train(configs[0], runs=tmp_path / "alone")
    assert stored(tmp_path / "alone", configs[0]) == stored(tmp_path / "runs", configs[0])


def test_a_run_stopped_by_another_version_is_refused_by_name(tmp_path: Path) -> None:
    config = small(1)
    train(config, runs=tmp_path, should_stop=lambda: True)
    folder = tmp_path / config.id
    state = unpack(read_tensors(folder, "resume"))
    state["optimiser"] = {"state": {}, "param_groups": []}
    forge(folder, read_manifest(folder).files["resume"], pack(state))
    with pytest.raises(SondeError, match=r"stopped by another version, whose state has no 'steps': (re)?move"):
        train(config, runs=tmp_path)


class Huber(Identity):  # type: ignore[misc]
    """The identity by a loss that knows of no replicas."""

    def load(self, *arguments: Any) -> Data:
        data = super().load(*arguments)
        data.loss = nn.SmoothL1Loss()  # type: ignore[assignment]
        return data


def test_runs_whose_loss_knows_no_replicas_are_trained_one_by_one(tmp_path: Path) -> None:
    base = RunConfig(
        model=ResMLP(d=16, L=2), rule=Backprop(), task=Huber(d=16, steps_per_epoch=3), epochs=2, batch_size=8
    )
    configs = [replace(base, seed=seed) for seed in (1, 2)]
    assert {one.state for one in train_together(configs, runs=tmp_path / "together")} == {"complete"}
    for config in configs:
        train(config, runs=tmp_path / "alone", progress=False)
    stored = [
        sonde.load(tmp_path / name).rows.sort("run", "epoch", "metric", "layer") for name in ("together", "alone")
    ]
    assert stored[0].equals(stored[1])
    assert stored[0].filter(metric="train_loss", epoch=2)["value"].n_unique() == 2
