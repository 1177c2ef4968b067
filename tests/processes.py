"""What the tests that kill processes share."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from sonde.store.lock import Held, hold

# Two small runs of the residual study, long enough for a process to be killed on the way.
LONG = ["--set", "model.L=4", "--set", "epochs=40", "--set", "task.steps_per_epoch=20"]
LONG += ["--only", "model=res_mlp", "--no-figures"]
ENDLESS = [word.replace("epochs=40", "epochs=100000") for word in LONG]  # for what is stopped on the way, however late
PATIENCE = 300  # seconds until a process on a busy machine has ended

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


class ArchiveServer(ThreadingHTTPServer):
    """Serves the archive of a data set on loopback; its attributes make it fail."""

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _ArchiveHandler)
        self.content = content
        self.ranges = True
        self.unsatisfiable = False
        self.drop_after: int | None = None
        self.status = 200
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/set.tar.gz"

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """Serve in a thread."""
        with self:
            thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield self
            finally:
                self.shutdown()
                thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed is no error of the server's."""


class _ArchiveHandler(BaseHTTPRequestHandler):
    server: ArchiveServer

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.asked.append(asked)
        if server.status != 200:
            self.send_error(server.status)
            return
        if asked and server.unsatisfiable:
            self.send_error(416)
            return
        first = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
        body = server.content[first:]
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if server.drop_after is None else body[: server.drop_after])

    def log_message(self, *words: object) -> None:
        pass
