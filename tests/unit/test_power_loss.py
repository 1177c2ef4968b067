"""A disk that forgets what was not synced: after a power failure at any moment, what was promised is there."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest

from conftest import tiny_config
from sonde.config import to_tree
from sonde.core.run_ids import run_id
from sonde.metrics.rows import SCHEMA
from sonde.store.files import set_aside
from sonde.store.folder import commit, create_run, read_trained
from sonde.store.journal import Journal, read_watched
from sonde.store.load import verify
from sonde.store.schemas import Manifest, RunState
from stores import about, some_rows

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the names of open files")

Loss = Literal["names", "contents"]
"""What a file system may lose: renames and new files since their folder was synced, or content since its file was."""
LOSSES: tuple[Loss, ...] = ("names", "contents")


class Disk:
    """Notes what was synced below a folder; `survivors` is what a power failure leaves of it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.files: dict[int, bytes] = {}  # by inode
        self.folders: dict[int, dict[str, tuple[int, bool]]] = {}  # inode → name → inode, and whether it is a folder
        self.held: list[int] = []  # an inode that is open is not given to another file
        self.really = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, number: int) -> None:
        self.really(number)
        path, inode = os.readlink(f"/proc/self/fd/{number}"), os.fstat(number).st_ino
        if os.path.isdir(path):
            entries = os.scandir(path)
            self.folders[inode] = {entry.name: (entry.inode(), entry.is_dir()) for entry in entries}
        else:
            self.files[inode] = Path(path).read_bytes()
        self.held.append(os.dup(number))

    def survivors(self, to: Path, loss: Loss) -> Path:
        if loss == "names":
            self._synced(self.root.stat().st_ino, to)
            return to
        to.mkdir(parents=True)
        for path in sorted(self.root.rglob("*")):
            left = to / path.relative_to(self.root)
            left.mkdir() if path.is_dir() else left.write_bytes(self.files.get(path.stat().st_ino, b""))
        return to

    def _synced(self, folder: int, to: Path) -> None:
        to.mkdir(parents=True)
        for name, (inode, is_folder) in self.folders.get(folder, {}).items():
            if is_folder:
                self._synced(inode, to / name)
            else:
                (to / name).write_bytes(self.files.get(inode, b""))

    def close(self) -> None:
        for number in self.held:
            os.close(number)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    (tmp_path / "runs").mkdir()
    made = Disk(tmp_path / "runs", monkeypatch)
    yield made
    made.close()


def rows_of(id: str, epoch: int) -> pl.DataFrame:
    values = (id, epoch, epoch, None, "test_acc", float(epoch), True, None, 1)
    return pl.DataFrame([values], schema=SCHEMA, orient="row")


@pytest.mark.parametrize("loss", LOSSES)
def test_every_state_that_was_committed_survives(loss: Loss, disk: Disk, tmp_path: Path) -> None:
    tree = to_tree(tiny_config())
    folder = disk.root / run_id(tree)
    cuts = 0
    reached: int | None = None

    def power_fails() -> None:
        nonlocal cuts
        cuts += 1
        left = disk.survivors(tmp_path / f"{cuts}", loss)
        assert verify(left).wrong == {}
        if reached is not None:
            manifest, rows = read_trained(left / folder.name)
            assert manifest.epoch is not None
            assert manifest.epoch >= reached
            assert rows["value"].to_list() == [float(manifest.epoch)]

    replace, synced = Path.replace, disk.fsync

    def renaming(self: Path, target: Any) -> Path:
        moved = replace(self, target)
        power_fails()
        return moved

    def syncing(number: int) -> None:
        synced(number)
        power_fails()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "replace", renaming)
        patched.setattr(os, "fsync", syncing)
        create_run(folder, tree, about(tiny_config()))
        for epoch in range(3):
            state: RunState = "complete" if epoch == 2 else "unfinished"
            weights = {"weights": b"w" * 100, "resume": b"r" * 100}
            commit(folder, Manifest(state=state, epoch=epoch), rows_of(folder.name, epoch), weights)
            reached = epoch
            power_fails()
    assert cuts > 30


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_of_a_watched_run_survive_once_they_are_synced(loss: Loss, disk: Disk, tmp_path: Path) -> None:
    journal = Journal(disk.root, "net", {"label": "net", "model": "Net", "parameters": 3}, {"started": "now"})

    def left(name: str) -> pl.DataFrame:
        store = disk.survivors(tmp_path / name, loss)
        assert verify(store).wrong == {}
        return read_watched(store / "net")[1]

    journal.append(some_rows(0), 0)
    assert left("first").equals(some_rows(0))
    journal.append(some_rows(1), 1)
    assert left("unsynced").equals(some_rows(0))
    journal.sync()
    assert left("synced").equals(pl.concat([some_rows(0), some_rows(1)]))
    journal.append(some_rows(2), 2)
    journal.close("complete", 3)
    assert left("closed").equals(pl.concat([some_rows(step) for step in range(3)]))


def test_several_files_are_on_the_disk_before_any_has_its_name(disk: Disk, tmp_path: Path) -> None:
    with set_aside(disk.root / "a.csv", disk.root / "b.csv") as (one, other):
        one.write_bytes(b"a")
        other.write_bytes(b"b")
    for loss in LOSSES:
        left = disk.survivors(tmp_path / loss, loss)
        assert {path.name: path.read_bytes() for path in left.iterdir()} == {"a.csv": b"a", "b.csv": b"b"}
