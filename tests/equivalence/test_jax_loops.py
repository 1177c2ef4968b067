"""The benchmark's steps in JAX against Sonde's: the same losses from the same weights on the same batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sonde.cli.train import import_benchmark
from sonde.config import RunConfig
from sonde.core.validated import Optimiser
from sonde.models import PlainMLP, ResidualMLP, ResMLP
from sonde.rules import Backprop
from sonde.tasks import Identity
from sonde.training.program import Program
from sonde.training.train import Stack

import_benchmark()

from sonde_bench.jax_loops import NO_JAX, JaxEpoch, has_jax  # noqa: E402
from sonde_bench.loops import CPU, Noise, program  # noqa: E402

pytestmark = pytest.mark.skipif(not has_jax(), reason=NO_JAX)


@pytest.mark.parametrize("kind", [PlainMLP, ResMLP])
def test_seeds_of_the_residual_study_have_the_same_losses(kind: type[PlainMLP] | type[ResMLP]) -> None:
    config = RunConfig(
        model=kind(d=32, L=5, weight_scale="1/sqrt(L)"),
        rule=Backprop(),
        task=Identity(d=32, steps_per_epoch=20),
        optimiser=Optimiser(name="adam", weight_decay=0.0),
        batch_size=16,
    )
    programs = [
        Program(replace(config, seed=seed), config.task.load(seed, None, CPU, torch.float32), CPU) for seed in range(3)
    ]
    x = np.stack([program.data.train_x.numpy() for program in programs])  # type: ignore[attr-defined]
    epoch = JaxEpoch(config.model, [program.net for program in programs], config.optimiser, x, x, classifies=False)
    rows_RSN = np.stack(
        [torch.randint(1024, (20, 16), generator=program.order.clone_state()).numpy() for program in programs]
    )
    expected = torch.stack([epoch.losses for epoch in Stack(programs).train_epoch(1)])
    np.testing.assert_allclose(epoch(rows_RSN), expected, rtol=1e-4)


@pytest.mark.parametrize("model", [ResidualMLP(d=16, L=3), ResidualMLP(d=16, out_ln=False, residual=False)])
def test_classification_under_adamw_has_the_same_losses(model: ResidualMLP) -> None:
    trained = program(model, Backprop(), Noise(shape=(3, 4, 4), steps=8))
    batches = list(trained.data.batches(0, trained.order))
    x, y = (np.stack([part.numpy() for part in parts])[None] for parts in zip(*batches, strict=True))
    optimiser = trained.config.optimiser
    assert isinstance(optimiser, Optimiser)
    assert (optimiser.name, optimiser.weight_decay > 0) == ("adamw", True)
    epoch = JaxEpoch(model, [trained.net], optimiser, x, y, classifies=True)
    losses = epoch(np.arange(8)[None])
    np.testing.assert_allclose(losses[0], trained.train_epoch(1).losses, rtol=1e-5)
    assert epoch.seconds_to_compile is not None
