"""Exports that are interrupted: marked, completed by the same command, and never taken for complete."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sonde.cli.export import export_command
from sonde.core import errors
from sonde.core.errors import SondeError
from sonde.show import exporters
from sonde.show.exporters import LAYOUTS
from sonde.store.listing import mark_of, marked
from sonde.store.load import load, verify
from sonde.studies import STUDIES
from stores import write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for config in STUDIES["audit"].configs("quick", [42]):
        write_run(tmp_path / "runs", config)
    return tmp_path / "runs"


def after(runs: int, error: BaseException) -> Callable[..., object]:
    """`publish` that fails once so many runs were written."""
    publish, written = exporters.publish, []

    def stops(*args: object) -> object:
        if len(written) == runs:
            raise error
        written.append(args)
        return publish(*args)  # type: ignore[arg-type]

    return stops


def test_a_store_that_was_exported_in_part_says_so_and_is_completed(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as stopped:
        stopped.setattr(exporters, "publish", after(2, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            export_command(runs=runs, layout="runs", out=out, quiet=True)
    assert mark_of(out, "runs").exists()
    assert len(load(out)) == 2
    assert any(str(out) in text and "interrupted" in text for text in errors._told)
    assert list(verify(out).wrong) == ["out"]
    first = {path: path.stat().st_mtime_ns for path in out.glob("*/manifest.json")}
    export_command(runs=runs, layout="runs", out=out, quiet=True)
    assert load(out).rows.equals(load(runs).rows)
    found = verify(out)
    assert (found.wrong, found.left_over) == ({}, [])
    assert {path: path.stat().st_mtime_ns for path in first} == first, "what was there was written again"
    with pytest.raises(SondeError, match="not empty"):
        export_command(runs=runs, layout="runs", out=out, quiet=True)


def test_an_interrupted_export_is_not_mixed_with_another(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as stopped:
        stopped.setattr(exporters, "publish", after(4, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            export_command(runs=runs, layout="runs", out=out, quiet=True)
    with pytest.raises(SondeError, match="not in this export"):
        export_command(runs=runs, layout="runs", out=out, only=["rule=bp"], quiet=True)
    assert mark_of(out, "runs").exists()


def test_an_error_leaves_no_mark_of_tables_and_the_mark_of_what_is_partial(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporters, "whole_run_table", full)
    with pytest.raises(SondeError, match="no space left"):
        export_command(runs=runs, layout="csv", out=out, quiet=True)
    assert list(out.iterdir()) == []
    monkeypatch.setattr(exporters, "publish", after(1, SondeError("no")))
    with pytest.raises(SondeError):
        export_command(runs=runs, layout="runs", out=tmp_path / "store", quiet=True)
    assert mark_of(tmp_path / "store", "runs").exists()


def test_what_a_killed_export_left_aside_is_removed(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    left = dead_aside(out, "rows.csv")
    export_command(runs=runs, layout="csv", out=out, quiet=True)
    assert not left.exists()
    assert sorted(path.name for path in out.iterdir()) == ["rows.csv", "runs.csv"]


def dead_aside(out: Path, name: str) -> Path:
    """A file as a process left it that is no more."""
    made = subprocess.run(
        [
            sys.executable,
            "-c",
            "from sonde.store.files import ASIDE, aside_mark; print(ASIDE + aside_mark())",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    path = out / f"{made.stdout.strip()}{name}"
    path.touch()
    return path


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_marks_of_several_layouts_do_not_disturb_each_other(layout: str, tmp_path: Path) -> None:
    other = mark_of(tmp_path, "other")
    assert isinstance(other, Path)
    other.touch()
    with marked(tmp_path, layout):
        assert mark_of(tmp_path, layout).exists()
    assert list(tmp_path.iterdir()) == [other]
