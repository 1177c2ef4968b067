"""Read a store: tidy rows as one DataFrame, and what each run was."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from sonde.errors import SondeError
from sonde.rows import empty
from sonde.store.run import Manifest, RunFolder

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
    path: Path

    @property
    def label(self) -> str:
        """Network, variant and rule, as its configuration says."""
        parts = (self.about["label"], self.about["variant"], self.about["rule_label"])
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Runs:
    """A store read into memory."""

    rows: pl.DataFrame
    runs: list[Run]

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, id: str) -> Run:
        for run in self.runs:
            if run.id == id:
                return run
        raise KeyError(id)

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """Each run's complete configuration."""
        return {run.id: run.config for run in self.runs}


def load(root: str | Path = "runs") -> Runs:
    """Every run of a store.  `load("runs").rows` has one measurement a row; `.configs` says what was run."""
    root = Path(root)
    if not root.exists():
        raise SondeError(f"{root} does not exist: `sonde run STUDY --runs {root}` makes it")
    if not root.is_dir():
        raise SondeError(f"{root} is a file: --runs names a folder of runs")
    paths = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    return _read(paths)


def load_one(root: str | Path, id: str) -> Runs:
    """A single run of a store."""
    return _read([Path(root) / id])


def _read(paths: list[Path]) -> Runs:
    found, frames = [], [empty()]
    for path in paths:
        folder = RunFolder(path)
        known = folder.description()
        if known["id"] != path.name:
            raise SondeError(f"{path / 'run.json'}: id is {known['id']!r}, but the folder is {path.name!r}")
        for key in ABOUT:
            if key not in known["about"]:
                raise SondeError(
                    f"{path / 'run.json'} has no key 'about.{key}': it was written by another version; "
                    f"remove {path} to train it anew"
                )
        manifest, rows = folder.read()
        found.append(Run(path.name, known["config"], known["about"], manifest, path))
        frames.append(rows)
    return Runs(pl.concat(frames), found)
