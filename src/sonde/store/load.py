"""Read a store: tidy rows as one DataFrame, and what each run was."""

import difflib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from sonde.errors import SondeError, nearest
from sonde.store import index
from sonde.store.index import Entry
from sonde.store.journal import KIND, read_facts, read_watched
from sonde.store.place import Place, place
from sonde.store.remote import Remote
from sonde.store.run import Manifest, RunFolder

T = TypeVar("T")
R = TypeVar("R")

WATCHED = "it was watched: it has no configuration"  # why a run is in no comparison, audit or study
AT_A_TIME = 32  # requests to an object store

# What readers rely on in a run's derived facts.
ABOUT = (
    "label",
    "variant",
    "rule_label",
    "task_label",
    "depth",
    "width",
    "alpha",
    "steps",
    "samples",
    "probe_size",
)


@dataclass(frozen=True)
class Run:
    """What is known of a stored run."""

    id: str
    config: dict[str, Any]
    about: dict[str, Any]
    manifest: Manifest
    path: Place
    defaults: dict[str, Any] = field(default_factory=dict)  # dotted keys that its configuration may leave out

    @property
    def complete_config(self) -> dict[str, Any]:
        """With the options that the stored configuration leaves out, because its id does."""
        whole = {key: dict(v) if isinstance(v, dict) else v for key, v in self.config.items()}
        for key, default in self.defaults.items():
            part, _, option = key.partition(".")
            section, name = (whole[part], option) if option else (whole, key)
            section.setdefault(name, default)
        return whole

    @property
    def label(self) -> str:
        """Network, variant and rule, as its configuration says."""
        parts = (self.about["label"], self.about["variant"], self.about["rule_label"])
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class WatchedRun:
    """A model that was watched in somebody's own loop: it has no configuration, and is not to be trained from."""

    id: str
    about: dict[str, Any]
    manifest: Manifest
    path: Place

    @property
    def label(self) -> str:
        return str(self.about["label"])

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What was seen in the first step: modules in order of execution, parameters, inputs, mode."""
        return read_facts(RunFolder(self.path))


@dataclass(frozen=True)
class Runs:
    """A store read into memory.  `rows` has a column `module` where runs were watched."""

    rows: pl.DataFrame
    runs: list[Run]
    watched: list[WatchedRun] = field(default_factory=list)

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


def load(root: str | Place = "runs", where: pl.Expr | None = None) -> Runs:
    """Every run of a store.  `load("runs").rows` has one measurement a row; `.configs` says what was run.

    With `where`, only the rows of which it is true; a store of many runs is read the faster for it.
    """
    root = place(root)
    present = _stamps(root)
    known = index.read(root, present, where)
    entries = known | {entry.id: entry for entry in _entries(root, present, known)}
    ordered = [entries[id] for id in present]
    index.renew(root, ordered, len(known))
    return _runs(root, ordered, where)


def load_some(root: str | Place, ids: Iterable[str]) -> Runs:
    """Those of these runs that are in the store."""
    root = place(root)
    there = [id for id in ids if RunFolder(root / id).exists()]
    return _runs(root, [_entry(root / id, "") for id in there])


def present_runs(root: Place) -> list[str]:
    """The ids of the runs that are in the store."""
    return list(_present(root) or {})


def find(root: str | Place, name: str) -> str:
    """The id of the one run of a store that has this name, or whose id begins so."""
    root = place(root)
    ids = list(_stamps(root))
    chosen = [id for id in ids if id == name] or [id for id in ids if id.startswith(name)]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        some = ", ".join(chosen[:3]) + (", …" if len(chosen) > 3 else "")
        raise SondeError(f"{len(chosen)} runs in {root} begin with {name!r}: {some}; give more of the id")
    if not ids:
        raise SondeError(f"{root} holds no runs: `sonde run STUDY --runs {root}` makes them")
    close = nearest(name, ids) if len(ids) <= 8 or difflib.get_close_matches(name, ids, 1, 0.5) else None
    raise SondeError(
        f"no run in {root} begins with {name!r}: {close or f'`sonde show` lists the {len(ids)}'}"
    )


def manifests(root: Place, ids: Iterable[str]) -> dict[str, Manifest]:
    """How far those of these runs came that are in the store."""
    present = _present(root) or {}
    wanted = {id: present[id] for id in ids if id in present}
    known = index.manifests(root, wanted)
    fresh = [id for id in wanted if id not in known]
    return known | dict(
        zip(fresh, _each(root, lambda id: RunFolder(root / id).manifest(), fresh), strict=True)
    )


def _stamps(root: Place) -> dict[str, str]:
    """What lies in a store, which has to be there."""
    if isinstance(root, Path) and root.exists() and not root.is_dir():
        raise SondeError(f"{root} is a file: --runs names a folder of runs")
    present = _present(root)
    if present is None:
        raise SondeError(f"{root} does not exist: `sonde run STUDY --runs {root}` makes it")
    return present


def _present(root: Place) -> dict[str, str] | None:
    return index.stamps(root) if isinstance(root, Remote) or root.exists() else None


def _entries(root: Place, present: Mapping[str, str], known: Container[str]) -> list[Entry]:
    """The runs that are not known, each from its folder."""
    wanted = [(root / id, stamp) for id, stamp in present.items() if id not in known]
    return _each(root, lambda run: _entry(*run), wanted)


def _each(root: Place, read: Callable[[T], R], wanted: Sequence[T]) -> list[R]:
    """Read one after the other; from an object store, several at a time."""
    if not isinstance(root, Remote):
        return [read(one) for one in wanted]
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        return list(threads.map(read, wanted))


def _entry(path: Place, stamp: str) -> Entry:
    folder = RunFolder(path)
    known = folder.description()
    if known["id"] != path.name:
        raise SondeError(f"{path / 'run.json'}: id is {known['id']!r}, but the folder is {path.name!r}")
    if known.get("kind") == KIND:
        manifest, rows = read_watched(folder)
        return Entry(
            path.name, "", known, manifest, rows, 0, rows.height
        )  # no stamp: it stays out of the index
    manifest, rows = folder.read()
    return Entry(path.name, stamp, known, manifest, rows, 0, rows.height)


def _runs(root: Place, entries: Sequence[Entry], where: pl.Expr | None = None) -> Runs:
    trained = [entry for entry in entries if not _is_watched(entry)]
    runs = [_run(root / entry.id, entry) for entry in trained]
    rows = index.joined(trained)
    watched = [entry for entry in entries if _is_watched(entry)]
    if watched:
        rows = pl.concat([rows, *(entry.frame for entry in watched)], how="diagonal")
    return Runs(
        rows if where is None else rows.filter(where),
        runs,
        [
            WatchedRun(entry.id, entry.description["about"], entry.manifest, root / entry.id)
            for entry in watched
        ],
    )


def _is_watched(entry: Entry) -> bool:
    return entry.description.get("kind") == KIND


def _run(path: Place, entry: Entry) -> Run:
    about = entry.description["about"]
    for key in ABOUT:
        if key not in about:
            raise SondeError(
                f"{path / 'run.json'} has no key 'about.{key}': it was written by another version; "
                f"remove {path} to train it anew"
            )
    defaults = entry.description.get("defaults", {})
    return Run(entry.id, entry.description["config"], about, entry.manifest, path, defaults)
