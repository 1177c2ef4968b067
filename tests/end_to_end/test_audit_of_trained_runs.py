"""The audit on runs that are trained for it: healthy ones fire nothing, growth that a LayerNorm hides is seen."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sonde.analysis.audit import RuleAudit, audit
from sonde.analysis.questions import scale_free, since_init
from sonde.config import Probing, RunConfig
from sonde.models import Model, ResidualMLP, VitMini
from sonde.rules import Backprop, DirectFeedback, Frozen, Rule
from sonde.store.load import load
from sonde.studies.recipes import classification, teacher_student
from sonde.tasks import Teacher
from sonde.training.train import train_together

PROBES = Probing(names=("hidden_norm", "growth", "grad_norm", "credit_cosine"), schedule="log_spaced", k=20, costly=())
NETWORK = ResidualMLP(d=32, L=4)


def trained(runs: Path, config: RunConfig, rules: Sequence[Rule], seeds: Sequence[int]) -> dict[str, RuleAudit]:
    for rule in rules:
        train_together([replace(config, rule=rule, seed=seed, probes=PROBES) for seed in seeds], runs=runs)
    (recipe,) = audit(load(runs)).recipes
    return {rule.rule: rule for rule in recipe.rules}


def fired(rule: RuleAudit) -> dict[str, list[int]]:
    return {question: sorted(rule.tally(question).fired) for question in ("D1", "D2", "D3")}


def digits(model: Model, epochs: int) -> RunConfig:
    return classification(model, Backprop(), scale="quick", seed=1, epochs=epochs)


@pytest.mark.parametrize("out_ln", [True, False])
def test_nothing_fires_on_bp_and_its_blocks_help(out_ln: bool, tmp_path: Path) -> None:
    model = replace(NETWORK, out_ln=out_ln)
    found = trained(tmp_path, digits(model, 20), (Backprop(), Frozen()), (1, 2, 3, 4))["bp"]
    assert fired(found) == {"D1": [], "D2": [], "D3": []}
    assert found.tally("D2").clear.keys() == {1, 2, 3, 4}
    assert found.margin.outcome == "helps"
    assert 0 < found.margin.errors_removed < 1


def test_nothing_fires_on_bp_that_learns_from_a_teacher(tmp_path: Path) -> None:
    config = replace(
        teacher_student(NETWORK, Backprop(), scale="quick", seed=1),
        task=Teacher(inputs=16, d=16, samples=600, test_samples=200),
    )
    assert fired(trained(tmp_path, config, (Backprop(),), (1, 2))["bp"]) == {"D1": [], "D2": [], "D3": []}


def test_nothing_fires_on_bp_in_a_vision_transformer(tmp_path: Path) -> None:
    found = trained(tmp_path, digits(VitMini(d=16, L=2, heads=2), 4), (Backprop(),), (1,))["bp"]
    assert fired(found) == {"D1": [], "D2": [], "D3": []}


@pytest.mark.slow
def test_nothing_fires_on_bp_however_long_it_is_trained(tmp_path: Path) -> None:
    """Its gradient falls by orders of magnitude because its error does."""
    found = trained(tmp_path, digits(ResidualMLP(d=64, L=4), 200), (Backprop(),), (1, 2, 3))["bp"]
    assert fired(found) == {"D1": [], "D2": [], "D3": []}
    stored = load(tmp_path).rows.filter(metric="grad_norm", layer=4)
    for id in found.ids:
        first, last = (stored.filter(run=id, epoch=epoch)["value"].item() for epoch in (0, 200))
        assert last < 1e-3 * first


def test_issue_27_item_2_dfas_gradient_below_a_layer_norm_is_small_and_resolved(tmp_path: Path) -> None:
    """‖g_L‖/‖e‖ falls because ‖h_L‖ grows: times ‖h_L‖ it stays, and float32 resolves it."""
    found = trained(tmp_path, digits(ResidualMLP(d=64, L=4), 20), (DirectFeedback(), Frozen()), (1, 2))["dfa"]
    assert fired(found)["D2"] == []
    for run in found.runs:
        assert since_init(run.run, run.run.epochs, "grad_per_error").value < 0.03
        assert 0.1 < scale_free(run.run, run.run.epochs).value < 10
        assert 1 - run.answers["D2"].value < 1e-9
    assert found.stream().mean > 20
    assert found.margin.points.mean < 0
