"""The JSON files of the paper layout, and `sonde.json`, which records what their runs were.

The layout has no place for the data set or the recipe, and the keys of its files are fixed: existing scripts read
them.  So an export writes `sonde.json` beside them, and figures drawn from the files take their labels from it:

    files   path → {sonde: version that wrote it, sha256: of its content, runs: entry → run id}
    runs    run id → task, scale and recipe: the columns of `RUNS_SCHEMA`

An entry is a key of the file: `plain_mlp`, `bp_log`, `42.dfa`.  Files that are not recorded have no data set.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from sonde import __version__
from sonde.analysis.evidence import RUNS_SCHEMA, Evidence
from sonde.core.errors import SondeError, nearest
from sonde.core.run_ids import network_label
from sonde.metrics import UNLIMITED, Bounds
from sonde.store.schemas import checksum

RECORD_NAME = "sonde.json"
FIRST_SEED = 42
"""Files of this seed have no seed in their names."""
COSINE_ROUNDED: Bounds = (-1.00001, 1.00001)
"""Of cosines and correlations, with the rounding of single precision."""

_FIELDS = {name: kind for name, kind in RUNS_SCHEMA.items() if name != "run"}
_REQUIRED = ("label", "model", "rule", "rule_label", "task", "task_label", "scale", "epochs")
_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    pl.String: ((str,), "a text"),
    pl.Int64: ((int,), "a whole number"),
    pl.Float64: ((int, float), "a number"),
    pl.Boolean: ((bool,), "true or false"),
}
_REMEDY = f"export again, or delete {RECORD_NAME} to draw the files with no data set recorded"


class Document:
    """A JSON object and the path of keys that led to it; every error names the file and the key.

    `remedy` ends every error message: it says how to fix the file.
    """

    def __init__(self, path: Path, value: Any, key: str = "", remedy: str = "") -> None:
        self.path, self.value, self.key, self.remedy = path, value, key, remedy
        if not isinstance(value, dict):
            raise self.error(key or "the file", f"expected an object, found {_kind(value)}")

    @classmethod
    def read(cls, path: Path, remedy: str = "") -> "Document":
        """Read a file; refuse one that is not a JSON object."""
        try:
            return cls(path, json.loads(path.read_text(encoding="utf-8")), remedy=remedy)
        except OSError as error:
            raise SondeError(f"{path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise SondeError(f"{path} is not JSON: {error}{remedy and f'; {remedy}'}") from None

    def error(self, key: str, problem: str) -> SondeError:
        """An error that names the file, the key and the problem."""
        return SondeError(f"{self.path}: {key}: {problem}{self.remedy and f'; {self.remedy}'}")

    def get(self, key: str) -> Any:
        """The value of a key, which must be there."""
        if key not in self.value:
            close = nearest(key, self.value) if self.value else "the object is empty"
            raise self.error(self._name(key), f"missing ({close})")
        return self.value[key]

    def section(self, key: str) -> "Document":
        """The object under a key."""
        return Document(self.path, self.get(key), self._name(key), self.remedy)

    def sections(self, key: str) -> list["Document"]:
        """The list of objects under a key."""
        items = self._items(self.get(key), self._name(key))
        return [Document(self.path, item, name, self.remedy) for name, item in items]

    def text(self, key: str) -> str:
        """The text under a key."""
        value = self.get(key)
        if not isinstance(value, str):
            raise self.error(self._name(key), f"expected a text, found {_kind(value)}")
        return value

    def number(self, key: str, within: Bounds = UNLIMITED) -> float:
        """The finite number under a key."""
        return self._finite(self.get(key), self._name(key), within)

    def count(self, key: str, least: int = 1) -> int:
        """The whole number under a key."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            problem = f"expected a whole number of at least {least}, found {_kind(value)}"
            raise self.error(self._name(key), problem)
        return value

    def numbers(self, key: str, length: int | None = None, within: Bounds = UNLIMITED) -> list[float]:
        """The list of finite numbers under a key."""
        items = self._items(self.get(key), self._name(key), length)
        return [self._finite(item, name, within) for name, item in items]

    def nullable(self, key: str, length: int | None = None, within: Bounds = UNLIMITED) -> list[float | None]:
        """Numbers, or null where a value is undefined."""
        items = self._items(self.get(key), self._name(key), length)
        return [None if item is None else self._finite(item, name, within) for name, item in items]

    def table(self, key: str, rows: int, columns: int) -> list[list[float]]:
        """The list of equally long lists of numbers under a key."""
        lines = self._items(self.get(key), self._name(key), rows)
        return [
            [self._finite(item, at, UNLIMITED) for at, item in self._items(line, name, columns)] for name, line in lines
        ]

    def _items(self, value: Any, name: str, length: int | None = None) -> list[tuple[str, Any]]:
        """The items of a list, each with its name; refuse what is no list, or has another length."""
        if not isinstance(value, list):
            raise self.error(name, f"expected a list, found {_kind(value)}")
        if length is not None and len(value) != length:
            raise self.error(name, f"expected {length} values, found {len(value)}")
        return [(f"{name}[{i}]", item) for i, item in enumerate(value)]

    def _finite(self, value: Any, name: str, within: Bounds) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(name, f"expected a finite number, found {_kind(value)}")
        low, high = within
        if not low <= value <= high:
            wanted = f"{low:g} or more" if math.isinf(high) else f"a number from {low:g} to {high:g}"
            raise self.error(name, f"expected {wanted}, found {_kind(value)}")
        return float(value)

    def _name(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: f"the text {str(value)[:30]!r}", type(None): "null"}
    return names.get(type(value), json.dumps(value))


