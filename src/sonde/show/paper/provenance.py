"""`sonde.json`: what was trained, which the paper layout has no place for, so that figures are labelled by it.

It stands beside the layout's files, whose keys stay exact:

    files   path → {sonde: version that wrote it, sha256: of its content, runs: entry → run id}
    runs    run id → task, scale and recipe: the columns of `RUNS_SCHEMA`

An entry is a key of the file: `plain_mlp`, `bp_log`, `42.dfa`.  Files of which it says nothing have no data set.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sonde import __version__
from sonde.analysis.evidence import RUNS_SCHEMA, Evidence
from sonde.core.errors import SondeError
from sonde.show.paper.json_file import Document, Sheet

NAME = "sonde.json"
FIELDS = {name: kind for name, kind in RUNS_SCHEMA.items() if name != "run"}
NEEDED = ("label", "model", "rule", "rule_label", "task", "task_label", "scale", "epochs")
KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    pl.String: ((str,), "a text"),
    pl.Int64: ((int,), "a whole number"),
    pl.Float64: ((int, float), "a number"),
    pl.Boolean: ((bool,), "true or false"),
}
REMEDY = f"export again, or delete {NAME} to draw the files with no data set recorded"


def record(folder: Path, sheets: Mapping[str, Sheet], digests: Mapping[str, str], runs: pl.DataFrame) -> dict[str, Any]:
    """The new `sonde.json` of a folder; what the old one says of files that stay is kept."""
    old_files, old_runs = _old(folder)
    staying = [path for path in old_files if path not in sheets and (folder / path).is_file()]
    files = {path: old_files[path] for path in staying} | {
        path: {"sonde": __version__, "sha256": digests[path], "runs": sheet.runs} for path, sheet in sheets.items()
    }
    every_run = old_runs | {row["run"]: {name: row[name] for name in FIELDS} for row in runs.iter_rows(named=True)}
    named = {run for file in files.values() for run in file["runs"].values()}
    return {"files": files, "runs": {run: every_run[run] for run in every_run if run in named}}


def _old(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is recorded already; a record that cannot be read is replaced."""
    try:
        old = Provenance(folder, all_there=False)
    except SondeError:
        return {}, {}
    return old.files, old.runs


class Provenance:
    """What a folder's `sonde.json` says; nothing where there is none."""

    def __init__(self, folder: Path, *, all_there: bool = True) -> None:
        self.folder, self.path = folder, folder / NAME
        self.files: dict[str, Any] = {}
        self.runs: dict[str, Any] = {}
        if not self.path.exists():
            return
        document = Document.read(self.path, REMEDY)
        runs, files = document.section("runs"), document.section("files")
        for run in runs.value:
            _check_run(runs.section(run))
        for path in files.value:
            file = files.section(path)
            for key in ("sonde", "sha256"):
                file.text(key)
            entries = file.section("runs")
            for entry in entries.value:
                if entries.text(entry) not in runs.value:
                    raise entries.error(f"{entries.key}.{entry}", f"{entries.text(entry)} is not under `runs`")
            if all_there and not (folder / path).is_file():
                raise files.error(f"files.{path}", "there is no such file")
        self.files, self.runs = files.value, runs.value

    def of(self, paths: Sequence[Path]) -> "Records":
        """What is said of a study's files: of all of them, or of none."""
        names = [path.relative_to(self.folder).as_posix() for path in paths]
        listed = [name for name in names if name in self.files]
        unlisted = [name for name in names if name not in self.files]
        if listed and unlisted:
            raise SondeError(f"{self.path} says nothing of {', '.join(unlisted)}: move it elsewhere, {REMEDY}")
        for name in listed:
            if digest((self.folder / name).read_bytes()) != self.files[name]["sha256"]:
                raise SondeError(f"{self.path}: {name} is not the file that was exported: {REMEDY}")
        return Records(self, listed)


class Records:
    """The runs of a study's files as `sonde.json` describes them, each to be found in its file."""

    def __init__(self, provenance: Provenance, listed: Sequence[str]) -> None:
        self.provenance, self.listed = provenance, listed
        self.left = {(name, entry) for name in listed for entry in provenance.files[name]["runs"]}
        self.runs: list[Described] = []

    def run(self, path: Path, entry: str, stand_in: Mapping[str, Any], **facts: Any) -> "Described":
        """The run of an entry, with what its file says of it; `stand_in` is for a file that is not recorded."""
        name = path.relative_to(self.provenance.folder).as_posix()
        if not self.listed:
            described = Described(dict.fromkeys(RUNS_SCHEMA) | {"run": f"{name}:{entry}"} | dict(stand_in), None)
        else:
            where = f"{self.provenance.path}: files.{name}.runs.{entry}"
            if (name, entry) not in self.left:
                raise SondeError(f"{where}: missing, though the file has it: {REMEDY}")
            self.left.remove((name, entry))
            id = self.provenance.files[name]["runs"][entry]
            described = Described({"run": id} | self.provenance.runs[id], where)
        self.runs.append(described.learn(**facts))
        return described

    def evidence(self, rows: Sequence[pl.DataFrame]) -> Evidence | None:
        """The runs with their rows, once it is certain that every recorded entry was there, and every run once."""
        if not self.runs:
            return None
        for name, entry in sorted(self.left):
            where = f"{self.provenance.path}: files.{name}.runs.{entry}"
            raise SondeError(f"{where}: the file has no such entry: {REMEDY}")
        described: dict[str, Described] = {}
        for run in self.runs:
            other = described.setdefault(run.fields["run"], run)
            if other is not run:
                raise SondeError(f"{run.where}: the same run as {other.where}: {REMEDY}")
        self._share_epochs()
        fields = [run.fields for run in self.runs]
        return Evidence(pl.concat(rows), pl.DataFrame(fields, schema=RUNS_SCHEMA), str(self.provenance.folder))

    def _share_epochs(self) -> None:
        """A seed that is not as far yet belongs to the same series; student networks are a series of their own."""
        longest: dict[bool, int] = {}
        unrecorded = [run.fields for run in self.runs if run.where is None]
        for run in unrecorded:
            student = run["model"] == "student_net"
            longest[student] = max(run["epochs"], longest.get(student, 0))
        for run in unrecorded:
            run["epochs"] = longest[run["model"] == "student_net"]


class Described:
    """A run's columns; `where` is its place in `sonde.json`, None where it is not recorded."""

    def __init__(self, fields: dict[str, Any], where: str | None) -> None:
        self.fields, self.where = fields, where

    def learn(self, **facts: Any) -> "Described":
        """Add what the file says; against the record it is an error."""
        for name, value in facts.items():
            if self.where is None:
                self.fields[name] = value
            elif value is not None and not _same(self.fields[name], value):
                raise SondeError(
                    f"{self.where}: {self.fields['run']} has {name} {self.fields[name]}, the file {value}: {REMEDY}"
                )
        return self


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12)
    return bool(one == other)


def _check_run(run: Document) -> None:
    for name in run.value:
        if name not in FIELDS:
            raise run.error(f"{run.key}.{name}", f"expected one of {', '.join(FIELDS)}")
    for name, kind in FIELDS.items():
        value = run.get(name)
        types, called = KINDS[kind]
        wrong = not isinstance(value, types) or (isinstance(value, bool) and kind != pl.Boolean)
        if wrong and (value is not None or name in NEEDED):
            raise run.error(f"{run.key}.{name}", f"expected {called}, found {value!r}")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
