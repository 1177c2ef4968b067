"""Published numbers beside stored runs: what is reproduced, contradicted, undecided, not run."""

import json
import math
import statistics
from pathlib import Path

import pytest
from scipy import stats
from typer.testing import CliRunner

from conftest import Sonde
from sonde.cli import app
from sonde.config import name_of
from sonde.core.errors import SondeError
from sonde.store.load import load
from sonde.studies import STUDIES
from sonde.studies.claims import Answer, Claim, answers, read_claims
from stores import write_run

ONE = {"source": "a paper", "study": "audit", "scale": "quick", "only": {"rule": "dfa"}, "metric": "test_acc"}
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for config in STUDIES["audit"].configs("quick", SEEDS):
        if name_of("rule", config.rule) == "dfa":
            write_run(root, config)
    return root


def ours(store: Path, metric: str = "test_acc") -> list[float]:
    stored = load(store)
    return [run.at(metric, run.epochs, None if metric == "test_acc" else run.depth).value for run in stored.runs]


def answer(store: Path, **claim: object) -> Answer:
    (one,) = answers([Claim(**(ONE | claim))], load(store))  # type: ignore[arg-type]
    return one


def test_the_interval_is_welchs(store: Path) -> None:
    values, theirs = ours(store), [0.4, 0.46, 0.43]
    expected = stats.ttest_ind(values, theirs, equal_var=False).confidence_interval()
    found = answer(store, value=statistics.mean(theirs), std=statistics.stdev(theirs), n=3)
    # whole degrees of freedom: the interval is at least as wide
    assert found.low <= expected.low
    assert found.high >= expected.high
    assert (found.high + found.low) / 2 == pytest.approx((expected.high + expected.low) / 2)
    assert (found.high - found.low) / (expected.high - expected.low) < 2


def test_a_number_without_a_spread_takes_ours(store: Path) -> None:
    values = ours(store)
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) * math.sqrt(1 / len(values) + 1)
    found = answer(store, value=0.5)
    assert found.low == pytest.approx(statistics.mean(values) - 0.5 - half)
    assert found.high == pytest.approx(statistics.mean(values) - 0.5 + half)


def test_verdicts(store: Path) -> None:
    mean, spread = statistics.mean(ours(store)), statistics.stdev(ours(store))
    assert answer(store, value=mean, std=spread, n=3, within=100 * spread + 0.01).verdict == "reproduced"
    assert answer(store, value=mean, std=10.0, n=3).verdict == "undecided"
    assert answer(store, value=mean + 100 * spread + 1, std=spread, n=3).verdict == "contradicted"
    command = answer(store, value=mean, std=10.0, n=3).command
    assert command is not None, "nothing is decided, and seeds of the study are not stored"
    assert command.endswith("--only rule=dfa --seeds 42,123")
    missing = answer(store, value=mean, only={"rule": "bp"})
    assert missing.verdict == "not run"
    assert missing.command is not None
    assert "sonde run audit --scale quick --only rule=bp --seeds" in missing.command


def test_a_difference_within_the_tolerance_is_no_contradiction_however_sure(store: Path) -> None:
    mean = statistics.mean(ours(store))
    sure = {"std": 1e-9, "n": 1000, "within": 1.0}
    assert answer(store, value=mean + 0.5, **sure).verdict == "reproduced"


def test_one_seed_on_each_side_decides_nothing(tmp_path: Path) -> None:
    (config,) = (c for c in STUDIES["audit"].configs("quick", (1,)) if name_of("rule", c.rule) == "dfa")
    write_run(tmp_path, config)
    found = answer(tmp_path, value=0.99)
    assert found.verdict == "undecided"
    assert math.isnan(found.low)
    assert "spread" in found.why


def test_norms_are_compared_by_their_ratio(store: Path) -> None:
    values = ours(store, "hidden_norm")
    geometric = statistics.geometric_mean(values)
    found = answer(store, metric="hidden_norm", layer="top", value=geometric)
    assert found.ours.mean == pytest.approx(geometric)
    assert found.low <= 0 <= found.high
    far = answer(store, metric="hidden_norm", layer="top", value=geometric * 1e9)
    assert far.verdict == "contradicted"
    assert "×" in far.difference


def test_another_recipe_is_not_taken(store: Path) -> None:
    assert answer(store, value=0.5, set={"epochs": 7}).verdict == "not run"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"studdy": "audit"}, "studdy"),
        ({"study": "audits"}, "audit"),
        ({"metric": "test_accuracy"}, "test_acc"),
        ({"value": "much"}, "value"),
        ({"missing": "no time"}, "either"),
        ({"value": 36}, "0.36 for 36 %"),
        ({"value": math.nan}, "between"),
        ({"std": 0.1}, "two or more"),
        ({"epoch": 500}, "epochs"),
        ({"layer": 1}, "leave layer out"),
        ({"metric": "hidden_norm"}, "set layer"),
        ({"metric": "hidden_norm", "layer": "top", "value": 0}, "factor"),
        ({"only": {"rule": "nobody"}}, "nobody"),
        ({"only": {}}, "`only` must leave one"),
        ({"set": {"rule.penalti": 0.1}}, "rule.penalty"),
        ({"set": {"rule.penalty": "much"}}, "number"),
    ],
)
def test_a_bad_claim_is_one_clear_error(change: dict[str, object], said: str, tmp_path: Path) -> None:
    lines = [f"{key} = {as_toml(value)}" for key, value in (ONE | {"value": 0.5} | change).items()]
    (tmp_path / "claims.toml").write_text("\n".join(["[[claim]]", *lines]))
    with pytest.raises(SondeError, match=said) as caught:
        read_claims(tmp_path / "claims.toml")
    assert "claims.toml, claim 1: " in str(caught.value)


def as_toml(value: object) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {as_toml(one)}' for key, one in value.items())}}}"
    return "nan" if isinstance(value, float) and math.isnan(value) else json.dumps(value)


def test_claims_that_leave_several_recipes_are_refused(store: Path) -> None:
    with pytest.raises(SondeError, match="only"):
        answer(store, value=0.5, only={})


def test_every_claim_of_the_package_names_one_recipe(tmp_path: Path) -> None:
    found = answers(read_claims(), load(tmp_path))
    assert {one.verdict for one in found} == {"not run"}
    assert all(one.command or one.claim.missing for one in found)


def test_the_command_ends_within_twelve_lines_and_says_all_with_details(store: Path) -> None:
    short = CliRunner().invoke(app, ["reproduce", "--runs", str(store)], env={"COLUMNS": "80"})
    assert short.exit_code == 0
    assert len(short.output.splitlines()) <= 12
    long = CliRunner().invoke(app, ["reproduce", "--runs", str(store), "--details"])
    told = CliRunner().invoke(app, ["reproduce", "--runs", str(store), "--json"])
    assert len(json.loads(told.output)) == len(read_claims())
    assert long.output.count("  published ") == len(read_claims())


def test_without_a_store_every_claim_is_listed_as_not_run(sonde: Sonde) -> None:
    told = sonde("reproduce", "--runs", "nowhere", "--json")
    assert {one["verdict"] for one in json.loads(told.stdout)} == {"not run"}
    assert "nowhere does not exist" in told.stderr
