"""The bookkeeping of an engine: who is trained with whom, who waits, how each run ended, who gets a second chance."""

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from sonde.config import RunConfig
from sonde.core.errors import SondeError
from sonde.engine.log import RunLog
from sonde.engine.messages import Event, Outcome
from sonde.store.files import Place
from sonde.store.folder import RunFolder
from sonde.store.listing import clean_up_ended
from sonde.store.load import load_manifests
from sonde.store.lock import hold
from sonde.store.schemas import ENDED, Manifest
from sonde.training.changed_plugins import refuse_changed

Bundle = tuple[RunConfig, ...]  # what a worker is given: runs that are trained together
MOST_IN_BUNDLE = 16  # runs in a bundle: what is lost together, and in memory together


class Ledger:
    """Knows nothing of how workers are started: bundles are taken from it, and it is told what became of them."""

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
        """`remedy`: what helps where runs are lost because memory ran out.

        `second_chance`: a run that was lost alone is resumed once; an engine that does so itself says False.
        """
        self.runs, self.on_event, self.on_notice = runs, on_event, on_notice
        self.configs = {config.id: config for config in configs}
        self.outcomes: dict[str, Outcome] = {}
        self.waiting: deque[Bundle] = deque()
        self.stopping = False
        self.remedy, self.second_chance = remedy, second_chance
        self._begun: set[str] = set()
        self._revived: set[str] = set()

    def unended(self) -> list[RunConfig]:
        """The runs that are still to be trained; the others are reported as they are in the store."""
        refuse_changed(list(self.configs.values()), self.runs)
        stored = load_manifests(self.runs, self.configs)
        clean_up_ended(self.runs, {run: known for run, known in stored.items() if known.state in ENDED})
        left = []
        for config in self.configs.values():
            outcome = _ended(config, stored.get(config.id))
            if outcome is None:
                left.append(config)
            else:
                self._finish(config, replace(outcome, reused=True))
        return left

    def begin(self) -> Bundle:
        """Take the next bundle, for a worker that is free."""
        bundle = self.waiting.popleft()
        for config in bundle:
            self.hear(Event(run=config.id, epoch=0, epochs=config.epochs, starts=True))
        return bundle

    def hear(self, event: Event) -> None:
        """A run is under way."""
        self._begun.add(event.run)
        self.on_event(event)

    def begun(self, bundle: Bundle) -> bool:
        return any(config.id in self._begun for config in bundle)

    def ended(self, bundle: Bundle, answers: Mapping[str, Outcome], how: str, wrote: str) -> None:
        """The worker of a bundle is gone: its answers, `how` its process ended, and what that wrote.

        A failure in company may be a neighbour's fault, so each run is tried again alone.  A run without an answer
        was lost with the process.
        """
        again = []
        for config in bundle:
            answer = answers.get(config.id)
            if wrote:
                self._log(config).tell("its process wrote:", wrote)
            if answer is None:
                self._lost(config, how, wrote, alone=len(bundle) == 1)
            elif answer.state == "failed" and len(bundle) > 1:
                again.append(config)
            else:
                self._finish(config, answer)
        if again and not self.stopping:
            self.waiting.extend((config,) for config in again)
            self.on_notice(_alone([config.id for config in again], answers[again[0].id].message))

    def results(self) -> list[Outcome]:
        """An outcome for every run, in the order of the configurations."""
        return [self.outcomes.get(run) or self._unfinished(run) for run in self.configs]

    def _lost(self, config: RunConfig, how: str, wrote: str, *, alone: bool) -> None:
        stored = self._in_store(config)
        if stored is not None:
            self._finish(config, stored)
        elif self.stopping:
            message = f"{how}; the same command resumes it"
            self._log(config).tell(message)
            self._finish(config, Outcome(run=config.id, state="unfinished", message=message))
        elif config.id in self._revived or (alone and not self.second_chance):
            again = " a second time" if config.id in self._revived else ""
            message = f"{how}{again}: {self.remedy} if memory ran out; the same command tries again"
            self._log(config).tell(f"failed: {message}")
            self._mark_failed(config, message)
            self._finish(config, Outcome(run=config.id, state="failed", message=message, detail=wrote))
        else:
            message = f"{how}; resuming it from its last epoch"
            self._log(config).tell(message)
            self._revived.add(config.id)
            self.waiting.append((config,))
            self.on_notice(f"run {config.id}: {message}")

    def _mark_failed(self, config: RunConfig, message: str) -> None:
        """In the store, unless the run was never created or somebody else has taken it."""
        folder = self._folder(config)
        with suppress(SondeError):
            if folder.exists():
                with hold(self.runs, folder.id):
                    manifest = folder.manifest()
                    if manifest.state not in ENDED:
                        folder.put(replace(manifest, state="failed", message=message))

    def _finish(self, config: RunConfig, outcome: Outcome) -> None:
        folder = self._folder(config)
        if outcome.state == "failed" and folder.read_log():
            outcome = replace(outcome, log=str(folder.log_path))
        self.outcomes[config.id] = outcome
        self.on_event(Event(run=config.id, epoch=config.epochs, epochs=config.epochs, outcome=outcome))

    def _unfinished(self, run: str) -> Outcome:
        message = None if run in self._begun else "not started"
        return Outcome(run=run, state="unfinished", message=message)

    def _in_store(self, config: RunConfig) -> Outcome | None:
        folder = self._folder(config)
        return _ended(config, folder.manifest() if folder.exists() else None)

    def _folder(self, config: RunConfig) -> RunFolder:
        return RunFolder(self.runs / config.id)

    def _log(self, config: RunConfig) -> RunLog:
        return RunLog(self._folder(config))


def _ended(config: RunConfig, manifest: Manifest | None) -> Outcome | None:
    if manifest is None or manifest.state not in ENDED:
        return None
    return Outcome(run=config.id, state=manifest.state, message=manifest.message)


def _alone(runs: Sequence[str], message: str | None) -> str:
    others = f" and {len(runs) - 1} trained with it" if len(runs) > 1 else ""
    return f"run {runs[0]}{others}: {message}; training {'each' if others else 'it'} alone"


def bundle(
    configs: Sequence[RunConfig], *, jobs: int, pays: Callable[[RunConfig], bool], limit: int = MOST_IN_BUNDLE
) -> list[Bundle]:
    """Runs that differ only in their seed, together where it `pays`.

    There are as many bundles as keep all `jobs` workers busy to the end.
    Groups stand in the order in which their first runs appear, and so do the runs of a group.
    """
    groups: dict[object, list[RunConfig]] = {}
    for place, config in enumerate(configs):
        key = config.recipe if pays(config) else place
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
    """Neighbours together; sizes differ by one at most."""
    cuts = [len(group) * part // parts for part in range(parts + 1)]
    return [tuple(group[start:end]) for start, end in itertools.pairwise(cuts)]
