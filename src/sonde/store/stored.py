"""A store read into memory: tidy rows, and what each run was."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import polars as pl

from sonde.core.formatting import network
from sonde.store.journal import read_facts
from sonde.store.place import Place
from sonde.store.run import Manifest, RunFolder
from sonde.store.status import Standing, standing

WATCHED = "it was watched: it has no configuration"  # why a run is in no comparison, audit or study


@dataclass(frozen=True)
class Run:
    """What is known of a stored run."""

    id: str
    config: dict[str, Any] = field(repr=False)
    about: dict[str, Any] = field(repr=False)
    manifest: Manifest = field(repr=False)
    path: Place
    defaults: dict[str, Any] = field(default_factory=dict, repr=False)
    """Dotted keys that `config` may leave out."""

    @property
    def complete_config(self) -> dict[str, Any]:
        """With the options that the stored configuration leaves out, because its id does."""
        whole = {key: dict(v) if isinstance(v, dict) else v for key, v in self.config.items()}
        for key, default in self.defaults.items():
            part, _, option = key.partition(".")
            section, name = (whole.get(part), option) if option else (whole, key)
            if isinstance(section, dict):
                section.setdefault(name, default)
        return whole

    @property
    def label(self) -> str:
        """Network, variant and rule, as its configuration says."""
        return ", ".join(part for part in (network(self.about), self.about["rule_label"]) if part)

    @cached_property
    def standing(self) -> Standing:
        """Whether it runs, stalls, was interrupted or has ended; as it was when first asked."""
        return standing(self.path, self.manifest)


@dataclass(frozen=True)
class WatchedRun:
    """A model that was watched in somebody's own loop: it has no configuration, and is not to be trained from."""

    id: str
    about: dict[str, Any] = field(repr=False)
    manifest: Manifest = field(repr=False)
    path: Place

    @property
    def label(self) -> str:
        """What `sonde.watch(name=…)` called it, else the model's class."""
        return str(self.about["label"])

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What was seen in the first step: modules in order of execution, parameters, inputs, mode."""
        return read_facts(RunFolder(self.path))

    @cached_property
    def standing(self) -> Standing:
        """Whether it runs, stalls, was interrupted or has ended; as it was when first asked."""
        return standing(self.path, self.manifest)


@dataclass(frozen=True)
class Runs:
    """A store read into memory.  `rows` has a column `module` where runs were watched."""

    rows: pl.DataFrame
    runs: list[Run]
    watched: list[WatchedRun] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # runs that cannot be read: id → why

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, id: str) -> Run:
        return self._by_id[id]

    @cached_property
    def _by_id(self) -> dict[str, Run]:
        return {run.id: run for run in self.runs}

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """Each run's complete configuration."""
        return {run.id: run.complete_config for run in self.runs}


def without_machines(stored: Runs) -> Runs:
    """The runs without the names of machines and nodes, and without the command lines that began them."""
    return Runs(
        stored.rows,
        [replace(run, manifest=without_machine(run.manifest)) for run in stored.runs],
        [replace(run, manifest=without_machine(run.manifest)) for run in stored.watched],
        stored.broken,
    )


def without_machine(manifest: Manifest) -> Manifest:
    """The same of one run."""

    def clean(session: dict[str, Any]) -> dict[str, Any]:
        known = {key: value for key, value in session.items() if key != "node"}
        if isinstance(environment := known.get("environment"), dict):
            known["environment"] = {key: value for key, value in environment.items() if key != "command"}
            if isinstance(machine := environment.get("machine"), dict):
                known["environment"]["machine"] = {key: v for key, v in machine.items() if key != "host"}
        return known

    return replace(manifest, sessions=[clean(session) for session in manifest.sessions])
