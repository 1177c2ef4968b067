"""A diagnosis names the fault of a program that has one, is silent on one that has none, and touches neither."""

import json
from pathlib import Path

import polars as pl
import pytest
import torch

from conftest import Sonde
from faulty_programs import FAULTY, HEALTHY, ON_PURPOSE, Program, lr_too_low, plain, wrong_output_activation
from sonde.analysis.diagnosis import DIAGNOSES, diagnose
from sonde.analysis.diagnosis.constant_answer import loss_score
from sonde.analysis.diagnosis.finding import LEVELS, Findings, sarif
from sonde.analysis.diagnosis.run_evidence import RunEvidence
from sonde.analysis.explanations import EXPLANATIONS, documented, explanations
from sonde.core.errors import SondeError
from sonde.metrics.rows import WATCHED
from sonde.plugins import BUILT_IN

OF_TRAINED = {"not_learning", "state_explosion", "gradient_collapse", "credit_at_chance", "blocks_hurt"}
NOTES = {"rank_collapse", "gradient_noise"}


def made(program: str) -> Program:
    torch.manual_seed(0)
    return (FAULTY | HEALTHY)[program]()


def loud(found: Findings) -> list[str]:
    return [finding.name for finding in found if finding.level != "note"]


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_of_a_program_is_found(name: str) -> None:
    found = made(name).diagnosed()
    assert name in ({one.name for one in found} if name in ON_PURPOSE else loud(found)), str(found)
    finding = next(one for one in found if one.name == name)
    assert finding.evidence
    assert finding.level in LEVELS
    assert finding.remedy in str(found) or finding.explained_by


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_has_no_finding(name: str) -> None:
    watch = made(name).watched()
    assert loud(watch.diagnose()) == []
    found = watch.diagnose(batch=made(name).batches()[0])
    assert loud(found) == [], str(found)


def test_every_diagnosis_has_a_program_a_text_and_a_place_among_causes() -> None:
    assert DIAGNOSES.keys() == FAULTY.keys() | NOTES | OF_TRAINED
    assert {symptom for one in DIAGNOSES.values() for symptom in one.consequences} <= DIAGNOSES.keys()
    assert DIAGNOSES.keys() == {text.name for text in EXPLANATIONS if text.kind in ("diagnosis", "question")}
    for one in DIAGNOSES.values():
        assert all((one.short, one.measured, one.why, one.remedy, one.reference))


def _renamed(path: str) -> str:
    return ".".join(f"q{ord(part[0])}{len(part)}{part[-1]}" for part in path.split("."))


@pytest.mark.parametrize("name", ["idle_branch", "detached_graph", "masked_growth", "bad_init", "dead_units"])
def test_names_of_modules_do_not_matter(name: str) -> None:
    program = made(name)
    evidence = program.watched().signs(program.batches()[0])
    facts = json.loads(json.dumps(evidence.facts))
    for entry in (*facts["modules"], *facts["parameters"]):
        entry["name"] = entry["name"] if entry["name"] == "(model)" else _renamed(entry["name"])
    facts["bare_pairs"] = [[_renamed(one) for one in pair] for pair in facts["bare_pairs"]]
    own = pl.col("module")
    rows = evidence.rows.with_columns(
        pl.when(own == "(model)").then(own).otherwise(own.map_elements(_renamed, pl.String)).alias("module")
    )
    trials = dict(evidence.trials or {})
    trials["unfelt"] = [_renamed(one) for one in trials["unfelt"]]
    other = RunEvidence(rows=rows, facts=facts, steps=evidence.steps, trials=trials)
    assert [one.name for one in diagnose(other)] == [one.name for one in diagnose(evidence)]


def test_experiments_leave_the_model_the_batch_and_the_generators_alone() -> None:
    program = made("lr_too_high")
    watch = program.watched()
    x, y = program.batches()[0]
    kept = [t.clone() for t in (*program.model.state_dict().values(), x, y)]
    grads = [None if p.grad is None else p.grad.clone() for p in program.model.parameters()]
    generator, mode = torch.get_rng_state(), program.model.training
    watch.diagnose(batch=(x, y))
    assert all(map(torch.equal, kept, (*program.model.state_dict().values(), x, y)))
    assert all(map(torch.equal, grads, (p.grad for p in program.model.parameters())))
    assert torch.equal(generator, torch.get_rng_state())
    assert program.model.training is mode


