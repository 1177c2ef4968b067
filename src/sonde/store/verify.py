"""Verify a store: every file against its checksum, every id, the run of every row, and the index against the runs."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from sonde.core.atomic import ASIDE
from sonde.core.errors import SondeError
from sonde.store import files
from sonde.store.files import Place, place
from sonde.store.folder import Damaged, how_to_restore, read_manifest, read_visible
from sonde.store.index import INDEX_FOLDER, INDEX_NAME, Index, light, read_index, refuse_damaged_index
from sonde.store.journal import journal_name, read_facts, verify_journal
from sonde.store.listing import stamps_of, why_incomplete
from sonde.store.readings import RowQuery, RowSlice
from sonde.store.run import Run, open_run, read_rows
from sonde.store.schemas import Checksum, Manifest, checksum


@dataclass
class Verified:
    """The result of a verification; its size does not grow with the store."""

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
    for id in sorted(present, key=lambda id: known.places[id].block if id in known.places else -1):
        found.runs += 1
        try:
            _verify_run(root / id, found, rows_of)
        except SondeError as error:
            found.blame(id, str(error))
    _verify_index(root, found)
    if incomplete := why_incomplete(root):
        found.blame(root.name, incomplete)
    found.left_over += [str(path) for path in _asides(root)]
    return found


def _verify_run(path: Place, found: Verified, indexed: "_Indexed") -> None:
    run = open_run(path)
    if run.manifest.checksums is None:
        found.without_checksums.append(run.id)
    counted: dict[str, int] = {}

    def every_file(manifest: Manifest) -> None:
        counted.clear()
        for name, known in (manifest.checksums or {}).items():
            file = path / name
            if name == journal_name(manifest):
                content = file.read_bytes() if file.exists() else b""
                verify_journal(file, content, manifest)
                counted[name] = len(content)
            elif (there := _checksum(file)) != known:
                raise Damaged(
                    f"{file} is not what was stored ({there.bytes:,} bytes, SHA-256 {there.sha256[:12]}…; stored were "
                    f"{known.bytes:,}, {known.sha256[:12]}…): {how_to_restore(path)}"
                )
            else:
                counted[name] = there.bytes

    manifest, _ = read_visible(path, every_file, run.manifest)
    found.files += len(counted) + 1
    found.bytes += sum(counted.values())
    manifest, rows = read_rows(run, manifest)
    if run.is_watched:
        read_facts(path)
    else:
        indexed.compare(replace(run, manifest=manifest), rows, found)
    named = {"run.json", "manifest.json", "log.txt", *manifest.files.values(), *(manifest.checksums or {})}
    named |= {*run.description.get("guests", []), journal_name(manifest)}
    found.left_over += [
        str(file) for file in path.iterdir() if file.name not in named and read_manifest(path) == manifest
    ]


def _checksum(path: Place) -> Checksum:
    """The checksum of a file, which is not read into memory at once."""
    if not isinstance(path, Path):
        return checksum(path.read_bytes())
    with files.opened(path) as file:
        return Checksum(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())


class _Indexed:
    """Compares the rows of an index with those of the folders, a block at a time."""

    def __init__(self, known: Index) -> None:
        self.known = known
        self.block = -1
        self.rows: dict[str, RowSlice] = {}
        self.members: dict[int, list[str]] = {}
        for run, where in known.places.items():
            self.members.setdefault(where.block, []).append(run)

    def compare(self, run: Run, rows: pl.DataFrame, found: Verified) -> None:
        if run.id not in self.known.runs:
            return
        copy, block = self.known.runs[run.id], self.known.places[run.id].block
        if block != self.block:
            self.block = block
            self.rows = self.known.rows(self.members[block], RowQuery())
        indexed = self.rows.get(run.id)
        described = {"recipe": run.recipe} | copy.description  # earlier indexes have no recipe keys
        same = copy.manifest == run.manifest and described == run.description
        if indexed is None or not same or not indexed.rows.equals(light(rows)[0]):
            found.blame(INDEX_FOLDER, f"its copy of {run.id} is not what the run has")
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
