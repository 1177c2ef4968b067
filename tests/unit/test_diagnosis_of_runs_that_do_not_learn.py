"""A run that Sonde trained and that learned nothing says so, and what its rows show of the reason."""

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import tiny_config
from sonde import train
from sonde.analysis.diagnosis import diagnose_store, diagnose_trained
from sonde.analysis.diagnosis.constant_answer import CONSTANT_LOSS
from sonde.analysis.diagnosis.finding import Findings
from sonde.models import PlainMLP, ResMLP
from sonde.store.load import load
from sonde.tasks import TASKS, Identity
from stores import DEPTH, EPOCHS, Key, Value, config, healthy, run, store

PUBLISHED = Path(__file__).parents[2] / "docs" / "findings" / "runs"


def losses(first: float, last: float, accuracy: float) -> dict[Key, Value]:
    """A loss and an accuracy that move evenly from the first epoch to the last; signal and gradient that stay."""
    found = healthy(accuracy=accuracy)
    for epoch in range(EPOCHS + 1):
        found["test_loss", epoch, None] = first
        if epoch:
            found["train_loss", epoch, None] = first + (last - first) * epoch / EPOCHS
        for layer in range(DEPTH + 1):
            found["hidden_norm", epoch, layer] = 8.0
    return found


FLAT = losses(2.4, 2.3, accuracy=0.1)
VANISHED: dict[Key, Value] = {
    ("grad_norm", epoch, layer): 10.0 ** (2 * (layer - DEPTH))
    for epoch in range(EPOCHS + 1)
    for layer in range(DEPTH + 1)
}


def found(values: Mapping[Key, Value], rule: str = "bp", steps: int = 1000, **changes: Any) -> Findings:
    """Of one run of the digits."""
    (findings,) = diagnose_trained(store(run(config(rule, **changes), values, steps=steps)))[0].values()
    return findings


def names(findings: Findings) -> list[tuple[str, str | None]]:
    return [(one.name, one.explained_by) for one in findings]


def test_a_loss_that_ends_at_that_of_a_constant_is_a_finding_with_both_numbers() -> None:
    (finding,) = found(FLAT)
    assert (finding.name, finding.level, finding.epoch) == ("not_learning", "likely", 0)
    assert finding.evidence == (
        "After 1000 steps the loss on training samples is 2.3, on test samples 2.4; one constant answer has 2.3.",
        "9.9 % of the answers to training samples are right.",
    )


def test_it_begins_where_what_was_learned_is_lost() -> None:
    lost = FLAT | {("train_loss", epoch, None): 1.0 for epoch in (1, 2, 3)}
    assert found(lost)[0].epoch == 4


@pytest.mark.parametrize(
    ("values", "how"),
    [
        (losses(2.4, 1.9, accuracy=0.1), {}),  # the loss fell
        (losses(2.4, 30.0, accuracy=0.4), {}),  # bold answers, many of them right
        (FLAT | {("test_loss", EPOCHS, None): 1.0}, {}),  # dropout makes training samples hard
        (FLAT | {("test_acc", EPOCHS, None): 0.4}, {}),
        (FLAT, {"steps": 99}),  # short
        (FLAT, {"rule": "frozen"}),  # there to be compared with
        (FLAT, {"task__name": "folder/own.py:Task"}),  # nobody knows what a constant scores
        (healthy(accuracy=0.1), {}),  # no loss was stored
    ],
)
def test_what_learned_or_cannot_be_judged_is_silent(values: Mapping[Key, Value], how: dict[str, Any]) -> None:
    assert found(values, **how) == []


def test_a_gradient_that_vanishes_over_depth_explains_why_nothing_was_learned() -> None:
    vanished, symptom = found(FLAT | VANISHED)
    assert (vanished.name, vanished.level, vanished.epoch) == ("vanishing_gradient", "certain", 0)
    assert vanished.modules == ("layer 0",)
    assert "1.0e-8 times as large at layer 0 as at layer 4 (1.0e-8 and 1 in epoch 0)" in vanished.evidence[0]
    assert (symptom.name, symptom.explained_by) == ("not_learning", "vanishing_gradient")
    assert found(losses(2.4, 0.5, accuracy=0.9) | VANISHED) == []


def test_of_another_rule_the_gradient_of_backprop_is_no_reason() -> None:
    assert names(found(FLAT | VANISHED, "dfa")) == [("not_learning", None)]


def test_a_signal_that_explodes_over_depth_explains_it_for_every_rule() -> None:
    grown = FLAT | {("hidden_norm", 0, layer): 8.0 * 30.0**layer for layer in range(DEPTH + 1)}
    for rule in ("bp", "dfa"):
        exploded, symptom = found(grown, rule)
        assert (exploded.name, exploded.modules, exploded.epoch) == ("exploding_gradient", ("layer 4",), 0)
        assert exploded.evidence == ("The signal grows from 1 to 8.1e5 at layer 4 in epoch 0.",)
        assert (symptom.name, symptom.explained_by) == ("not_learning", "exploding_gradient")


