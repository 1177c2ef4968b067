"""No text that a person reads in the terminal has a sentence of more than 30 words."""

import inspect
from pathlib import Path
from typing import get_type_hints

import pytest

import sonde
from sentences import long_sentences, sentences, words
from sonde.analysis.explanations import EXPLANATIONS, documented
from sonde.cli import app, data_app
from sonde.plugins import BUILT_IN
from sonde.store.load import load
from sonde.studies import STUDIES
from sonde.studies.study import gather
from stores import write_run

SEEDS = (42, 123)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two words! Three?", ["One.", "Two words!", "Three?"]),
        ("See e.g. Doe et al. 2016. Then go on.", ["See e.g. Doe et al. 2016.", "Then go on."]),
        ("- first item\n- second\n  continued\n\nA paragraph", ["- first item", "- second continued", "A paragraph"]),
        ("It is 0.5 high.\n```\ncode. code\n```\n| a. | b. |\n|---|---|\nEnd.", ["It is 0.5 high.", "End."]),
        ("Call `f(a, b). g` with [a link](x.md).", ["Call code with a link."]),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text, found):
    assert list(sentences(text)) == found


def test_words_are_counted_without_the_signs_between_them():
    assert words("a − b = 3 [bold]") == 4
    assert long_sentences("word " * 31 + ".")
    assert not long_sentences("word " * 30 + ".")


def texts_of_help() -> dict[str, str]:
    """Command → its help and that of its options."""
    found = {}
    for command in (*app.registered_commands, *data_app.registered_commands):
        function = command.callback
        assert function is not None
        helps = [inspect.getdoc(function) or ""]
        for hint in get_type_hints(function, include_extras=True).values():
            helps += [option.help for option in getattr(hint, "__metadata__", ()) if getattr(option, "help", None)]
        found[command.name or function.__name__] = "\n\n".join(helps)
    return found


def texts_of_explanations() -> dict[str, str]:
    known = [*EXPLANATIONS, *(text for kind, table in BUILT_IN.items() for text in documented(kind, table))]
    return {f"{text.kind} {text.name}": str(text).partition("\nReference: ")[0] for text in known}


HELP, EXPLAINED = texts_of_help(), texts_of_explanations()
LONG = {
    *(f"diagnosis {name}" for name in ("wrong_output_activation", "wrong_loss", "wrong_labels", "unnormalised_input")),
    *(f"diagnosis {name}" for name in ("bad_init", "over_regularised", "lr_too_high", "lr_too_low", "too_few_steps")),
    *(f"diagnosis {name}" for name in ("vanishing_gradient", "not_learning")),
    *(f"rule {name}" for name in ("fa", "kp", "mirror", "dkp", "fdfa", "ddtp", "credit_bridge")),
    "task rhm",
}
"""Explanations that still have a long sentence: conditions of diagnoses, equations of papers."""
PACKAGES = ("models", "probes", "rules", "tasks")


@pytest.mark.parametrize("command", HELP)
def test_no_sentence_of_help_is_long(command: str) -> None:
    assert not long_sentences(HELP[command])


@pytest.mark.parametrize("name", sorted(EXPLAINED.keys() - LONG))
def test_no_sentence_of_an_explanation_is_long(name: str) -> None:
    assert not long_sentences(EXPLAINED[name].replace("\n", "\n\n"))


@pytest.mark.parametrize("study", STUDIES)
def test_no_sentence_of_a_finding_is_long(study: str, tmp_path: Path) -> None:
    chosen = STUDIES[study]
    own, beside = chosen.configs("quick", SEEDS), chosen.beside("quick", SEEDS)
    own = [config for config in own if hasattr(config.model, "L")][:12]  # what `write_run` can make up
    for config in (*own, *beside):
        write_run(tmp_path, config)
    found = chosen.findings(gather(load(tmp_path), own, "runs", beside=beside))
    assert found
    for finding in found:
        assert not long_sentences(finding.sentence)


@pytest.mark.parametrize("name", ["", *(name for name in sonde.__all__ if name not in PACKAGES)])
def test_no_sentence_of_a_public_docstring_is_long(name: str) -> None:
    documented_object = getattr(sonde, name) if name else sonde
    text = inspect.getdoc(documented_object) or ""
    assert not long_sentences("\n\n".join(part for part in text.split("\n\n") if not part.startswith("    ")))
