"""What `sonde explain` says of thresholds is what diagnoses go by; every probe says what good and bad look like."""

import json
import math
import re
from pathlib import Path

import pytest

from sonde.analysis.diagnosis import flow_symptoms, network_faults, pace_faults, scale_faults, spikes, task_faults
from sonde.analysis.diagnosis.run_evidence import FIT_STEPS
from sonde.analysis.explanations import EXPLANATIONS, RULES_IN_FULL, Explanation, documented, explanations
from sonde.analysis.questions import critical_t
from sonde.core.errors import SondeError
from sonde.metrics import TRAINED
from sonde.plugins import BUILT_IN
from sonde.rules import RULES
from sonde.store.load import load

ROOT = Path(__file__).parents[2]
MEASURED = {text.name: text.measured for text in EXPLANATIONS if text.kind == "diagnosis"}

SAID = [
    ("idle_branch", "below {} of the others'", network_faults.IDLE_GRADIENT),
    ("bad_init", "above {}", scale_faults.LARGE_GAIN),
    ("bad_init", "below {}", scale_faults.SMALL_GAIN),
    ("bad_init", "{} % of a layer's units off", 100 * scale_faults.DEAD_AT_START),
    ("attention_collapse", "above {}", network_faults.LARGE_LOGIT),
    ("unnormalised_input", "RMS above {}", scale_faults.LARGE_RMS),
    ("unnormalised_input", "more than {}", scale_faults.UNLIKE_SPREADS),
    ("unnormalised_input", "RMS below {}", scale_faults.SMALL_RMS),
    ("unnormalised_target", "RMS above {}", scale_faults.LARGE_RMS),
    ("wrong_loss", "ends below −{}", -task_faults.BELOW_ZERO),
    ("wrong_labels", "batch of {} or more", task_faults.SEVERAL_SAMPLES),
    ("wrong_output_activation", "{} % of the way", 100 * task_faults.OUT_OF_REACH),
    ("wrong_output_activation", "above {} from outputs", task_faults.OUT_OF_BOUNDS),
    ("lr_too_high", "more than {} % of their norm", 100 * pace_faults.LARGE_STEP),
    ("lr_too_low", "by less than {} of", pace_faults.NEARLY_UNMOVED),
    ("lr_too_low", "by no more than {} of their norm", pace_faults.FAR_MOVED),
    ("too_few_steps", "Fewer than {} steps", pace_faults.FEWEST_STEPS),
    ("too_few_steps", "steps above {} of the weights", pace_faults.SLOW_STEP),
    ("over_regularised", "below {} of it", pace_faults.WEIGHTS_GONE),
    ("over_regularised", "more than {} of what a step changes", pace_faults.DECAY_SHARE),
    ("dead_units", "At the end {} % of a hidden", 100 * flow_symptoms.DEAD_SHARE),
    ("dead_units", "({} % if they", 100 * flow_symptoms.DIED_SHARE),
    ("exploding_gradient", "more than {} over depth", flow_symptoms.EXPLODED),
    ("too_few_steps", "come {} of the way further", pace_faults.FURTHER),
    ("over_regularised", "below {} of their initial norm", round(pace_faults.WEIGHTS_SHRUNK, 2)),
    ("lr_too_high", "the loss grows {}-fold", pace_faults.LOSS_GREW),
    ("lr_too_high", "by more than {} times their norm", pace_faults.OUTRAGEOUS),
    ("saturated_units", "{} % of a hidden layer's outputs", 100 * flow_symptoms.SATURATED_SHARE),
    ("masked_growth", "grow {}-fold", network_faults.INPUT_GREW),
    ("attention_collapse", "later, {} %", 100 * network_faults.ONE_HOT_SHARE),
    ("rank_collapse", "falls below {}", flow_symptoms.COLLAPSED_RANK),
    ("loss_spike", "more than {} times the median", spikes.LEAVES),
    ("loss_spike", "a loss {} times the median", spikes.JUMP),
    ("loss_spike", "by {} of the first loss", spikes.SMALL),
    ("gradient_noise", "above {}", flow_symptoms.NOISY),
]
IN_WORDS = [
    ("too_few_steps", "fifty steps", FIT_STEPS, 50),
    ("lr_too_low", "fifty steps", FIT_STEPS, 50),
]


@pytest.mark.parametrize(("name", "words", "value"), SAID)
def test_a_threshold_is_said_as_it_is_used(name: str, words: str, value: float) -> None:
    shown = f"{value:g}".replace("1e-07", "1e-7")
    assert words.format(shown) in MEASURED[name]


@pytest.mark.parametrize(("name", "words", "value", "meant"), IN_WORDS)
def test_a_threshold_in_words_is_the_one_that_is_used(name: str, words: str, value: float, meant: float) -> None:
    assert words in MEASURED[name]
    assert value == pytest.approx(meant)