@dataclass(frozen=True, kw_only=True)
class JsonFile:
    """A file to be written: how its content is made, the run of each of its entries, and what it lacks."""

    content: Callable[[], Any]
    runs: dict[str, str] = field(default_factory=dict)  # entry → run id
    lacking: list[str] = field(default_factory=list)


JsonFiles = dict[str, JsonFile]  # by path below the export root


def stored_rows(evidence: Evidence, run: Mapping[str, Any]) -> pl.DataFrame:
    """The rows of a run that is exported."""
    rows = evidence.rows_of(run["run"])
    if rows.is_empty():
        raise SondeError(f"run {run['run']} has no rows: nothing was exported")
    return rows


def values_along(rows: pl.DataFrame, order: str, metric: str, **where: int) -> list[float]:
    """A metric of one run in order of step, epoch or layer; an undefined value stops the export."""
    chosen = _ordered(rows, order, metric, **where)
    for undefined in chosen.filter(~pl.col("defined")).iter_rows(named=True):
        raise SondeError(
            f"run {undefined['run']}, epoch {undefined['epoch']}, metric {metric}: undefined ({undefined['reason']}), "
            f"which the paper layout cannot hold there; nothing was exported"
        )
    return chosen["value"].to_list()


def nullable_by_layer(rows: pl.DataFrame, metric: str, **where: int) -> list[float | None]:
    """A metric of one run in order of layers, with None for an undefined value."""
    chosen = _ordered(rows, "layer", metric, **where).select("value", "defined")
    return [value if defined else None for value, defined in chosen.iter_rows()]


def _ordered(rows: pl.DataFrame, order: str, metric: str, **where: int) -> pl.DataFrame:
    chosen = rows.filter(metric=metric, **where).sort(order)
    if chosen.is_empty():
        at = f" at epoch {where['epoch']}" if "epoch" in where else ""
        raise SondeError(f"run {rows['run'][0]} has no {metric}{at}: nothing was exported")
    return chosen


def record(
    folder: Path, written: Mapping[str, JsonFile], digests: Mapping[str, str], runs: pl.DataFrame
) -> dict[str, Any]:
    """The content of a folder's new `sonde.json`; it keeps what the old one says of files that stay."""
    old_files, old_runs = _old(folder)
    staying = [path for path in old_files if path not in written and (folder / path).is_file()]
    files = {path: old_files[path] for path in staying} | {
        path: {"sonde": __version__, "sha256": digests[path], "runs": file.runs} for path, file in written.items()
    }
    every_run = old_runs | {row["run"]: {name: row[name] for name in _FIELDS} for row in runs.iter_rows(named=True)}
    named = {run for file in files.values() for run in file["runs"].values()}
    return {"files": files, "runs": {run: every_run[run] for run in every_run if run in named}}


