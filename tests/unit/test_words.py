"""The words of the field: private words of earlier versions do not occur in the package.

python tests/unit/test_words.py                    # write private_words.txt again: it may only shrink
python tests/unit/test_words.py --from-scratch     # after a merge that moved code between rooms
"""

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from leftovers import assert_only_these, rewrite

SOURCE = Path(__file__).parents[2] / "src" / "sonde"
LEFT = Path(__file__).with_name("private_words.txt")

PRIVATE = {
    "guest": "plugin",
    "stranger": "signature, or custom",
    "neighbour": "exporter",
    "spot": "watched module",
    "sheet": "step record",
    "standing": "run status",
    "beat": "heartbeat",
    "sweep": "clean up (a sweep is of hyperparameters)",
    "mend": "fix",
    "settle": "run experiments",
    "judge": "audit, or assess",
    "criteria": "loss adapter",
    "stretches": "row slices",
}
"""Word → the field's word.  Any form counts: plural, -ed, -ing."""
PHRASES = {
    "broken number": "float",
    "all ears": "record",
    "as it comes": "unchanged, or in order",
    "by heart": "memorise",
    "how it stands": "status",
    "a word each": "an error message each",
    "of which": "a sentence of its own",
}
ALLOWED = {
    ("sweep", "studies"): "a sweep of hyperparameters",
    ("sweep", "cli"): "a sweep of hyperparameters",
    ("sweep", "show"): "a sweep of hyperparameters",
    ("sweep", "config"): "a sweep of hyperparameters",
    ("neighbour", "metrics"): "neighbouring layers",
    ("neighbour", "observe"): "interpolation by nearest neighbours",
    ("neighbour", "analysis"): "a key of stored experiments",
    ("neighbour", "show"): "neighbouring cells of a chart",
    ("beat", "analysis"): "a rule beats a baseline",
    ("beat", "store"): "a key of the heartbeat file",
    ("sheet", "show"): "style sheets and spreadsheets",
    ("guest", "store"): "a key of run.json",
    ("guest", "analysis"): "`sonde explain guest` explains plugins",
    ("guest", "__init__"): "deprecated names, until 0.3.0",
    ("standing", "store"): "the deprecated name of Run.status, until 0.3.0",
    ("standing", "cli"): "the deprecated name of a key of `sonde audit --json`, until 0.3.0",
}
"""(word, room) → why it may stand there."""
MODULES = ("guest", "stranger", "neighbour", "checked", "checking", "criteria", "spread", "verdicts", "stretches")


def pattern() -> re.Pattern[str]:
    forms = "|".join(f"(?P<{word}>{word}(?:s|d|ed|ing|er|ers)?)" for word in PRIVATE)
    return re.compile(rf"(?<![a-z])(?:{forms})(?![a-z])")


def texts(file: Path) -> Iterator[str]:
    """Identifiers in words, comments and strings of a Python file; the whole of a page or script."""
    if file.suffix != ".py":
        yield file.read_text()
        return
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type == tokenize.NAME:
            yield re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", token.string)
        else:
            yield token.string


def found() -> Counter[str]:
    """`room: word` → how often."""
    word_of, counts = pattern(), Counter[str]()
    for file in sorted(SOURCE.rglob("*")):
        if file.suffix not in (".py", ".js", ".html", ".jinja"):
            continue
        room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for text in texts(file):
            lowered = " ".join(text.lower().split())
            words = [str(match.lastgroup) for match in word_of.finditer(lowered)]
            words += [phrase for phrase in PHRASES for _ in range(lowered.count(phrase))]
            counts.update(f"{room}: {word}" for word in words if (word, room) not in ALLOWED)
    return counts


def test_no_private_word_is_used_beyond_the_list_of_leftovers() -> None:
    assert_only_these(found(), LEFT)


@pytest.mark.parametrize(("word", "room"), ALLOWED)
def test_an_exception_has_a_room_that_exists(word: str, room: str) -> None:
    assert word in PRIVATE
    assert (SOURCE / room).is_dir() or (SOURCE / f"{room}.py").is_file()


def test_no_module_has_a_private_name() -> None:
    named = [file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py")]
    assert not [name for name in named if re.search(rf"(?<![a-z])({'|'.join(MODULES)})s?(?![a-z])", name)]


@pytest.mark.parametrize("text", ["class GuestRule:", "# the judge of it", "'settled by heart'", "neighbours = []"])
def test_a_private_word_is_noticed_in_any_form(text: str, tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(text + (" pass" if text.endswith(":") else "") + "\n")
    assert any(pattern().search(one.lower()) for one in texts(file))


if __name__ == "__main__":
    rewrite(found(), LEFT)
