"""A rule is added to a copy of the package in three files; everything else follows from its class and its name.

The copy has the class, its line in RULES and its plain definition in analysis/recompute/credits.py.  Then the rule is
trained, stored, read, recomputed, drawn and documented there.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("added_rule_worker.py")

RULE = '''
"""Half of the exact gradient, through a random matrix."""

from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Facts, LocalRule, Signal
from sonde.rules.states import Matrices


@final
@validated
class Halved(LocalRule):
    """Send half of the exact gradient through a fixed random matrix: a_l = ½ g_l B_l.

    Exact limit: with B_l twice the identity it is backprop.
    """

    strength: Annotated[float, Ge(0)] = 0.5
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "halved"
    needs: ClassVar[str] = "the exact gradient; a fixed matrix for each state"
    first_options: ClassVar[tuple[str, ...]] = ("strength", "credit_scale", "penalty", "credit_at")

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        widths = [shape[-1] for shape in facts.shapes]
        return Matrices([torch.randn(d, d, generator=rng).to(facts.device, facts.dtype) / d**0.5 for d in widths])

    def credits(self, state: Matrices, signal: Signal) -> list[Tensor]:
        pairs = zip(signal.gradients, state.matrices, strict=True)
        return [self.strength * g @ b_dd.to(g.dtype) for g, b_dd in pairs]
'''

DEFINITION = """
def halved(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    pairs = zip(sample.gradients, state["matrices"], strict=True)
    return [options["strength"] * g @ b_dd.double() for g, b_dd in pairs]


def halved_anew(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> tuple[dict[str, Any], _State]:
    return {}, {"matrices": [torch.randn(b.shape, generator=rng) / len(b) ** 0.5 for b in state["matrices"]]}


CREDITS["halved"] = halved
REDRAWN["halved"] = halved_anew
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    package = folder / "src" / "sonde"
    (package / "rules" / "halved.py").write_text(RULE.lstrip())
    table = package / "rules" / "__init__.py"
    text = table.read_text().replace("\nRULES: dict", "from sonde.rules.halved import Halved\n\nRULES: dict", 1)
    table.write_text(re.sub(r'(    "frozen": Frozen,\n)', r'\1    "halved": Halved,\n', text))
    credits = package / "analysis" / "recompute" / "credits.py"
    credits.write_text(credits.read_text() + "\n" + DEFINITION)
    return folder


def python(copy: Path, code: str, *arguments: str) -> str:
    environment = {"PYTHONPATH": f"{copy / 'src'}", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(copy)}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_trained_labelled_read_and_recomputed(copy: Path, tmp_path: Path) -> None:
    assert python(copy, WORKER.read_text(), str(tmp_path / "runs")).startswith("residual_mlp-halved-teacher-s42-")


def test_its_line_its_section_and_its_explanation_are_rendered(copy: Path) -> None:
    code = f"""
import runpy
writer = runpy.run_path({str(ROOT / "docs" / "write_rules.py")!r})
assert "\\n| `halved` | the exact gradient; a fixed matrix for each state |" in writer["rules"]()
assert "\\n### `halved`: halved\\n" in writer["sections"]()
from sonde.cli import app
app(["explain", "halved"])
"""
    assert "half of the exact gradient" in python(copy, code)