def _old(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The files and runs that are recorded already; a record that cannot be read is replaced."""
    try:
        old = Provenance(folder, all_there=False)
    except SondeError:
        return {}, {}
    return old.files, old.runs


class Provenance:
    """A folder's `sonde.json`, checked; empty if there is none."""

    def __init__(self, folder: Path, *, all_there: bool = True) -> None:
        self.folder, self.path = folder, folder / RECORD_NAME
        self.files: dict[str, Any] = {}
        self.runs: dict[str, Any] = {}
        if not self.path.exists():
            return
        document = Document.read(self.path, _REMEDY)
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
        """The records of a study's files: of all of them, or of none."""
        names = [path.relative_to(self.folder).as_posix() for path in paths]
        listed = [name for name in names if name in self.files]
        unlisted = [name for name in names if name not in self.files]
        if listed and unlisted:
            raise SondeError(f"{self.path} says nothing of {', '.join(unlisted)}: move it elsewhere, {_REMEDY}")
        for name in listed:
            if checksum((self.folder / name).read_bytes()).sha256 != self.files[name]["sha256"]:
                raise SondeError(f"{self.path}: {name} is not the file that was exported: {_REMEDY}")
        return Records(self, listed)


class Records:
    """The runs of a study's files as `sonde.json` describes them; each must be found in its file."""

    def __init__(self, provenance: Provenance, listed: Sequence[str]) -> None:
        self.provenance, self.listed = provenance, listed
        self.left = {(name, entry) for name in listed for entry in provenance.files[name]["runs"]}
        self.runs: list[DescribedRun] = []

    def run(self, path: Path, entry: str, stand_in: Mapping[str, Any], **facts: Any) -> "DescribedRun":
        """The run of an entry, with the facts that its file states; `stand_in` is for a file that is not recorded."""
        name = path.relative_to(self.provenance.folder).as_posix()
        if not self.listed:
            described = DescribedRun(dict.fromkeys(RUNS_SCHEMA) | {"run": f"{name}:{entry}"} | dict(stand_in), None)
        else:
            where = f"{self.provenance.path}: files.{name}.runs.{entry}"
            if (name, entry) not in self.left:
                raise SondeError(f"{where}: missing, though the file has it: {_REMEDY}")
            self.left.remove((name, entry))
            id = self.provenance.files[name]["runs"][entry]
            known = self.provenance.runs[id]
            described = DescribedRun({"run": id} | known | {"label": network_label(known["label"])}, where)
        self.runs.append(described.learn(**facts))
        return described

    def evidence(self, rows: Sequence[pl.DataFrame]) -> Evidence | None:
        """The runs with their rows; refuses a recorded entry that was not found, and a run that was found twice."""
        if not self.runs:
            return None
        for name, entry in sorted(self.left):
            where = f"{self.provenance.path}: files.{name}.runs.{entry}"
            raise SondeError(f"{where}: the file has no such entry: {_REMEDY}")
        described: dict[str, DescribedRun] = {}
        for run in self.runs:
            other = described.setdefault(run.fields["run"], run)
            if other is not run:
                raise SondeError(f"{run.where}: the same run as {other.where}: {_REMEDY}")
        self._share_epochs()
        fields = [run.fields for run in self.runs]
        return Evidence(pl.concat(rows), pl.DataFrame(fields, schema=RUNS_SCHEMA), str(self.provenance.folder))

    def _share_epochs(self) -> None:
        """Give all runs of a series the epochs of its longest; student networks are a series of their own."""
        longest: dict[bool, int] = {}
        unrecorded = [run.fields for run in self.runs if run.where is None]
        for run in unrecorded:
            student = run["model"] == "student_net"
            longest[student] = max(run["epochs"], longest.get(student, 0))
        for run in unrecorded:
            run["epochs"] = longest[run["model"] == "student_net"]


class DescribedRun:
    """A run's columns in `RUNS_SCHEMA`; `where` is its place in `sonde.json`, None if it is not recorded."""

    def __init__(self, fields: dict[str, Any], where: str | None) -> None:
        self.fields, self.where = fields, where

    def learn(self, **facts: Any) -> "DescribedRun":
        """Add what the file says; refuse it if the record says otherwise."""
        for name, value in facts.items():
            if self.where is None:
                self.fields[name] = value
            elif value is not None and not _same(self.fields[name], value):
                raise SondeError(
                    f"{self.where}: {self.fields['run']} has {name} {self.fields[name]}, the file {value}: {_REMEDY}"
                )
        return self


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12)
    return bool(one == other)


def _check_run(run: Document) -> None:
    for name in run.value:
        if name not in _FIELDS:
            raise run.error(f"{run.key}.{name}", f"expected one of {', '.join(_FIELDS)}")
    for name, kind in _FIELDS.items():
        value = run.get(name)
        types, called = _KINDS[kind]
        wrong = not isinstance(value, types) or (isinstance(value, bool) and kind != pl.Boolean)
        if wrong and (value is not None or name in _REQUIRED):
            raise run.error(f"{run.key}.{name}", f"expected {called}, found {value!r}")
