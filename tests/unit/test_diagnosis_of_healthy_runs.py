"""Healthy training of ordinary length has no finding: three architectures over 500 steps, and BP in every study."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.analysis.diagnosis import diagnose_store
from sonde.config import RunConfig
from sonde.models import PlainMLP
from sonde.rules import Backprop
from sonde.studies import STUDIES
from sonde.studies.controls import CONTROL_STUDIES

STEPS = 500


class Encoder(nn.Module):
    """Which token came first: nn.TransformerEncoder over embeddings with places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(8, 16), nn.Parameter(0.1 * torch.randn(6, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.head(self.encoder(self.tokens(x) + self.places)[:, 0])
        return h


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.norm2(self.two(functional.relu(self.norm(self.one(x))))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.head(self.cells(x)[0][:, -1])
        return h


def tokens() -> tuple[nn.Module, Tensor, Tensor]:
    x = torch.randint(8, (512, 6))
    return Encoder(), x, x[:, 0]


def images() -> tuple[nn.Module, Tensor, Tensor]:
    y = torch.randint(4, (512,))
    x = 0.5 * torch.randn(512, 1, 6, 6)
    x[torch.arange(512), 0, 1 + y, 2] += 2.0
    stem = (nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    model = nn.Sequential(*stem, Block(8), Block(8), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(32, 4))
    return model, x, y


def sequences() -> tuple[nn.Module, Tensor, Tensor]:
    x = torch.randn(512, 6, 3)
    return Recurrent(), x, x[:, -3:].sum(1).argmax(1)


Make = Callable[[], tuple[nn.Module, Tensor, Tensor]]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("make", [tokens, images, sequences])
def test_an_ordinary_network_has_no_finding_after_500_steps(make: Make, seed: int) -> None:
    torch.manual_seed(seed)
    model, x, y = make()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = nn.CrossEntropyLoss()
    watch = sonde.watch(model, optimiser, loss=loss, runs=None)
    for step in range(STEPS):
        places = torch.arange(16 * step, 16 * (step + 1)) % len(x)
        optimiser.zero_grad()
        loss(model(x[places]), y[places]).backward()
        optimiser.step()
    for batch in (None, (x[:64], y[:64])):
        found = watch.diagnose(batch=batch)
        assert [one.name for one in found if one.level != "note"] == [], str(found)
    watch.close()


def healthy(study: str) -> list[RunConfig]:
    """BP in the study's networks that learn: deep plain ones do not, raw residual ones explode, as they are to show."""
    configs = STUDIES[study].configs("quick", (42,))
    return [
        one
        for one in configs
        if isinstance(one.rule, Backprop)
        and not isinstance(one.model, PlainMLP)
        and getattr(one.model, "variant", None) != "raw"
    ]


def found_in(configs: list[RunConfig], runs: Path) -> dict[str, Any]:
    for config in configs:
        sonde.train(config, runs=runs)
    findings, left_out = diagnose_store(runs, None)
    assert left_out == {}
    assert len(findings) == len(configs)
    return {run: list(said) for run, said in findings.items() if said}


@pytest.mark.parametrize("study", sorted(STUDIES.keys() - CONTROL_STUDIES.keys()))
def test_a_short_bp_run_of_a_study_has_no_finding(study: str, tmp_path: Path) -> None:
    config = healthy(study)[0]
    assert found_in([replace(config, epochs=min(config.epochs, 3))], tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("study", sorted(STUDIES.keys() - CONTROL_STUDIES.keys()))
def test_the_bp_runs_of_a_study_have_no_finding(study: str, tmp_path: Path) -> None:
    assert found_in(healthy(study), tmp_path) == {}
