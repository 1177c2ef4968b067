"""Networks that do not fit are refused before they are trained, and others are not."""

from dataclasses import replace

import pytest
import torch

from conftest import Sonde, tiny_config
from sonde.core.errors import SondeError
from sonde.models import ResidualMLP, ResMLP
from sonde.tasks import Digits, Identity
from sonde.training import session

CPU = torch.device("cpu")


def test_a_million_layers_are_refused_with_the_memory_they_would_take(sonde: Sonde) -> None:
    done = sonde("run", "residual", "--set", "model.L=1000000", check=False)
    assert done.returncode == 2
    assert "model.L = 1000000 with model.d = 64 takes at least " in done.stderr
    assert " GB of memory, and this machine has " in done.stderr
    assert done.stderr.count("takes at least") == 1


def test_a_huge_width_is_refused_without_building_it() -> None:
    with pytest.raises(SondeError, match=r"model\.d = 10000000 takes at least [\d,]{6,} GB"):
        session.refuse_too_large(tiny_config(model=ResidualMLP(d=10_000_000, L=2), task=Digits()), CPU)


def test_the_estimate_counts_the_weights_of_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(model=ResMLP(d=8, L=2_000, weight_scale="1/sqrt(L)"), task=Identity(d=8))
    net = config.model.build(config.signature, torch.Generator())
    weights = sum(weight.numel() for weight in net.parameters())
    states = 2_000 * 8 * (4 * config.batch_size + 8 * config.probes.size)
    assert session.least_memory(config) == session._PER_WEIGHT * weights + states
    session.refuse_too_large(config, CPU)
    monkeypatch.setattr(session, "memory_of", lambda _: session.least_memory(config) - 1)
    with pytest.raises(SondeError, match="takes at least"):
        session.refuse_too_large(config, CPU)
    session.refuse_too_large(replace(config, model=replace(config.model, L=20)), CPU)  # type: ignore[type-var]