def test_every_probe_and_metric_says_what_good_and_bad_look_like() -> None:
    probes = documented("probe", BUILT_IN["probe"])
    metrics = [text for text in EXPLANATIONS if text.kind in ("metric", "question")]
    for text in (*probes, *metrics):
        assert text.good, text.name
        assert text.bad, text.name
        assert f"Good looks like: {text.good}" in str(text)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_found_by_the_name_in_full_that_titles_its_page(rule: str) -> None:
    title = (ROOT / "docs" / "rules" / f"{rule}.md").read_text().partition("\n")[0].removeprefix("# ")
    for asked in (title, title.upper(), title.replace("–", "-")):
        (found,) = explanations(asked, documented("rule", BUILT_IN["rule"]))
        assert found.name == rule


@pytest.mark.parametrize("name", RULES_IN_FULL)
def test_every_other_name_of_a_rule_is_known_and_is_offered_for_one_that_is_misspelt(name: str) -> None:
    known = documented("rule", BUILT_IN["rule"])
    assert [text.name for text in explanations(name, known)] == [RULES_IN_FULL[name]]
    with pytest.raises(SondeError) as raised:
        explanations(f"{name}x", known)
    assert repr(name.casefold()) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rho", "Measured: Correlation"),
        ("dead_units", "Measured: "),
        ("rhm", "In detail: Cagnetta"),
        ("dfa", "In detail: Nøkland"),
        ("sgd", "Adam, AdamW (decoupled weight decay) or SGD"),
    ],
)
def test_what_is_not_measured_is_not_said_to_be(name: str, says: str) -> None:
    known = [*EXPLANATIONS, *(text for kind, table in BUILT_IN.items() for text in documented(kind, table))]
    (text,) = explanations(name, known)
    assert f"\n{says}" in str(text)


def test_what_does_not_apply_is_not_printed() -> None:
    assert str(Explanation(name="a", kind="rule", short="It is.")) == "a (rule)\nIt is."


def test_an_unknown_name_gets_the_nearest_ones_and_what_lists_all_of_them() -> None:
    with pytest.raises(
        SondeError, match=r"^nothing is named 'D9': did you mean 'd\d' or .*\? `sonde explain` lists all"
    ):
        explanations("D9")
    with pytest.raises(SondeError, match=r"did you mean 'vanishing_gradient'.*lists all names$"):
        explanations("vanishing gradients")
    with pytest.raises(SondeError, match=r"^nothing is named 'zzzz': `sonde explain` lists all names$"):
        explanations("zzzz")


def test_issue_27_item_4_a_credit_at_chance_may_teach_and_no_text_says_otherwise() -> None:
    """FA by layers on parity: its cosines are those of fresh draws, and it learns what frozen blocks cannot."""
    stored = load(ROOT / "docs" / "rules-runs")
    (run,) = [run for run in stored.runs if run.id.startswith("residual_mlp-fa-parity")]
    end = stored.rows.filter(run=run.id, epoch=run.config["epochs"])
    assert end.filter(metric="test_acc")["value"].item() > 0.99
    for layer in range(4):
        own, null, spread = (
            end.filter(metric=f"credit_cosine{ending}", layer=layer)["value"].item()
            for ending in ("", "/null", "/null_std")
        )
        assert (own - null) / (spread * math.sqrt(1 + 1 / 4)) < critical_t(3.0, 4)
    (credit,) = [one for one in EXPLANATIONS if (one.kind, one.name) == ("question", "credit_at_chance")]
    assert "does not teach" not in credit.why
    assert "D4" in credit.remedy


def test_issue_27_item_2_no_text_calls_a_small_gradient_a_missing_one() -> None:
    said = " ".join(str(one) for one in EXPLANATIONS)
    for words in ("gradient that is not there", "the way back is closed"):
        assert words not in said


@pytest.mark.parametrize(
    ("rule", "source"), [("frsf", "Liao, Leibo & Poggio (2016), arXiv:1510.05067"), ("dkp", "zgGmAx9ZcY")]
)
def test_issue_27_item_4_rules_cite_where_they_come_from(rule: str, source: str) -> None:
    assert source in (RULES[rule].__doc__ or "")


def test_issue_27_item_6_remedies_that_do_not_help_are_counted_where_remedies_are_shown() -> None:
    """The page names every program that does not learn with its remedy, and no text promises that one mends it."""
    tried: dict[str, list[float]] = {}
    for key, entry in json.loads((ROOT / "benchmarks" / "suite.json").read_text())["remedies"].items():
        if "after" in entry:
            tried.setdefault(key.rpartition("/")[0], []).append(entry["after"])
    failed = sorted(name for name, scores in tried.items() if not min(scores) >= 0.5)
    page = (ROOT / "docs" / "diagnose-scores.md").read_text()
    assert f"{len(tried) - len(failed)} of {len(tried)} programs learn" in page
    assert len(failed) == 4
    (said,) = re.findall(r"these do not: (.*)\.", page)
    assert said.split(", ") == failed
    assert "what mends it" not in page


@pytest.mark.parametrize("metric", ["credit_cosine", "train_loss", "growth"])
def test_a_metric_is_found_by_the_label_of_its_axis(metric: str) -> None:
    known = [*EXPLANATIONS, *documented("probe", BUILT_IN["probe"])]
    assert explanations(TRAINED[metric].label, known)[0].name in (metric, TRAINED[metric].probe)


def test_a_label_with_a_letter_missing_is_suggested() -> None:
    with pytest.raises(SondeError, match="did you mean 'training loss'"):
        explanations("trainig loss")
