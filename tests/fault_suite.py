"""The suite of programs with planted faults, where it is at hand."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

SUITE = Path(os.environ.get("SONDE_SUITE", Path(__file__).parents[2] / "shared" / "suite"))
CASES = sorted(path.stem for path in (SUITE / "cases").glob("*.py")) if SUITE.is_dir() else []
NEEDS_SUITE = pytest.mark.skipif(not CASES, reason=f"no suite of programs in {SUITE}: set SONDE_SUITE")


def load(name: str) -> ModuleType:
    if str(SUITE) not in sys.path:
        sys.path.insert(0, str(SUITE))
    spec = importlib.util.spec_from_file_location(name, SUITE / "cases" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    return case
