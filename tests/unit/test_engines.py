"""The table of engines, and what is said where Ray is not installed."""

import inspect
import platform
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import sonde as package
from conftest import Sonde
from sonde.core.errors import SondeError
from sonde.engine import ENGINE_OPTIONS, choose, cluster

# An interpreter that finds no `ray`, whether it is installed or not.
WITHOUT_RAY = """
import sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ray":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
from sonde.cli import main

main()
"""


def test_without_ray_its_engine_is_one_line_that_says_how_to_install_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY, "run", "residual", "--engine", "ray"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "sonde: --engine ray needs the package ray, which is not installed: pip install 'sonde[ray]', in a "
        "checkout pip install -e '.[ray]'\n"
    )


def test_an_option_of_another_engine_is_refused(sonde: Sonde) -> None:
    for words, message in (
        (["--address", "local"], "--address is an option of --engine ray, not of local"),
        (["--engine", "ray", "--jobs", "2"], "--jobs is an option of --engine local, not of ray"),
    ):
        done = sonde("run", "residual", *words, check=False)
        assert (done.returncode, done.stderr) == (2, f"sonde: {message}\n")


def test_every_engine_has_its_options_in_the_table() -> None:
    given = {"jobs": 2, "address": "local", "cpus_per_run": 1, "gpus_per_run": 0}
    assert {option for options in ENGINE_OPTIONS.values() for option in options} == given.keys()
    for name, options in ENGINE_OPTIONS.items():
        run_all: Any = choose(name, {option: given[option] for option in options} | {"not_given": None})
        assert run_all.keywords.keys() == set(options)
        assert set(options) <= inspect.signature(run_all.func).parameters.keys()
    with pytest.raises(SondeError, match="unknown engine 'Ray'"):
        choose("Ray", {})


def test_a_cluster_that_answers_and_refuses_is_not_called_absent() -> None:
    def refuse(**_: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster\nand a page of reasons")

    ray = SimpleNamespace(init=refuse, exceptions=SimpleNamespace(RayError=RuntimeError))
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(SondeError, match=r"does not let us in \(Failed to connect .*\): .* RAY_AUTH_MODE"):
            cluster._connect(ray, address)
    with pytest.raises(SondeError, match=r"^no Ray cluster at --address"):
        cluster._connect(ray, address)


def test_a_head_whose_server_does_not_start_is_said_to_have_none_not_to_want_a_token() -> None:
    def fail(**_: object) -> None:
        raise ConnectionAbortedError(
            "Initialization failure from server:\nTraceback (most recent call last):\n  ...\n"
            "RuntimeError: Starting Ray client server failed. See ray_client_server_23000.err for detailed logs.\n"
        )

    ray = SimpleNamespace(init=fail, exceptions=SimpleNamespace(RayError=RuntimeError))
    with (
        socket.create_server(("127.0.0.1", 0)) as head,
        pytest.raises(SondeError, match=r"\(RuntimeError: Starting Ray client .*\): the same .*FORK_SUPPORT=0"),
    ):
        cluster._connect(ray, f"ray://127.0.0.1:{head.getsockname()[1]}")


def test_a_node_fits_with_the_same_versions_and_a_sight_of_the_store(tmp_path: Path) -> None:
    fit = {"sonde": package.__version__, "torch": torch.__version__, "Python": platform.python_version()}
    cluster._check_answer("n", (fit, True), tmp_path)
    cluster._check_answer("n", (fit | {"torch": torch.__version__.partition("+")[0] + "+cu130"}, True), tmp_path)
    for answer, message in (
        (({"Python": "3.11.7"}, None), "n has no Sonde: install sonde"),
        ((fit | {"sonde": "0.0.9"}, True), "n has sonde 0.0.9, here is"),
        ((fit | {"torch": "2.0.0"}, True), "n has torch 2.0.0, here is"),
        ((fit | {"Python": "3.9.18"}, True), "n has Python 3.9.18, here is"),
        ((fit, "access denied"), r"n cannot read .* \(access denied\)"),
        ((fit, False), "n does not see what is written to"),
    ):
        with pytest.raises(SondeError, match=message):
            cluster._check_answer("n", answer, tmp_path)
