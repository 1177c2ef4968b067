"""A stored run, trained or watched; a store read into memory; and what a run was made with."""

import importlib.metadata
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import polars as pl

from sonde.core.errors import one_line, unicode
from sonde.core.formatting import network
from sonde.core.run_ids import Flat, flatten, network_label, rule_label
from sonde.metrics.rows import Reading
from sonde.store import schemas
from sonde.store.files import Place
from sonde.store.folder import read_description, read_manifest, read_trained, recipe_key
from sonde.store.journal import read_facts, read_watched
from sonde.store.lock import RunStatus, run_status
from sonde.store.readings import ReadingArray, readings_of

NO_CONFIGURATION = "it was watched: it has no configuration"  # why a run is in no comparison, audit or study


@dataclass(frozen=True)
class Run:
    """A stored run: one that Sonde trained, or a model that was watched in a loop of the user's.

    A watched run has `config` None.  `seed`, `rule`, `epochs`, `depth` and `recipe` are those of trained runs.
    """

    path: Place
    description: dict[str, Any] = field(repr=False)
    """What its run.json says."""
    manifest: schemas.Manifest = field(repr=False)
    """The state that was visible when it was read."""

    @property
    def id(self) -> str:
        """The name of its folder."""
        return self.path.name

    @property
    def config(self) -> Any:
        """Its configuration as plain data; None for a watched run."""
        return self.description["config"]

    @cached_property
    def about(self) -> dict[str, Any]:
        """Facts derived from the configuration or the watched model, with labels of one line each."""
        about = {key: one_line(v) if isinstance(v, str) else v for key, v in self.description["about"].items()}
        if not self.is_watched:
            about["label"] = network_label(about["label"])
            about["rule_label"] = one_line(rule_label(about["rule_label"], self.config["rule"]))
        return about

    @property
    def defaults(self) -> dict[str, Any]:
        """Dotted keys that `config` may leave out, with their values."""
        defaults: dict[str, Any] = self.description.get("defaults", {})
        return defaults

    @property
    def study(self) -> dict[str, str] | None:
        """Name and scale of the study that trained it, where it is recorded."""
        return self.description.get("study")

    @property
    def is_watched(self) -> bool:
        """Whether it was watched: it has no configuration then."""
        return self.config is None

    @property
    def label(self) -> str:
        """Network, variant and rule; of a watched run its name, by default the model's class."""
        if self.is_watched:
            return str(self.about["label"])
        return ", ".join(part for part in (network(self.about), self.about["rule_label"]) if part)

    @cached_property
    def status(self) -> RunStatus:
        """Whether it runs, stalls, was interrupted or has ended; as it was when first asked."""
        return run_status(self.path, self.manifest)

    @property
    def standing(self) -> RunStatus:
        """Deprecated: `status`."""
        warnings.warn("Run.standing is deprecated: use Run.status", DeprecationWarning, stacklevel=2)
        return self.status

    @cached_property
    def recipe(self) -> str:
        """The digest of its configuration without the seed."""
        return str(self.description.get("recipe") or recipe_key(self.config))

    @property
    def seed(self) -> int:
        """The seed of its configuration."""
        return int(self.config["seed"])

    @property
    def rule(self) -> str:
        """The name of its rule."""
        return str(self.config["rule"]["name"])

    @property
    def epochs(self) -> int:
        """The epochs it is to be trained for; `manifest.epoch` is how far it came."""
        return int(self.config["epochs"])

    @property
    def depth(self) -> int:
        """L, the number of its blocks."""
        return int(self.about["depth"])

    @property
    def layers(self) -> range:
        """1 … L, the states that leave a block."""
        return range(1, self.depth + 1)

    @property
    def deep(self) -> range:
        """1 … L−1: neither the embedding's state nor the one that some rules give the exact gradient."""
        return range(1, self.depth)

    @cached_property
    def flat(self) -> Flat:
        """Its configuration by dotted keys, without the seed; with `data.…` where it is recorded which data it read."""
        data = self.about.get("data")
        return flat_recipe(self.recipe, self.config) | (flatten({"data": data}) if data else {})

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

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What a watch saw in the first step: modules in order of execution, parameters, inputs, mode.

        Empty for a trained run.  Read from the folder when first asked.
        """
        return read_facts(self.path) if self.is_watched else {}

    @property
    def rows(self) -> pl.DataFrame:
        """All its rows, read from its folder at every call; `Runs.rows` has those that were loaded."""
        return read_rows(self)[1]

    @cached_property
    def readings(self) -> ReadingArray:
        """Its values by metric, epoch and layer: of all its rows, or those that `with_readings` looked up."""
        rows = self.rows
        return next(readings_of(rows, [self.id], rows["metric"].unique().to_list()))

    def at(self, metric: str, epoch: int, layer: int | None = None) -> Reading:
        """The reading at an epoch and layer; undefined, with the reason, where none was taken."""
        return self.readings.at(metric, epoch, layer)

    def across(self, metric: str, epoch: int, layers: Sequence[int]) -> list[float]:
        """The values of one epoch, layer by layer; NaN where undefined, and `at` tells why."""
        return self.readings.across(metric, epoch, layers)

    def epochs_of(self, metric: str, layers: Sequence[int | None] = (None,)) -> list[int]:
        """The epochs at which a metric was measured at any of the layers."""
        return self.readings.layout.epochs(metric, layers)

    def mean(self, metric: str, epoch: int, layers: Sequence[int]) -> Reading:
        """The mean over layers; undefined where one of them is."""
        return self.readings.mean(metric, epoch, layers)


_flat_recipes: dict[str, Flat] = {}
_MOST_RECIPES = 20_000  # that are kept


def flat_recipe(recipe: str, config: Mapping[str, Any]) -> Flat:
    """A configuration by dotted keys, without the seed.  `recipe` is its key: each recipe is flattened once."""
    if recipe not in _flat_recipes:
        if len(_flat_recipes) >= _MOST_RECIPES:
            _flat_recipes.clear()
        _flat_recipes[recipe] = flatten({key: value for key, value in config.items() if key != "seed"})
    return _flat_recipes[recipe]


def open_run(path: Place) -> Run:
    """The run of a folder; an error where its description or its manifest is not what was stored."""
    manifest = read_manifest(path)
    description = read_description(path, manifest)
    if description["config"] is not None and "recipe" not in description:  # stored by 0.1.0
        description["recipe"] = recipe_key(description["config"])
    return Run(path, description, manifest)


def read_rows(run: Run, manifest: schemas.Manifest | None = None) -> tuple[schemas.Manifest, pl.DataFrame]:
    """The visible state of a run and all its rows, from its folder."""
    return (read_watched if run.is_watched else read_trained)(run.path, manifest)


def with_readings(rows: pl.DataFrame, runs: Sequence[Run], metrics: Sequence[str]) -> dict[str, Run]:
    """Run id → a copy of the run whose `readings` are those of these metrics, looked up in rows of many runs."""
    found = {}
    for run, readings in zip(runs, readings_of(rows, [run.id for run in runs], metrics), strict=True):
        found[run.id] = copied = copy(run)
        vars(copied)["readings"] = readings
    return found


@dataclass(frozen=True)
class Runs:
    """A store read into memory.  `rows` has a column `module` where runs were watched."""

    rows: pl.DataFrame
    runs: list[Run]  # those that Sonde trained
    watched: list[Run] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # runs that cannot be read: id → why

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, id: str) -> Run:
        return self._by_id[id]

    @cached_property
    def _by_id(self) -> dict[str, Run]:
        return {run.id: run for run in self.runs}

    @property
    def every(self) -> list[Run]:
        """Trained runs, then watched ones."""
        return [*self.runs, *self.watched]

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """Each trained run's complete configuration."""
        return {run.id: run.complete_config for run in self.runs}


