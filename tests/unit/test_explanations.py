"""What `sonde explain` says of thresholds is what diagnoses go by; every probe says what good and bad look like."""

import pytest

from sonde.diagnosis import flow_symptoms, pace_faults, task_faults, wiring_faults
from sonde.errors import SondeError
from sonde.explanations.by_name import EXPLANATIONS, documented, explanations
from sonde.explanations.explanation import Explanation
from sonde.guests import OURS
from sonde.watching.experiments.overfit import STEPS

MEASURED = {text.name: text.measured for text in EXPLANATIONS if text.kind == "diagnosis"}

SAID = [
    ("idle_branch", "below {} of the others'", wiring_faults.IDLE),
    ("bad_init", "above {}", wiring_faults.LARGE_GAIN),
    ("bad_init", "below {}", wiring_faults.SMALL_GAIN),
    ("bad_init", "{} % of a layer's units off", 100 * wiring_faults.DEAD_AT_START),
    ("attention_collapse", "above {}", wiring_faults.LOGIT),
    ("unnormalised_input", "RMS above {}", task_faults.LARGE),
    ("unnormalised_input", "more than {}", task_faults.UNLIKE),
    ("unnormalised_input", "RMS below {}", task_faults.SMALL),
    ("unnormalised_target", "RMS above {}", task_faults.LARGE),
    ("wrong_loss", "ends below −{}", -task_faults.BELOW_ZERO),
    ("wrong_labels", "batch of {} or more", task_faults.SEVERAL),
    ("wrong_output_activation", "{} % of the way", 100 * task_faults.OUT_OF_REACH),
    ("wrong_output_activation", "above {} from outputs", task_faults.OUT_OF_BOUNDS),
    ("lr_too_high", "more than {} % of their norm", 100 * pace_faults.LARGE_STEP),
    ("lr_too_low", "by less than {} of", pace_faults.NEAR),
    ("lr_too_low", "by more than {} of it", pace_faults.FAR),
    ("too_few_steps", "Fewer than {} steps", pace_faults.FEW),
    ("too_few_steps", "steps above {} of the weights", pace_faults.SLOW),
    ("over_regularised", "below {} of it", pace_faults.GONE),
    ("over_regularised", "more than {} of what a step changes", pace_faults.PULL),
    ("dead_units", "units {} are zero", flow_symptoms.DEAD),
    ("dead_units", "({}, if they", flow_symptoms.DIED),
    ("exploding_gradient", "more than {} over depth", flow_symptoms.EXPLODED),
]
IN_WORDS = [
    ("too_few_steps", "come a fifth of the way further", pace_faults.FURTHER, 0.2),
    ("over_regularised", "below a third of their initial norm", pace_faults.SHRUNK, 1 / 3),
    ("lr_too_high", "the loss grows tenfold", pace_faults.GREW, 10.0),
    ("lr_too_high", "by more than their norm", pace_faults.OUTRAGEOUS, 1.0),
    ("saturated_units", "Half of a hidden layer's outputs", flow_symptoms.SATURATED, 0.5),
    ("masked_growth", "grow a hundredfold", wiring_faults.GREW, 100.0),
    ("attention_collapse", "nine of ten", wiring_faults.ONE_HOT, 0.9),
    ("too_few_steps", "fifty steps", STEPS, 50),
    ("lr_too_low", "fifty steps", STEPS, 50),
]


@pytest.mark.parametrize(("name", "words", "value"), SAID)
def test_a_threshold_is_said_as_it_is_used(name: str, words: str, value: float) -> None:
    shown = f"{value:g}".replace("1e-07", "1e-7").replace("0.001", "1e-3")
    assert words.format(shown) in MEASURED[name]


@pytest.mark.parametrize(("name", "words", "value", "meant"), IN_WORDS)
def test_a_threshold_in_words_is_the_one_that_is_used(
    name: str, words: str, value: float, meant: float
) -> None:
    assert words in MEASURED[name]
    assert value == pytest.approx(meant)


def test_every_probe_and_metric_says_what_good_and_bad_look_like() -> None:
    probes = documented("probe", OURS["probe"])
    metrics = [text for text in EXPLANATIONS if text.kind in ("metric", "question")]
    for text in (*probes, *metrics):
        assert text.good, text.name
        assert text.bad, text.name
        assert f"Good looks like: {text.good}" in str(text)


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
    known = [*EXPLANATIONS, *(text for kind, table in OURS.items() for text in documented(kind, table))]
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