def test_the_score_of_a_loss_is_0_at_a_constant_answer_and_1_at_the_lowest_loss() -> None:
    trials = {"loss": {"trivial": 2.0, "floor": 0.5}}
    found = [loss_score(trials, loss) for loss in (2.0, 1.25, 0.5, 3.5, None)]
    assert found == [0.0, 0.5, 1.0, -1.0, None]
    assert loss_score({"loss": {"trivial": 2.0, "floor": 2.0}}, 1.0) is None


def test_a_change_helps_if_its_score_is_high_enough_and_far_enough_above_that_of_the_run() -> None:
    def helped(without: float | None, with_it: float | None) -> str | None:
        fits = {name: {"last": loss} for name, loss in (("1", without), ("10", with_it))}
        trials = {"loss": {"trivial": 1.0, "floor": 0.0}, "fits": fits}
        return RunEvidence(rows=pl.DataFrame(schema=WATCHED), facts={}, steps=50, trials=trials).helps("10")

    assert helped(1.0, 0.6) == "10"
    assert helped(1.0, 0.75) is None, "it learns too little"
    assert helped(0.5, 0.4) is None, "the run learns about as much"
    assert helped(5.0, 0.75) is None, "from below 0 on, what is learned counts"
    assert helped(None, 0.6) == "10", "the run's own settings diverge"
    assert helped(1.0, None) is None


def test_symptoms_follow_the_cause_that_explains_them() -> None:
    found = made("over_regularised").diagnosed()
    assert found[0].explained_by is None
    names = [finding.name for finding in found if finding.level != "note"]
    for finding in found:
        if finding.explained_by is not None and finding.level != "note":
            assert names.index(finding.explained_by) < names.index(finding.name)


def test_a_batch_that_the_model_does_not_take_leaves_the_findings_of_the_rows() -> None:
    program = made("stale_gradients")
    watch = program.watched()
    with pytest.warns(UserWarning, match="cannot run"):
        found = watch.diagnose(batch=torch.zeros(3))
    assert [one.name for one in found] == [one.name for one in watch.diagnose()]


def test_a_store_is_diagnosed_as_its_watch_was(tmp_path: Path, sonde: Sonde) -> None:
    torch.manual_seed(0)
    program = wrong_output_activation()
    watch = program.watched(runs=str(tmp_path / "runs"), name="net")
    told = watch.diagnose(batch=program.batches()[0])
    watch.close()
    said = json.loads(sonde("diagnose", "--runs", str(tmp_path / "runs"), "--json").stdout)
    (findings,) = said.values()
    assert [one["name"] for one in findings] == [one.name for one in told]
    printed = sonde("diagnose", "net", "--runs", str(tmp_path / "runs")).stdout
    assert told[0].remedy in " ".join(printed.split())
    page = tmp_path / "report.html"
    sonde("report", "--runs", str(tmp_path / "runs"), "--out", str(page))
    assert told[0].name in page.read_text()


def test_findings_fail_a_build_and_are_written_as_sarif(tmp_path: Path, sonde: Sonde) -> None:
    torch.manual_seed(0)
    runs = str(tmp_path / "runs")
    lr_too_low().watched(runs=runs, name="slow").close()
    out = tmp_path / "found.sarif"
    words = ("diagnose", "--runs", runs, "--fail-on", "likely", "--sarif", str(out))
    assert sonde(*words, check=False).returncode == 1
    sonde("diagnose", "--runs", runs, "--fail-on", "certain")
    written = json.loads(out.read_text())
    (result, *_) = written["runs"][0]["results"]
    assert result["ruleId"] == "lr_too_low"
    assert result["level"] == "warning"


def test_sarif_of_nothing_has_no_results() -> None:
    assert sarif({"run": Findings()}, "1")["runs"][0]["results"] == []


def test_every_name_that_users_meet_is_explained() -> None:
    for kind, table in BUILT_IN.items():
        for text in documented(kind, table):
            assert text.short, f"{kind} {text.name} has no docstring"
    torch.manual_seed(0)
    metrics = set(plain().watched().rows["metric"].unique()) - {"loss"}
    assert metrics <= {text.name for text in EXPLANATIONS if text.kind == "metric"}
    assert "short" in vars(explanations("Dead-Units")[0])
    with pytest.raises(SondeError, match="did you mean 'dead_units'"):
        explanations("dead_unitz")