def without_machines(stored: Runs) -> Runs:
    """The runs without the names of machines and nodes, and without the command lines that began them."""

    def clean(runs: list[Run]) -> list[Run]:
        return [replace(run, manifest=without_machine(run.manifest)) for run in runs]

    return Runs(stored.rows, clean(stored.runs), clean(stored.watched), stored.broken)


def without_machine(manifest: schemas.Manifest) -> schemas.Manifest:
    """The manifest without the names of machine and node, and without command lines."""

    def clean(session: dict[str, Any]) -> dict[str, Any]:
        known = {key: value for key, value in session.items() if key != "node"}
        if isinstance(environment := known.get("environment"), dict):
            known["environment"] = {key: value for key, value in environment.items() if key != "command"}
            if isinstance(machine := environment.get("machine"), dict):
                known["environment"]["machine"] = {key: v for key, v in machine.items() if key != "host"}
        return known

    return replace(manifest, sessions=[clean(session) for session in manifest.sessions])


_PACKAGES = ("sonde", "torch", "numpy", "polars", "safetensors")


def describe_environment(threads: int, device: str, *, provenance: bool = True) -> dict[str, Any]:
    """Versions, machine, thread count, device and git state, as plain values.

    `provenance`: with the name of the machine and the arguments of the command line, which may hold secrets.
    """
    command = [unicode(word) for word in (Path(sys.argv[0]).name, *sys.argv[1:])]
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "machine": {
            **({"host": platform.node()} if provenance else {}),
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
        },
        "threads": threads,
        "device": device,
        "git": _git(),
        "command": command if provenance else command[:1],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


@cache
def _git() -> dict[str, Any] | None:
    """Commit and cleanliness of the tree Sonde runs from; None when it is installed without one."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", __file__) is None:
        return None
    return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
