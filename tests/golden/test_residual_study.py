"""The orders of magnitude of the residual study, at full size, seed 42."""

from pathlib import Path

import pytest

import sonde
from sonde.models import PlainMLP, ResMLP
from sonde.studies.residual import configs, findings
from sonde.studies.study import gather


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for config in configs("full", [42]):
        sonde.train(config, runs=root)
    return root


def values(runs: Path, model: type, variant: str, metric: str, **where: int) -> list[float]:
    (config,) = (c for c in configs("full", [42]) if type(c.model) is model and c.model.variant == variant)
    rows = sonde.load(runs).rows.filter(run=config.id, metric=metric, **where).sort("layer", "step")
    return rows["value"].to_list()


def test_scaled_plain_gets_no_gradient_at_layer_1_and_does_not_learn(runs: Path) -> None:
    assert values(runs, PlainMLP, "scaled", "preact_grad_norm", epoch=10, layer=1)[0] < 1e-15
    losses = values(runs, PlainMLP, "scaled", "batch_loss")
    assert len(losses) == 500
    assert losses[-1] == pytest.approx(1 / 3, rel=0.05)


def test_scaled_residual_learns_the_identity(runs: Path) -> None:
    losses = values(runs, ResMLP, "scaled", "batch_loss")
    assert 5 < losses[0] < 40
    assert losses[-1] < 0.1
    gradients = values(runs, ResMLP, "scaled", "preact_grad_norm", epoch=10)
    assert len(gradients) == 20
    assert all(5e-4 < gradient < 1e-2 for gradient in gradients)


def test_raw_residual_explodes(runs: Path) -> None:
    losses = values(runs, ResMLP, "raw", "batch_loss")
    assert losses[0] > 1e6
    assert losses[-1] > 100


def test_raw_plain_stays_near_predicting_zero(runs: Path) -> None:
    assert values(runs, PlainMLP, "raw", "batch_loss")[-1] == pytest.approx(0.31, abs=0.03)


def test_the_same_seed_gives_the_same_bits(runs: Path, tmp_path: Path) -> None:
    config = configs("full", [42])[3]
    sonde.train(config, runs=tmp_path)
    for name in ("weights.safetensors", "metrics.parquet"):
        assert (tmp_path / config.id / name).read_bytes() == (runs / config.id / name).read_bytes()


def test_findings_carry_the_numbers_they_state(runs: Path) -> None:
    gathered = gather(sonde.load(runs), configs("full", [42]), "runs")
    found = {(f.numbers["network"], f.numbers["variant"]): f for f in findings(gathered)}
    assert [key[1] for key in found] == ["scaled", "scaled", "raw", "raw"]
    scaled = found[ResMLP.name, "scaled"]
    losses = values(runs, ResMLP, "scaled", "batch_loss")
    assert scaled.numbers["final_loss"] == pytest.approx(sum(losses[-50:]) / 50)
    assert scaled.numbers["verdict"] == "learned"
    assert found["Plain MLP", "scaled"].numbers["verdict"] == "failed to learn"
    assert found[ResMLP.name, "raw"].numbers["verdict"] == "failed to learn", "it ends far above predicting zero"
    for finding in found.values():
        measured, predicted = (finding.numbers[f"growth_per_layer_{which}"] for which in ("at_init", "predicted"))
        assert measured == pytest.approx(predicted, rel=0.03)
        assert finding.seeds == (42,)
        assert len(finding.runs) == finding.numbers["n"] == 1
