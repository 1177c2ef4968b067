"""macOS and Windows, as far as Linux can tell: what only one system has is asked for with a fallback.

The tree is read for what other systems lack; where the code has a fallback, the system's feature is taken away.
"""

import ast
import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conftest import tiny_config
from sonde import engine
from sonde.cli import stopping_signals
from sonde.engine import first_ctrl_c, run_locally, warm_up
from sonde.store import files, index, lock, run
from sonde.store.load import load
from sonde.training.session import memory_of

SRC = Path(__file__).parents[2] / "src" / "sonde"
UNIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
UNIX_CALLS = {"chown", "fork", "forkpty", "getloadavg", "getpgid", "getuid", "geteuid", "killpg", "mkfifo", "nice"} | {
    "sched_getaffinity", "setsid", "uname", "wait", "waitpid",
}  # fmt: skip
GUARDED = {
    ("store/files.py", "kill"),  # posix alone: Windows would end the process
    ("store/lock.py", "sysconf"),
    ("training/session.py", "sysconf"),
}
PROC = {"store/lock.py", "store/run.py"}
"""The files that may read /proc; the tests below take it away from each."""


@functools.cache
def trees() -> dict[str, ast.Module]:
    return {path.relative_to(SRC).as_posix(): ast.parse(path.read_text("utf-8")) for path in SRC.rglob("*.py")}


def nodes(kind: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for name, tree in trees().items():
        yield from ((name, node) for node in ast.walk(tree) if isinstance(node, kind))


def test_no_module_of_one_system_is_imported() -> None:
    named = {(name, alias.name) for name, node in nodes(ast.Import) for alias in node.names}  # type: ignore[attr-defined]
    named |= {(name, node.module) for name, node in nodes(ast.ImportFrom)}  # type: ignore[attr-defined]
    assert not [one for one in named if str(one[1]).partition(".")[0] in UNIX_MODULES]


def test_what_windows_lacks_in_os_and_signal_is_asked_for_with_a_fallback() -> None:
    used = {
        (name, node.attr)  # type: ignore[attr-defined]
        for name, node in nodes(ast.Attribute)
        if isinstance(node.value, ast.Name) and node.value.id in ("os", "signal")  # type: ignore[attr-defined]
    }
    signals = {one for one in used if one[1].startswith("SIG") and not one[1].startswith("SIG_")}
    assert {attr for _, attr in signals} <= {"SIGINT", "SIGTERM"}
    flags = {attr for _, attr in used if attr.startswith("O_")}
    assert flags <= {"O_RDONLY", "O_WRONLY", "O_RDWR", "O_CREAT", "O_EXCL", "O_APPEND"}
    assert not {one for one in used if one[1] in UNIX_CALLS | {"kill", "sysconf"}} - GUARDED


def test_text_files_name_their_encoding() -> None:
    """Windows takes the code page of the country otherwise."""
    for name, node in nodes(ast.Call):
        assert isinstance(node, ast.Call)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if called in ("read_text", "write_text"):
            at = 0 if called == "read_text" else 1
            assert len(node.args) > at or any(word.arg == "encoding" for word in node.keywords), (name, node.lineno)


def test_proc_is_read_in_two_places() -> None:
    found = {
        name
        for name, node in nodes(ast.Constant)
        if isinstance(node.value, str) and node.value.startswith("/proc")  # type: ignore[attr-defined]
    }
    assert found == PROC


def test_whether_a_process_lives_is_known_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock.os.path, "exists", lambda path: False)
    assert lock._is_there(os.getpid())
    assert not lock._is_there(2**22 + 1)  # above the largest number of a process
    assert not lock._began_after(os.getpid(), lock._moment("2000-01-01T00:00:00+00:00"))


def test_no_process_is_ended_or_called_dead_where_asking_would_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "os", SimpleNamespace(name="nt"))  # which has no `kill` here
    assert files.is_alive(2**22 + 1)
    files.sync_folder(Path())  # does nothing: Windows opens no folder


def test_processor_and_memory_have_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    monkeypatch.setattr(run.platform, "processor", lambda: "arm")
    assert run._processor() == "arm"
    monkeypatch.delattr(os, "sysconf")
    assert memory_of(torch.device("cpu")) is None


def test_a_system_without_sighup_stops_by_the_other_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGHUP")
    with stopping_signals() as arrived, first_ctrl_c() as stopped:
        signal.raise_signal(signal.SIGTERM)
        assert stopped.poll(1)
        assert list(arrived) == [signal.SIGTERM]


def test_the_key_of_the_index_is_written_as_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    opened = os.open

    def recorded(path: Path, flags: int, mode: int) -> int:
        asked.append(flags)
        return opened(path, flags & ~(1 << 30), mode)

    monkeypatch.setattr(os, "O_BINARY", 1 << 30, raising=False)
    monkeypatch.setattr(os, "open", recorded)
    assert index._read_or_make_key(tmp_path / "index.key") is not None
    assert asked[0] & 1 << 30


def test_workers_start_without_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: what a worker is given can be pickled, and it imports what it needs by itself."""
    monkeypatch.setattr(engine, "START_METHOD", "spawn")
    warm_up()  # does nothing
    config = tiny_config()
    (outcome,) = run_locally([config], runs=tmp_path / "runs", jobs=1)
    assert outcome.state == "complete", outcome
    assert load(tmp_path / "runs").runs[0].id == config.id
