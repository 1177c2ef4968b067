"""What the tests that kill processes share."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sonde.store.lock import Held, hold

# Two small runs of the residual study, long enough for a process to be killed on the way.
LONG = ["--set", "model.L=4", "--set", "epochs=40", "--set", "task.steps_per_epoch=20"]
LONG += ["--only", "model=res_mlp", "--no-figures"]

FILES = ("weights.safetensors", "initial.safetensors", "rule.safetensors", "metrics.parquet", "run.json")


def contents(folder: Path) -> dict[str, bytes]:
    """Weights and rows; the manifest also holds times and is not compared."""
    return {name: (folder / name).read_bytes() for name in FILES}


def epoch_of(folder: Path) -> int:
    """How far a run has come; -1 before anything was measured."""
    try:
        epoch = json.loads((folder / "manifest.json").read_text())["epoch"]
    except FileNotFoundError:
        return -1
    return -1 if epoch is None else int(epoch)


def folders(runs: Path) -> list[Path]:
    """Of the runs that are visible; the hidden ones are just being made."""
    return [path.parent for path in runs.glob("[!.]*/manifest.json")]


def furthest(runs: Path) -> int:
    return max(map(epoch_of, folders(runs)), default=0)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[Any] | None = None) -> None:
    """Until it holds; a process that ends first will not bring it about."""
    for _ in range(9000):
        ended = process is not None and process.poll() is not None
        if condition():
            return
        assert not ended, "the command ended before"
        time.sleep(0.02)
    raise AssertionError("nothing happened for three minutes")


def all_free(runs: Path) -> bool:
    """Whether nobody works on any of the runs."""
    try:
        for folder in folders(runs):
            with hold(runs, folder.name):
                pass
    except Held:
        return False
    return True


def alive(pid: int | None) -> bool:
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def holder(runs: Path, run: str) -> int | None:
    """The process that works on a run, or was the last to do so."""
    try:
        return int(json.loads((runs / ".locks" / f"{run}.holder").read_text())["pid"])
    except FileNotFoundError:
        return None


@contextmanager
def killing(
    runs: Path, run: str, *, times: int, after: int, by: signal.Signals = signal.SIGKILL
) -> Iterator[list[int]]:
    """Whoever works on the run is killed, so many times, once it has come `after` an epoch; lists whom it was."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while len(killed) < times and not over.wait(0.001):
            pid = holder(runs, run)
            if pid is not None and pid not in (*killed, os.getpid()) and epoch_of(runs / run) >= after:
                os.kill(pid, by)
                killed.append(pid)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield killed
    finally:
        over.set()
        watcher.join()
