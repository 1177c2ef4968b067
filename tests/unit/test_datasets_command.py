import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sonde.cli import data_app as data
from sonde.core.errors import SondeError
from sonde.store import datasets
from sonde.store.datasets import BATCHES_FOLDER, TEST_FILES, TRAIN_FILES, Absent, find_or_mirror_cifar10

runner = CliRunner()


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SONDE_DATA", raising=False)


def pickles(root: Path) -> Path:
    (root / BATCHES_FOLDER).mkdir(parents=True)
    for name in (*TRAIN_FILES, *TEST_FILES):
        (root / BATCHES_FOLDER / name).touch()
    return root / BATCHES_FOLDER


@pytest.mark.parametrize("words", [["path"], ["path", "cifar10"]])
def test_path_says_where_and_in_which_form(tmp_path: Path, words: list[str]) -> None:
    place = pickles(tmp_path)
    result = runner.invoke(data, [*words, "--data-root", str(tmp_path)])
    assert result.exit_code == 0
    assert result.stdout == f"cifar10: {place} (the official pickles)\n"


def test_path_reads_the_environment(tmp_path: Path) -> None:
    place = pickles(tmp_path)
    result = runner.invoke(data, ["path", "cifar10", "--json"], env={"SONDE_DATA": str(tmp_path)})
    known = json.loads(result.stdout)
    assert (known["name"], known["form"], known["path"]) == ("cifar10", "pickles", str(place))


def test_path_of_a_missing_set_is_an_error_and_json_still_says_where_it_looked(tmp_path: Path) -> None:
    result = runner.invoke(data, ["path", "cifar10", "--json"])
    assert isinstance(result.exception, Absent)
    known = json.loads(result.stdout)
    assert known["path"] is None
    assert str(tmp_path / "cache" / BATCHES_FOLDER) in known["looked_for"]


@pytest.mark.parametrize("command", ["path", "fetch"])
def test_an_unknown_set_names_the_nearest(command: str) -> None:
    result = runner.invoke(data, [command, "cifar"])
    assert isinstance(result.exception, SondeError)
    assert "unknown data set 'cifar': did you mean 'cifar10'?" in str(result.exception)


def test_fetch_puts_the_archive_below_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"the archive"
    (tmp_path / "published").write_bytes(content)
    known = datasets.DATASETS["cifar10"]
    url = (tmp_path / "published").as_uri()
    archive = replace(known.archive, url=url, size=len(content), md5=hashlib.md5(content).hexdigest())
    changed = replace(known, archive=archive, find=lambda root: find_or_mirror_cifar10(root, archive))
    monkeypatch.setitem(datasets.DATASETS, "cifar10", changed)
    result = runner.invoke(data, ["fetch", "cifar10", "--data-root", str(tmp_path / "root")])
    assert result.exit_code == 0
    assert "checksum verified" in result.stdout
    assert (tmp_path / "root" / "cifar-10-python.tar.gz").read_bytes() == content


def test_fetch_leaves_unpacked_files_as_they_are(tmp_path: Path) -> None:
    place = pickles(tmp_path)
    result = runner.invoke(data, ["fetch", "cifar10", "--data-root", str(tmp_path)])
    assert result.stdout == f"{place}: already there, nothing to fetch\n"


def test_data_sets_are_found_and_read_without_torch() -> None:
    imports = "import sys, sonde.cli.names, sonde.store.datasets.decoded"
    code = f"{imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
