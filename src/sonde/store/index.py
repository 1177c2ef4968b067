"""Ended runs once more, side by side in two Parquet files, so that many of them are read like one.

    .index/runs.parquet       a line for each run: its stamp, its description, its manifest
    .index/rows-….parquet     the rows of all of them, in that order; named after the runs and their stamps

An ended run never changes.  A run's line counts only while its manifest has the stamp it had (time and size, or what
an object store says of it); every other run is read from its folder.  Readers write the index when enough runs are
not in it; where they may not, they go without.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic_core import from_json

from sonde.errors import SondeError
from sonde.rows import SCHEMA, empty
from sonde.store import files
from sonde.store.place import Place
from sonde.store.remote import Remote, stamp
from sonde.store.run import ENDED, Manifest

FORMAT = 1
FOLDER = ".index"
ENOUGH = 100  # runs that are not in the index; below that the folders are as quick
LINES = pl.Schema(dict.fromkeys(("id", "stamp", "description", "manifest"), pl.String))


@dataclass(frozen=True)
class Entry:
    """One run, with its rows as a stretch of a frame that may hold others' too."""

    id: str
    stamp: str
    description: dict[str, Any]
    manifest: Manifest
    frame: pl.DataFrame
    first: int
    count: int


def stamps(root: Place) -> dict[str, str] | None:
    """Every run of a store with the stamp of its manifest, in order of their ids; None where there is no store."""
    if isinstance(root, Remote):
        return _remote_stamps(root)
    found = {}
    with os.scandir(str(root)) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir():
                found[entry.name] = _stamp(Path(entry.path) / "manifest.json")
    return dict(sorted(found.items()))


def _stamp(manifest: Path) -> str:
    try:
        known = manifest.stat()
    except OSError:
        return ""
    return f"{known.st_mtime_ns}-{known.st_size}"


def _remote_stamps(root: Remote) -> dict[str, str] | None:
    objects = root.walk()
    if not objects:
        return None
    found = {}
    for name, about in sorted(objects.items()):
        run, _, file = name.partition("/")
        if file == "manifest.json" and not run.startswith("."):
            found[run] = stamp(about)
    return found


def read(root: Place, present: Mapping[str, str], where: pl.Expr | None = None) -> dict[str, Entry]:
    """The runs that the index knows as they are now; none where there is no index or it cannot be read.

    With `where`, only the rows of which it is true, unless the index is to be renewed from them.
    """
    try:
        lines = _lines(root)
        known = _current(lines, present)
        due = is_due(len(present) - known.height, known.height)
        rows = _rows(root / FOLDER / _name(lines), None if due else where)
    except (pl.exceptions.PolarsError, OSError, SondeError):
        return {}
    if rows.schema != SCHEMA:
        return {}
    stretches = rows["run"].rle().struct.unnest()
    ends = stretches["len"].cum_sum()
    counts = dict(
        zip(stretches["value"], zip(ends - stretches["len"], stretches["len"], strict=True), strict=True)
    )
    about, states = _values(known["description"]), _values(known["manifest"])
    return {
        id: Entry(id, stamp, description, Manifest(**manifest), rows, *counts.get(id, (0, 0)))
        for id, stamp, description, manifest in zip(known["id"], known["stamp"], about, states, strict=True)
    }


def manifests(root: Place, present: Mapping[str, str]) -> dict[str, Manifest]:
    """How the runs ended that the index knows as they are now."""
    try:
        known = _current(_lines(root), present)
    except (pl.exceptions.PolarsError, OSError, SondeError):
        return {}
    states = _values(known["manifest"])
    return {id: Manifest(**manifest) for id, manifest in zip(known["id"], states, strict=True)}


def _lines(root: Place) -> pl.DataFrame:
    lines = pl.read_parquet(io.BytesIO((root / FOLDER / "runs.parquet").read_bytes()))
    if lines.schema != LINES:
        raise pl.exceptions.SchemaError("the columns of another version")
    return lines


def _current(lines: pl.DataFrame, present: Mapping[str, str]) -> pl.DataFrame:
    """The lines of runs whose manifest is the one that was indexed."""
    return lines.filter(pl.col("stamp") == pl.col("id").replace_strict(present, default=None))


def _values(texts: pl.Series) -> list[Any]:
    """What many JSON texts say, parsed at once."""
    values: list[Any] = from_json(f"[{','.join(texts)}]")
    return values


def _rows(path: Place, where: pl.Expr | None) -> pl.DataFrame:
    found = pl.scan_parquet(path if isinstance(path, Path) else io.BytesIO(path.read_bytes()))
    return (found if where is None else found.filter(where)).collect()


def joined(entries: Iterable[Entry]) -> pl.DataFrame:
    """The rows of all of them, in order; what lies side by side in the index stays one piece."""
    pieces: list[tuple[pl.DataFrame, int, int]] = []
    for entry in entries:
        if pieces and pieces[-1][0] is entry.frame and sum(pieces[-1][1:]) == entry.first:
            frame, first, count = pieces.pop()
            pieces.append((frame, first, count + entry.count))
        else:
            pieces.append((entry.frame, entry.first, entry.count))
    return pl.concat([empty(), *(frame.slice(first, count) for frame, first, count in pieces)])


def is_due(fresh: int, known: int) -> bool:
    """Whether so many runs are not in the index that it is worth writing anew."""
    return fresh >= max(ENOUGH, known // 8)


def renew(root: Place, entries: Iterable[Entry], known: int) -> None:
    """Write the index anew where it is worth it; a store that may not be written to has none."""
    ended = [entry for entry in entries if entry.manifest.state in ENDED and entry.stamp]
    if not is_due(len(ended) - known, known):
        return
    described = [
        (entry.id, entry.stamp, json.dumps(entry.description), json.dumps(asdict(entry.manifest)))
        for entry in ended
    ]
    lines = pl.DataFrame(described, schema=LINES, orient="row")
    try:
        folder, name = files.make_folder(root / FOLDER), _name(lines)
        files.write(folder / name, _parquet(joined(ended)))
        files.write(folder / "runs.parquet", _parquet(lines))
        for file in folder.iterdir():
            if file.name.startswith("rows-") and file.name != name:
                file.unlink(missing_ok=True)
    except (SondeError, OSError):
        return


def _name(lines: pl.DataFrame) -> str:
    known = json.dumps([FORMAT, lines["id"].to_list(), lines["stamp"].to_list()])
    return f"rows-{hashlib.sha256(known.encode()).hexdigest()[:16]}.parquet"


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=1)
    return buffer.getvalue()
