"""A whole store against what was written: every file, every id, every row's run, and the index against the runs."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from pydantic_core import from_json

from sonde.core.atomic import ASIDE
from sonde.core.errors import SondeError
from sonde.store import files
from sonde.store.files import Place, place
from sonde.store.folder import Damaged, RunFolder, recipe_key
from sonde.store.index import INDEX_FOLDER, INDEX_NAME, Index, read_index, refuse_damaged_index
from sonde.store.index_writer import light
from sonde.store.journal import journal_name, read_facts, read_watched, verify_journal
from sonde.store.listing import stamps_of, why_incomplete
from sonde.store.row_query import RowQuery, RowSlice
from sonde.store.schemas import WATCHED_KIND, Checksum, Manifest, checksum


@dataclass
class Verified:
    """What was found; memory does not grow with the store."""

    runs: int = 0
    files: int = 0
    bytes: int = 0
    indexed: int = 0
    without_checksums: list[str] = field(default_factory=list)
    wrong: dict[str, list[str]] = field(default_factory=dict)  # run, or the index → what is wrong and what helps
    left_over: list[str] = field(default_factory=list)  # files that belong to nothing

    def blame(self, what: str, said: str) -> None:
        """Record what is wrong with a run or with the index."""
        self.wrong.setdefault(what, []).append(said)


def verify(root: str | Place) -> Verified:
    """Read all of a store and compare it with its checksums; nothing is changed."""
    root = place(root)
    present = stamps_of(root)
    found, known = Verified(), read_index(root, present)
    rows_of = _Indexed(known)
    try:
        for id in present:
            found.runs += 1
            try:
                _verify_run(RunFolder(root / id), found, rows_of)
            except SondeError as error:
                found.blame(id, str(error))
        _verify_index(root, found)
        if incomplete := why_incomplete(root):
            found.blame(root.name, incomplete)
    finally:
        known.close()
    found.left_over += [str(path) for path in _asides(root)]
    return found


def _verify_run(folder: RunFolder, found: Verified, indexed: "_Indexed") -> None:
    manifest = folder.manifest()
    described = folder.description(manifest)
    if manifest.checksums is None:
        found.without_checksums.append(folder.id)
    counted: dict[str, int] = {}

    def every_file(manifest: Manifest) -> None:
        counted.clear()
        for name, known in (manifest.checksums or {}).items():
            path = folder.path / name
            if name == journal_name(manifest):
                content = path.read_bytes() if path.exists() else b""
                verify_journal(folder, content, manifest)
                counted[name] = len(content)
            elif (there := _checksum(path)) != known:
                raise Damaged(
                    f"{path} is not what was stored ({there.bytes:,} bytes, SHA-256 {there.sha256[:12]}…; stored were "
                    f"{known.bytes:,}, {known.sha256[:12]}…): {folder.fix}"
                )
            else:
                counted[name] = there.bytes

    manifest, _ = folder.follow(every_file, manifest)
    found.files += len(counted) + 1
    found.bytes += sum(counted.values())
    if described.get("kind") == WATCHED_KIND:
        read_watched(folder)
        read_facts(folder)
    else:
        manifest, rows = folder.read(manifest)
        indexed.compare(folder.id, described, manifest, rows, found)
    named = {"run.json", "manifest.json", "log.txt", *manifest.files.values(), *(manifest.checksums or {})}
    named |= {*described.get("guests", []), journal_name(manifest)}
    found.left_over += [
        str(file) for file in folder.path.iterdir() if file.name not in named and folder.manifest() == manifest
    ]


def _checksum(path: Place) -> Checksum:
    """Of a file, without holding it."""
    if not isinstance(path, Path):
        return checksum(path.read_bytes())
    with files.opened(path) as file:
        return Checksum(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())


class _Indexed:
    """The rows of an index beside those of the folders, a block at a time."""

    def __init__(self, known: Index) -> None:
        self.known = known
        self.block = -1
        self.rows: dict[str, RowSlice] = {}
        self.members: dict[int, list[str]] = {}
        for run, where in known.places.items():
            self.members.setdefault(where.block, []).append(run)
        self.lines = dict(zip(known.lines["id"], known.lines["description"], strict=True))

    def compare(
        self, run: str, described: dict[str, Any], manifest: Manifest, rows: pl.DataFrame, found: Verified
    ) -> None:
        if run not in self.known.runs:
            return
        block = self.known.places[run].block
        if block != self.block:
            self.block = block
            self.rows = self.known.rows(self.members[block], RowQuery())
        indexed = self.rows.get(run)
        recipe = {"recipe": recipe_key(described["config"])}
        if (
            indexed is None
            or self.known.runs[run].manifest != manifest
            or recipe | from_json(self.lines[run]) != recipe | described
            or not indexed.rows.equals(light(rows)[0])
        ):
            found.blame(INDEX_FOLDER, f"its copy of {run} is not what the run has")
        else:
            found.indexed += 1


def _verify_index(root: Place, found: Verified) -> None:
    folder = root / INDEX_FOLDER
    if not (folder / INDEX_NAME).exists():
        return
    try:
        refuse_damaged_index(root)
    except (SondeError, OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        found.blame(INDEX_FOLDER, str(error))
    if INDEX_FOLDER in found.wrong:
        found.wrong[INDEX_FOLDER].append(f"it can be rebuilt: remove {folder}, and the next reader writes it anew")


def _asides(root: Place) -> Iterator[Place]:
    """What interrupted writers left beside the runs."""
    for folder in (root, root / INDEX_FOLDER, root / ".locks"):
        with suppress(OSError):
            yield from (path for path in folder.iterdir() if path.name.startswith(ASIDE))
