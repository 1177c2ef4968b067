"""What all engines share: bundles of runs, the ledger of outcomes and retries, and the worker that trains a bundle."""

import faulthandler
import io
import itertools
import math
import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from sonde import plugins
from sonde.config import RunConfig, parse
from sonde.core.errors import SondeError
from sonde.engine import Event, RunOutcome
from sonde.store.files import Place, place
from sonde.store.folder import append_log, log_file, put_manifest, read_log, read_manifest, run_exists
from sonde.store.listing import clean_up_ended
from sonde.store.load import load_manifests
from sonde.store.lock import Held, hold
from sonde.store.schemas import ENDED, Manifest
from sonde.training.session import EpochProgress, refuse_changed
from sonde.training.train import train_together

Bundle = tuple[RunConfig, ...]
"""The runs that one worker trains together."""

MOST_IN_BUNDLE = 16  # runs: they share the memory of one process, and its death


class RunLog:
    """Appends timed lines to a run's log file; keeps them in memory until the run's folder exists."""

    def __init__(self, run: Place) -> None:
        self.run = run  # its folder
        self.kept = ""
        self.there = False

    def write(self, line: str, body: str = "") -> None:
        """Append a line and, below it, a text.  A log that cannot be written raises nothing."""
        self.kept += f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n"
        if body:
            self.kept += body if body.endswith("\n") else f"{body}\n"
        self.there = self.there or run_exists(self.run)
        if self.there:
            with suppress(SondeError):
                append_log(self.run, self.kept)
            self.kept = ""


