"""Training with a watch and without: the same bits."""

import functools
import warnings
from pathlib import Path

import pytest
import torch

import sonde
from watch_programs import PROGRAMS, nothing


@pytest.mark.parametrize("name", PROGRAMS)
def test_watching_changes_no_bit(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    without = program(nothing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched = program(functools.partial(sonde.watch, runs=tmp_path))
    assert len(without) == len(watched) > 0
    assert all(torch.equal(a, b) or (a.isnan() & b.isnan()).all() for a, b in zip(without, watched, strict=True))
    states = {run.manifest.state for run in sonde.load(tmp_path).watched}
    assert states == {"complete"}, "a watch gave up"