def test_a_loss_that_grew_before_the_run_diverged_is_a_rate_too_high() -> None:
    values = losses(2.4, 400.0, accuracy=0.1)
    (lost,) = diagnose_trained(store(run(config(), values, steps=1000, state="diverged", epoch=EPOCHS)))[0].values()
    assert names(lost) == [("lr_too_high", None), ("nan_origin", "lr_too_high")]


def test_deep_plain_networks_do_not_learn_the_identity_and_residual_ones_do(tmp_path: Path) -> None:
    for model in (PlainMLP, ResMLP):
        task = Identity(d=16, samples=128, test_samples=32, steps_per_epoch=50)
        made = model(d=16, L=20, weight_scale="1/sqrt(L)")
        train(tiny_config(model=made, task=task, epochs=4, batch_size=32), runs=tmp_path)
    said = {id.partition("-")[0]: names(findings) for id, findings in diagnose_store(tmp_path, None)[0].items()}
    assert said["plain_mlp"] == [("vanishing_gradient", None), ("not_learning", "vanishing_gradient")]
    assert said["res_mlp"] == []


def test_published_runs_that_learned_nothing_are_told_from_those_that_did() -> None:
    findings, _ = diagnose_store(PUBLISHED, None)
    runs = load(PUBLISHED).runs
    networks = {run.id: (run.config["model"]["name"], run.config["model"].get("output", "relu")) for run in runs}
    told = Counter(
        (*networks[id], one.name) for id, said in findings.items() for one in said if one.explained_by is None
    )
    assert told["plain_mlp", "relu", "vanishing_gradient"] == told["plain_mlp", "relu", "not_learning"] == 3
    assert told["plain_mlp", "linear", "vanishing_gradient"] == 6  # scaled weights, 10 and 20 layers
    assert told["plain_mlp", "linear", "not_learning"] == 0
    for output in ("relu", "linear"):  # unscaled weights, 20 layers: a loss of 1e4, where a constant has 1/3
        assert told["res_mlp", output, "exploding_gradient"] == 3
    learned = ("-bp-cifar10", "-state_bridge-", "-kp-", "-mirror-", "-predsim-", "-frozen-")
    of_input = {run.id for run in runs if run.config["rule"].get("credit_at") == "input"}
    fixed = {id for id in findings if "-linear_quadratic-" in id}  # the network's weights do not change
    assert fixed
    assert not any("not_learning" in {one.name for one in findings[id]} for id in fixed)
    random = {run.id for run in runs if run.config["task"].get("random_labels")}
    assert all("not_learning" in {one.name for one in findings[id]} for id in random if "-bp-" in id)
    others = of_input | fixed | random
    healthy_ids = [id for id in findings if any(part in id for part in learned) and id not in others]
    assert len(healthy_ids) > 6
    assert all(findings[id] == [] for id in healthy_ids)
    bridges = {
        run.epochs: {one.name for one in findings[run.id]}
        for run in runs
        if run.id in of_input and "-state_bridge-" in run.id
    }  # learn from the credit of the wrong state
    assert bridges.keys() == {12, 100}
    assert "not_learning" in bridges[12]
    assert all({"state_explosion", "credit_at_chance"} <= names for names in bridges.values())
    assert sum(networks[id] == ("res_mlp", "relu") and not said for id, said in findings.items()) == 3


@pytest.mark.parametrize("name", sorted(TASKS.keys() - {"cifar10", "linear_quadratic"}))
def test_the_loss_of_a_constant_is_that_of_the_targets(name: str) -> None:
    task: Any = TASKS[name]()
    data = task.load(0, None, torch.device("cpu"), torch.float64)
    _, y = data.test(0, data.test_samples)
    if task.classifies:
        share = torch.bincount(y, minlength=task.outputs) / len(y)
        best = -(share * share.clamp_min(1e-9).log()).sum().item()
    else:
        best = (y - y.mean(0)).square().mean().item()
    said = CONSTANT_LOSS[name]({"name": name, "classes": task.outputs})
    assert best <= said * 1.01
    assert math.isclose(said, best, rel_tol=0.05)


def test_a_task_with_unpredictable_targets_says_nothing_of_a_constant() -> None:
    task = TASKS["linear_quadratic"]()
    data = task.load(0, None, torch.device("cpu"), torch.float64)
    (x, y), (test_x, test_y) = next(data.batches(8192, torch.Generator())), data.test(0, data.test_samples)
    fitted = test_x @ torch.linalg.lstsq(x, y).solution
    assert (test_y - fitted).square().mean() > (test_y - test_y.mean(0)).square().mean()
    assert CONSTANT_LOSS["linear_quadratic"]({"name": "linear_quadratic"}) is None


def test_every_task_says_what_a_constant_scores() -> None:
    assert CONSTANT_LOSS.keys() == TASKS.keys()
