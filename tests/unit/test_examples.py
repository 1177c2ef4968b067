"""The runs behind the site's pictures: whole, anonymous, and of every program that docs/examples/train.py has."""

import re
import runpy
from pathlib import Path

from faulty_programs import ON_PURPOSE
from sonde.analysis.diagnosis import diagnose
from sonde.analysis.diagnosis.run_evidence import evidence_of_watched
from sonde.store.load import load, verify

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
STORE = FOLDER / "runs"


def test_every_byte_is_vouched_for_and_nothing_names_a_machine() -> None:
    assert not verify(STORE).wrong
    for manifest in STORE.glob("*/manifest.json"):
        assert not re.search(r'"(?:host|command|node)"', manifest.read_text()), manifest
    assert not list(STORE.glob("*/*.safetensors"))


def test_the_store_has_every_program_and_healthy_ones_have_no_finding_above_a_note() -> None:
    programs = runpy.run_path(str(FOLDER / "train.py"))
    stored = load(STORE)
    assert sorted(run.label for run in stored.watched) == sorted({**programs["GOOD"], **programs["BAD"]})
    assert len(stored.runs) == len(programs["DIGITS"]) * len(programs["SEEDS"])
    for run in stored.watched:
        found = diagnose(evidence_of_watched(run, stored.rows))
        if run.label in programs["BAD"]:
            assert run.label in {one.name for one in found}
            assert run.label in ON_PURPOSE or any(one.level != "note" for one in found), run.label
        else:
            assert all(one.level == "note" for one in found), run.label