class Ledger:
    """Keeps the state of a set of runs: waiting, begun, ended.

    An engine takes bundles from it, starts workers, and reports what became of each bundle.  The ledger decides what
    is tried again, writes logs and failures to the store, and sends the events.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        *,
        runs: Place,
        on_event: Callable[[Event], None],
        on_notice: Callable[[str], None],
        remedy: str = "give fewer --jobs",
        second_chance: bool = True,
    ) -> None:
        """Read nothing yet; see `clean_up_ended`.

        `remedy` is the advice in the message about a run that may have run out of memory.  With `second_chance` a run
        whose process died is resumed once; an engine that retries by itself passes False.
        """
        self.runs, self.on_event, self.on_notice = runs, on_event, on_notice
        self.configs = {config.id: config for config in configs}
        self.outcomes: dict[str, RunOutcome] = {}
        self.waiting: deque[Bundle] = deque()
        self.stopping = False
        self.remedy, self.second_chance = remedy, second_chance
        self._begun: set[str] = set()
        self._revived: set[str] = set()

    def clean_up_ended(self) -> list[RunConfig]:
        """Return the runs that are left to train.  Finish the others, and delete their leftover files in the store.

        Raises where an unfinished run was begun with another version of a plugin's file.
        """
        refuse_changed(list(self.configs.values()), self.runs)
        stored = load_manifests(self.runs, self.configs)
        clean_up_ended(self.runs, {run: known for run, known in stored.items() if known.state in ENDED})
        left = []
        for config in self.configs.values():
            if (manifest := stored.get(config.id)) is None or manifest.state not in ENDED:
                left.append(config)
            else:
                self._finish(config, replace(outcome_of(config.id, manifest), reused=True))
        return left

    def begin(self) -> Bundle:
        """Take the next waiting bundle, and send a start event for each of its runs."""
        bundle = self.waiting.popleft()
        for config in bundle:
            self.send(Event(run=config.id, epoch=0, epochs=config.epochs, starts=True))
        return bundle

    def send(self, event: Event) -> None:
        """Pass on the event of a run that has begun."""
        self._begun.add(event.run)
        self.on_event(event)

    def begun(self, bundle: Bundle) -> bool:
        """Whether any run of the bundle has begun."""
        return any(config.id in self._begun for config in bundle)

    def record_end(self, bundle: Bundle, answers: Mapping[str, RunOutcome], how: str, wrote: str) -> None:
        """Record that the worker of a bundle has ended, with its answers, `how` its process ended and what it `wrote`.

        A run that fails in a bundle may fail because of another run, so each is tried again alone.  A run without an
        answer was lost with the process.
        """
        again = []
        for config in bundle:
            answer = answers.get(config.id)
            if wrote:
                self._log(config).write("its process wrote:", wrote)
            if answer is None:
                self._retry_or_fail(config, how, wrote, alone=len(bundle) == 1)
            elif answer.state == "failed" and len(bundle) > 1:
                again.append(config)
            else:
                self._finish(config, answer)
        if again and not self.stopping:
            self.waiting.extend((config,) for config in again)
            others = f" and {len(again) - 1} trained with it" if len(again) > 1 else ""
            self.on_notice(
                f"run {again[0].id}{others}: {answers[again[0].id].message}; "
                f"training {'each' if others else 'it'} alone"
            )

    def results(self) -> list[RunOutcome]:
        """Return an outcome for every run, in the order of the configurations."""
        return [
            self.outcomes.get(run)
            or RunOutcome(run=run, state="unfinished", message=None if run in self._begun else "not started")
            for run in self.configs
        ]

    def _retry_or_fail(self, config: RunConfig, how: str, wrote: str, *, alone: bool) -> None:
        """Decide on a run whose process died: it may have ended, is resumed once, then fails.  Writes to the store."""
        path = self.runs / config.id
        if run_exists(path) and (manifest := read_manifest(path)).state in ENDED:
            self._finish(config, outcome_of(config.id, manifest))
        elif self.stopping:
            message = f"{how}; the same command resumes it"
            self._log(config).write(message)
            self._finish(config, RunOutcome(run=config.id, state="unfinished", message=message))
        elif config.id in self._revived or (alone and not self.second_chance):
            again = " a second time" if config.id in self._revived else ""
            message = f"{how}{again}: {self.remedy} if memory ran out; the same command tries again"
            self._log(config).write(f"failed: {message}")
            self._mark_failed(config, message)
            self._finish(config, RunOutcome(run=config.id, state="failed", message=message, detail=wrote))
        else:
            message = f"{how}; resuming it from its last epoch"
            self._log(config).write(message)
            self._revived.add(config.id)
            self.waiting.append((config,))
            self.on_notice(f"run {config.id}: {message}")

    def _mark_failed(self, config: RunConfig, message: str) -> None:
        """Store the failure, unless the run has no folder yet or another process holds it."""
        path = self.runs / config.id
        with suppress(SondeError):
            if run_exists(path):
                with hold(self.runs, config.id):
                    manifest = read_manifest(path)
                    if manifest.state not in ENDED:
                        put_manifest(path, replace(manifest, state="failed", message=message))

    def _finish(self, config: RunConfig, outcome: RunOutcome) -> None:
        path = self.runs / config.id
        if outcome.state == "failed" and read_log(path):
            outcome = replace(outcome, log=str(log_file(path)))
        self.outcomes[config.id] = outcome
        self.on_event(Event(run=config.id, epoch=config.epochs, epochs=config.epochs, outcome=outcome))

    def _log(self, config: RunConfig) -> RunLog:
        return RunLog(self.runs / config.id)


def outcome_of(run: str, manifest: Manifest) -> RunOutcome:
    """The outcome that a manifest states."""
    return RunOutcome(run=run, state=manifest.state, message=manifest.message)


def bundle(
    configs: Sequence[RunConfig], *, jobs: int, pays: Callable[[RunConfig], bool], limit: int = MOST_IN_BUNDLE
) -> list[Bundle]:
    """Group runs into bundles: runs that differ only in their seed go together where it `pays`.

    There are enough bundles to keep all `jobs` workers busy to the end.  Groups keep the order of their first runs,
    and runs the order within their group.
    """
    groups: dict[object, list[RunConfig]] = {}
    for number, config in enumerate(configs):
        key = config.recipe if pays(config) else number
        groups.setdefault(key, []).append(config)
    members = list(groups.values())
    parts = [math.ceil(len(group) / limit) for group in members]

    def largest(group: int) -> int:
        return math.ceil(len(members[group]) / parts[group])

    wanted = math.ceil(sum(parts) / jobs) * jobs
    while sum(parts) < wanted:
        widest = max(range(len(members)), key=largest)
        if largest(widest) == 1:
            break
        parts[widest] += 1
    return [part for group, number in zip(members, parts, strict=True) for part in _split(group, number)]


def _split(group: Sequence[RunConfig], parts: int) -> list[Bundle]:
    """Split into consecutive parts whose sizes differ by one at most."""
    cuts = [len(group) * part // parts for part in range(parts + 1)]
    return [tuple(group[start:end]) for start, end in itertools.pairwise(cuts)]


def train_bundle(
    bundle: Bundle,
    *,
    runs: Place,
    data_root: Place | None,
    device: str,
    study: str | None = None,
    send: Callable[[Event | RunOutcome], None],
    should_stop: Callable[[], bool],
    node: str | None = None,
    patience: float = 0.0,
) -> None:
    """Train the runs together; send an event for every epoch and one outcome for every run, each with the `node`.

    Where another process holds a run, wait up to `patience` seconds: the lock may be that of a dead process.  An error
    is the outcome of every run that has not ended, because it may come from any of them.
    """
    logs = {config.id: RunLog(runs / config.id) for config in bundle}
    left = list(logs)

    def end(run: str, outcome: RunOutcome) -> None:
        left.remove(run)
        message = f": {outcome.message}" if outcome.message else ""
        logs[run].write(f"{outcome.state}{message}", outcome.detail or "")
        send(replace(outcome, node=node))

    def report(progress: EpochProgress) -> None:
        loss = "" if progress.loss is None else f", loss {progress.loss:.6g}"
        logs[progress.run].write(f"epoch {progress.epoch}/{progress.epochs}{loss}")
        send(Event(run=progress.run, epoch=progress.epoch, epochs=progress.epochs, loss=progress.loss, node=node))
        if progress.state in ENDED:
            end(progress.run, outcome_of(progress.run, read_manifest(runs / progress.run)))

    def fail(message: str, detail: str | None = None) -> None:
        for run in list(left):
            end(run, RunOutcome(run=run, state="failed", message=message, detail=detail))

    try:
        machine = platform.node() if node is None else f"{platform.node()}, node {node},"
        for log in logs.values():
            log.write(f"process {os.getpid()} on {machine} {_where(log.run)}")
        where: dict[str, Any] = {"runs": runs, "data_root": data_root, "device": device, "node": node, "study": study}
        train = partial(train_together, bundle, on_progress=report, should_stop=should_stop, **where)
        for run, manifest in zip(logs, _retry_while_held(train, patience, should_stop), strict=True):
            if run in left:
                end(run, outcome_of(run, manifest))
    except SondeError as error:
        fail(str(error))
    except Exception as error:
        fail(f"{type(error).__name__}: {error}", traceback.format_exc())


def _retry_while_held(
    train: Callable[[], list[Manifest]], patience: float, should_stop: Callable[[], bool]
) -> list[Manifest]:
    end = time.monotonic() + patience
    while True:
        try:
            return train()
        except Held:
            if time.monotonic() >= end or should_stop():
                raise
            time.sleep(1)


def _where(run: Place) -> str:
    epoch = read_manifest(run).epoch if run_exists(run) else None
    return "starts from the beginning" if epoch is None else f"resumes from epoch {epoch}"


def receive(
    trees: Sequence[dict[str, Any]], carried: dict[str, plugins.Carried], where: Mapping[str, str | None]
) -> tuple[Bundle, dict[str, Any]]:
    """The runs that another process sent with the code of their plugins, and where `train_bundle` trains them."""
    plugins.receive(carried)
    places = {name: place(str(where[name])) for name in ("runs", "data_root") if where[name] is not None}
    return tuple(parse(tree) for tree in trees), {**where, **places}


def run_worker(
    pipe: Connection,
    output: str,
    trees: list[dict[str, Any]],
    carried: dict[str, plugins.Carried],
    where: dict[str, str | None],
) -> None:
    """Run a worker process of the local engine, which receives the request to stop and sends answers through `pipe`.

    SIGINT is ignored: the command forwards a Ctrl-C.  SIGTERM and SIGHUP may reach every process of a job or terminal:
    the worker finishes and saves the current epoch.
    """
    told_to_end = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: told_to_end.set())
    _redirect(output)
    faulthandler.enable(2)
    threading.Thread(target=_die_with_parent, daemon=True).start()

    def send(message: Event | RunOutcome) -> None:
        try:
            pipe.send(message)
        except OSError:  # the command is gone
            os._exit(1)

    bundle, there = receive(trees, carried, where)
    train_bundle(bundle, **there, send=send, should_stop=lambda: told_to_end.is_set() or pipe.poll())
    pipe.close()


def _redirect(path: str) -> None:
    """Send stdout and stderr of this process, C code included, to the file, and unlink the file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    with suppress(PermissionError):  # Windows keeps the name of an open file
        os.unlink(path)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a killed process flushes nothing


def _die_with_parent() -> None:
    """Exit when the parent process ends, so that the next command finds the runs unlocked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
