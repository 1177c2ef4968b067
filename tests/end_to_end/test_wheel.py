"""The wheel that is built from this tree works in a fresh environment, away from the checkout.

Nothing is downloaded: the environment sees the libraries of the one that runs the tests, through a path file, and pip
resolves the wheel's dependencies among them with `--no-index`.  Path files of a folder that was added by one are not
read, so the checkout, which is installed in editable mode, is not visible there.
"""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("pip", reason="the wheel is built with pip")
if int(metadata.version("setuptools").partition(".")[0]) < 77:  # importing it would depend on who imported distutils
    pytest.skip("setuptools 77 or newer builds the wheel", allow_module_level=True)

ROOT = Path(__file__).parents[2]
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
NETWORK = ("--model", "residual_mlp", "--set", "model.d=16", "--set", "model.L=2")
DATA = ("--task", "parity", "--set", "task.samples=128", "--set", "task.test_samples=64")


def run(*words: str | Path, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools writes beside its sources."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = ("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", "dist", ".")
    run(sys.executable, "-m", "pip", *build, cwd=tree)
    (built,) = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / SCRIPTS / "python"
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    libraries = dict.fromkeys(path for path in sys.path if path.endswith("site-packages"))
    (own / "libraries.pth").write_text("\n".join(libraries), "utf-8")
    install = ("install", "--quiet", "--no-index", "--ignore-installed", "--no-deps", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)
    satisfied = ("install", "--quiet", "--no-index", "--dry-run", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *satisfied, cwd=folder)  # refuses a library that is missing
    return python.parent


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    files = (path for path in (source / "sonde").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert held == {path.relative_to(source).as_posix() for path in files}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    held = zipfile.ZipFile(wheel)
    (name,) = (name for name in held.namelist() if name.endswith(".dist-info/METADATA"))
    said = held.read(name).decode()
    for line in ("Author: Sonde developers", "License-Expression: Apache-2.0", "Requires-Python: >=3.11"):
        assert line in said.splitlines()
    assert "# Sonde" in said  # README is its description


def test_it_trains_and_reports_in_a_fresh_environment(fresh: Path, tmp_path: Path) -> None:
    home = run(fresh / "python", "-c", "import sonde; print(sonde.__file__, sonde.__version__)", cwd=tmp_path)
    path, version = home.split()
    assert Path(path).is_relative_to(fresh.parent)
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert "Usage" in run(fresh / "sonde", "--help", cwd=tmp_path)
    assert "dfa" in run(fresh / "sonde", "list", cwd=tmp_path)
    run(fresh / "sonde", "train", *NETWORK, *DATA, "--epochs", "1", "--runs", "runs", cwd=tmp_path)
    run(fresh / "sonde", "report", "--runs", "runs", "--out", "report.html", cwd=tmp_path)
    assert "residual_mlp" in (tmp_path / "report.html").read_text("utf-8")
    run(fresh / "sonde", "playground", "--out", "playground.html", cwd=tmp_path)
    assert (tmp_path / "playground.html").stat().st_size > 50_000
