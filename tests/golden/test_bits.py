"""Weights and rows of the four studies at quick scale are, bit for bit, those that were stored.

`python tests/golden/take.py` stores them anew.
"""

import pytest

from golden.take import FORMS, hashes, machine, read, recipes

NAMES = [
    pytest.param(form, name, marks=[pytest.mark.slow] if form == "complete" else [])
    for form in FORMS
    for name in recipes(form)
]


@pytest.mark.parametrize(("form", "name"), NAMES)
def test_a_run_has_the_bits_it_had(form: str, name: str) -> None:
    stored = read(form)
    if (here := machine()) != stored["machine"]:
        pytest.skip(f"the bits were stored on {stored['machine']}, this is {here}")
    before, now = stored["runs"][name], hashes(recipes(form)[name])
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    assert not changed, "other bits: if they are meant to change, run python tests/golden/take.py"


@pytest.mark.parametrize("form", FORMS)
def test_every_run_of_the_studies_is_stored_and_no_other(form: str) -> None:
    assert set(read(form)["runs"]) == set(recipes(form))
