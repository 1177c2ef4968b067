"""What the tests share: a tiny run, and the `sonde` command, in this process or in one of its own."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

from sonde.cli import main
from sonde.config import Optimiser, Probing, RunConfig
from sonde.models import PlainMLP, ResMLP
from sonde.network import Signature
from sonde.rules import Backprop
from sonde.show.figures import render
from sonde.tasks import Identity

torch.set_num_threads(1)
settings.register_profile("sonde", deadline=None)  # a busy machine is no defect
settings.load_profile("sonde")

RESIDUAL_PROBES = (
    "loss",
    "hidden_norm",
    "growth",
    "grad_norm",
    "activation_mean",
    "activation_std",
    "preact_grad_norm",
    "trace",
)


def tiny_config(**changes: object) -> RunConfig:
    """A residual network of three layers of width 8, three epochs of four steps."""
    values: dict[str, object] = {
        "model": ResMLP(d=8, L=3, weight_scale="1/sqrt(L)"),
        "rule": Backprop(),
        "task": Identity(d=8, samples=32, test_samples=16, steps_per_epoch=4),
        "probes": Probing(names=RESIDUAL_PROBES, costly=(), size=16),
        "optimiser": Optimiser(name="adam", weight_decay=0.0, schedule="constant"),
        "batch_size": 8,
        "epochs": 3,
        "log": "step",
    }
    return RunConfig(**(values | changes))  # type: ignore[arg-type]


def regression(d: int) -> Signature:
    """What the identity task asks of a network."""
    return Signature(shape=(d,), outputs=d, classifies=False)


@pytest.fixture
def tiny() -> RunConfig:
    return tiny_config()


@pytest.fixture
def tiny_plain() -> RunConfig:
    return tiny_config(model=PlainMLP(d=8, L=3))


pytest_plugins = ["browser.fixtures", "cluster.fixtures"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Tests that share a fixture of their module go to one worker, which builds it once."""
    for item in items:
        defined = item._fixtureinfo.name2fixturedefs.values()
        shares = any(fixture.scope == "module" for several in defined for fixture in several)
        if shares and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


Sonde = Callable[..., subprocess.CompletedProcess[str]]

# The residual study at a size for tests: the same code, smaller numbers.
SMALL = ["--set", "model.L=4", "--set", "epochs=2", "--set", "task.steps_per_epoch=5"]


@pytest.fixture
def sonde(tmp_path: Path, server_environment: dict[str, str]) -> Sonde:
    """Run the command in this process, in an empty folder, and return what it printed."""

    def run(*words: str, check: bool = True, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        renew_server(server_environment)
        stdout, stderr = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            chdir(cwd),
            redirect_stdout(stdout),
            redirect_stderr(stderr),
        ):
            patch.setattr(sys, "argv", ["sonde", *words])
            with pytest.raises(SystemExit) as ended:
                main()
        code = int(ended.value.code or 0)
        if check:
            assert code == 0, stderr.getvalue()
        return subprocess.CompletedProcess(words, code, stdout.getvalue(), stderr.getvalue())

    return run


@pytest.fixture
def sonde_process(tmp_path: Path) -> Sonde:
    """The same in a process of its own, which takes seconds to start: where that is the claim."""

    def run(*words: str, check: bool = True, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "sonde", *words], cwd=cwd, capture_output=True, text=True, timeout=240
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pixels and one format, where the claim is which figures are drawn of what; `sonde` draws in this process."""
    monkeypatch.setattr(render, "FORMATS", ("png",))
    monkeypatch.setattr(render, "DPI", 50)
    monkeypatch.setattr(render, "PAGE_DPI", 40)


def surroundings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


@pytest.fixture(scope="session")
def server_environment() -> dict[str, str]:
    """That of the process which forks the workers of `sonde run`, and which outlives a test."""
    return surroundings()


def renew_server(environment: dict[str, str]) -> None:
    """Workers have the environment in which their server was started: let it be that of the test."""
    if environment != (now := surroundings()):
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        environment.clear()
        environment.update(now)
