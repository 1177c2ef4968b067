"""A run that Sonde trained is diagnosed by the questions of the audit: the same answers, in the words of a finding.

Whether it learned at all: test_diagnosis_of_runs_that_do_not_learn.py.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import sonde as package
from conftest import Sonde, tiny_config
from sonde import train
from sonde.analysis.audit import audit
from sonde.analysis.diagnosis import diagnose_trained
from sonde.analysis.diagnosis.finding import Finding, Findings, sarif
from sonde.analysis.explanations import EXPLANATIONS, explanations
from sonde.core.formatting import Thresholds
from sonde.rules import Frozen
from sonde.store.run import Runs
from stores import DEPTH, EPOCHS, Key, Value, changed, config, healthy, run, store

SEEDS = (42, 123, 456)
GROWN, ROUNDED, AT_CHANCE = {"growth": 117.0}, {"grad_resolution": 0.005}, {"credit_cosine": 0.0, "rho": 0.0}
HIGH = {"hidden_norm": 12e4}
LAYERS = tuple(f"layer {layer}" for layer in range(1, DEPTH + 1))


def with_frozen(change: dict[str, float], *, accuracy: float = 0.9, since: int = 2) -> Runs:
    """Three DFA runs, some metrics changed from an epoch on at all layers but the first; and three frozen ones."""

    def made(seed: int) -> dict[Key, Value]:
        return changed(
            healthy(seed, accuracy=accuracy),
            lambda metric, epoch, layer: change.get(metric) if epoch >= since and layer else None,
        )

    own = [run(config("dfa", seed), made(seed)) for seed in SEEDS]
    return store(
        *own,
        *(run(config("frozen", seed), healthy(seed, accuracy=0.4 + 1e-3 * math.cos(seed))) for seed in SEEDS),
    )


def found(stored: Runs, rule: str = "dfa") -> list[Findings]:
    findings, left_out = diagnose_trained(stored)
    assert left_out == {}
    return [one for id, one in findings.items() if f"-{rule}-" in id]


@pytest.mark.parametrize(
    ("change", "name", "modules", "number"),
    [
        (GROWN, "state_explosion", tuple(f"block {block}" for block in range(1, DEPTH)), "117×"),
        (HIGH, "state_explosion", (f"layer {DEPTH}",), "1.0e4×"),
        (ROUNDED, "gradient_collapse", LAYERS, "0.005"),
        (AT_CHANCE, "credit_at_chance", LAYERS, f"{DEPTH} of {DEPTH}"),
    ],
)
def test_what_the_audit_fires_is_a_finding_with_layers_epoch_and_numbers(
    change: dict[str, float], name: str, modules: tuple[str, ...], number: str
) -> None:
    for (finding,) in found(with_frozen(change)):
        assert (finding.name, finding.level, finding.modules) == (name, "certain", modules)
        assert finding.epoch == (5 if name == "credit_at_chance" else 2)
        assert number in " ".join(finding.evidence)
        assert f"since epoch {finding.epoch}" in str(finding)
        assert all((finding.why, finding.remedy, finding.reference))


def test_a_question_that_fired_at_the_last_epoch_alone_is_likely() -> None:
    for (finding,) in found(with_frozen(GROWN, since=EPOCHS)):
        assert (finding.level, finding.epoch) == ("likely", EPOCHS)


def test_blocks_that_hurt_are_a_finding_of_every_seed() -> None:
    for (finding,) in found(with_frozen({}, accuracy=0.2)):
        assert (finding.name, finding.level) == ("blocks_hurt", "likely")
        assert "−20" in finding.evidence[0]
        assert "n = 3" in finding.evidence[0]


def test_an_exploded_stream_explains_a_gradient_that_is_not_resolved() -> None:
    for growth, gradient in found(with_frozen(GROWN | ROUNDED)):
        assert (growth.name, growth.explained_by) == ("state_explosion", None)
        assert (gradient.name, gradient.explained_by) == ("gradient_collapse", "state_explosion")


def test_healthy_runs_are_silent() -> None:
    stored = with_frozen({})
    for findings in (*found(stored), *found(stored, "frozen")):
        assert findings == []
        assert "not asked" in str(findings)  # no loss is stored


def test_findings_are_where_the_audit_fires_and_nowhere_else() -> None:
    stored = with_frozen(GROWN)
    fired = {one.run.id for rule in audit(stored).recipes[0].rules for one in rule.runs if one.answers["D1"].fired}
    findings, _ = diagnose_trained(stored)
    assert {id for id, said in findings.items() if said} == fired != set()


def test_a_run_that_diverged_says_when_and_one_that_has_not_ended_is_left_out() -> None:
    lost = run(config("dfa", 7), healthy(7), state="diverged", epoch=6)
    going = run(config("dfa", 8), healthy(8), state="unfinished", epoch=3)
    findings, left_out = diagnose_trained(store(lost, going))
    ((finding,),) = findings.values()
    assert (finding.name, finding.level, finding.epoch) == ("nan_origin", "certain", 6)
    assert list(left_out) == [going[0].id]


def test_sarif_names_layers_and_epoch() -> None:
    findings, _ = diagnose_trained(with_frozen(GROWN))
    first, *_ = sarif(findings, "1")["runs"][0]["results"]
    assert first["ruleId"] == "state_explosion"
    assert first["properties"]["epoch"] == 2
    assert first["locations"][0]["logicalLocations"][0]["fullyQualifiedName"].endswith("/block 1")


@pytest.mark.parametrize(
    ("old", "new", "label"),
    [
        ("growth", "state_explosion", "D1"),
        ("gradient", "gradient_collapse", "D2"),
        ("credit", "credit_at_chance", "D3"),
        ("worth", "blocks_hurt", "D4"),
    ],
)
def test_old_names_of_diagnoses_are_understood(old: str, new: str, label: str) -> None:
    assert [text.name for text in explanations(old) if text.kind == "question"] == [new]
    assert [text.name for text in explanations(label)] == [new]
    stored, current = Finding(name=old, level="likely"), Finding(name=new, level="likely")
    assert (stored.short, stored.remedy) == (current.short, current.remedy)
    assert f"{new} ({label}, likely)" in str(current)
    assert (current.as_dict()["former_name"], current.as_dict()["label"]) == (old, label)
    (rule,) = sarif({"run": Findings([current])}, "1")["runs"][0]["tool"]["driver"]["rules"]
    assert rule["deprecatedIds"] == [old]


def test_the_explanations_say_the_thresholds_of_the_audit() -> None:
    said = {text.name: text.measured for text in EXPLANATIONS if text.kind == "question"}
    limits = Thresholds()
    assert f"{limits.growth:g}×" in said["state_explosion"]
    assert f"{limits.stream:g}×" in said["state_explosion"]
    assert f"below {limits.resolution:g} at a layer" in said["gradient_collapse"]
    assert f"by {limits.deviations:g} standard deviations" in said["credit_at_chance"]
    assert f"below {limits.ceiling:g}" in said["credit_at_chance"]
    assert f"{100 * limits.confidence:g} %" in said["blocks_hurt"]


def test_a_store_of_trained_runs_is_diagnosed_from_the_command_line(tmp_path: Path, sonde: Sonde) -> None:
    for rule in (None, Frozen()):
        train(tiny_config() if rule is None else tiny_config(rule=rule), runs=tmp_path)
    said = json.loads(sonde("diagnose", "--runs", str(tmp_path), "--json", "--fail-on", "likely").stdout)
    assert sorted(map(len, said.values())) == [0, 0]
    one = next(iter(said))
    assert "No fault was found in 3 epochs" in sonde("diagnose", one, "--runs", str(tmp_path)).stdout
    assert list(json.loads(sonde("diagnose", one, "--runs", str(tmp_path), "--json").stdout)) == [one]


def test_an_unfinished_trained_run_does_not_hide_what_a_watch_found(tmp_path: Path, sonde: Sonde) -> None:
    stops = iter([True])
    package.train(tiny_config(), runs=tmp_path, progress=False, should_stop=lambda: next(stops))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with package.watch(model, optimiser, loss=nn.CrossEntropyLoss(), runs=tmp_path, name="beside"):
        nn.CrossEntropyLoss()(model(torch.randn(4, 3)), torch.tensor([0, 1, 0, 1])).backward()
        optimiser.step()
    told = sonde("diagnose", "--runs", str(tmp_path), "--json", check=False)
    assert "beside" in told.stdout
    assert "no complete run" not in told.stderr
