"""The scripts of docs/own.md are complete: each runs as it stands, and its guest works on the command line too."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import sonde as package

PAGE = (Path(__file__).parents[2] / "docs" / "own.md").read_text()
SCRIPTS = {
    text.split(":", 1)[0].removeprefix('"""'): text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
}
REFERENCES = {
    "network.py": ("--model", "network.py:narrow"),
    "data.py": ("--task", "data.py:rings"),
    "rule.py": ("--rule", "rule.py:Signs"),
    "probe.py": ("--set", "probes.names+=probe.py:sparsity"),
}


def test_the_page_has_one_script_of_each_kind() -> None:
    assert SCRIPTS.keys() == REFERENCES.keys()
    for option, reference in REFERENCES.values():
        assert f"{option} {reference}" in PAGE


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_as_it_stands(name: str, tmp_path: Path, sonde: Callable[..., CompletedProcess[str]]) -> None:
    (tmp_path / name).write_text(SCRIPTS[name])
    done = subprocess.run(
        [sys.executable, "-W", "error", name], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "shape: (" in done.stdout
    trained = {run.id for run in package.load(tmp_path / "runs").runs}
    small = ("--epochs", "1", "--set", "model.d=16", "--set", "batch_size=64")
    small = small if name != "network.py" else small[:2]
    sonde("train", *REFERENCES[name], *small, "--quiet")
    assert len({run.id for run in package.load(tmp_path / "runs").runs} - trained) == 1
