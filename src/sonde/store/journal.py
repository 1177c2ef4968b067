"""A watched run's rows: appended as they come, folded into Parquet parts, never rewritten.

    run.json, manifest.json                       as in every run; `kind` is "watched" and there is no configuration
    facts-1.json                                  what was seen once: modules, parameters, inputs; named by the manifest
    metrics-0001.parquet, metrics-0002.parquet …  parts, named by the manifest
    journal-0003.chunks                           rows since the last part: length, checksums and rows of each chunk

A process that is killed loses the chunk it was writing: the file ends before the chunk does.  Any other chunk that
does not match its checksum is damage.  In an object store the whole journal is put again, at most every ten seconds.

`sync` flushes the journal to the disk and stores its size and checksum in the manifest.  So a journal that was deleted
or cut is noticed, and a power failure loses no row before the last `sync`.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from pydantic_core import from_json

from sonde.core.errors import SondeError, tell
from sonde.metrics.rows import WATCHED
from sonde.store import files
from sonde.store.files import JSON_BYTES, Allowance, Place, refuse_rows, sync_folder
from sonde.store.folder import (
    Damaged,
    begin_run,
    how_to_restore,
    parquet,
    put_manifest,
    read_manifest,
    read_part,
    read_visible,
    run_exists,
    verified,
)
from sonde.store.lock import Heartbeat
from sonde.store.parquet import refuse_nonsense, rows_of_stream
from sonde.store.schemas import WATCHED_KIND as KIND
from sonde.store.schemas import Checksum, Manifest, RunState, WatchedFacts, checksum, validate_as, with_defaults

PART = 50_000  # rows of a part: what is ever held in memory
PAUSE = 10.0  # seconds between two puts of a journal into an object store
_HEAD = struct.Struct("<II")  # bytes of a chunk, and their checksum
_SUM = struct.Struct("<I")  # the checksum of these two


class Journal:
    """The rows of one watched run, as long as it is written."""

    def __init__(self, root: Place, name: str, about: Mapping[str, Any], session: Mapping[str, Any]) -> None:
        files.make_folder(root)
        self.path, self.manifest = _new_folder(root, name, about, session)
        self._rows = 0  # in the journal
        self._end = 0  # bytes of whole chunks in it
        self._digest = hashlib.sha256()  # of these
        self._known = 0  # bytes of it that the manifest knows of
        self._unput = bytearray()  # the journal of an object store
        self._synced_at = time.monotonic()
        self._alone = threading.RLock()  # `sync` may be called by another thread
        self._heartbeat: Heartbeat | None = None
        with contextlib.suppress(OSError, SondeError):
            self._heartbeat = Heartbeat(root, self.id)

    @property
    def id(self) -> str:
        """The run's id: the name of its folder."""
        return self.path.name

    def append(self, rows: pl.DataFrame, step: int) -> None:
        """Append rows.  They survive a kill as soon as this returns; in an object store, ten seconds later."""
        content = _chunk(rows)
        with self._alone:
            path = self.path / journal_name(self.manifest)
            if isinstance(path, Path):
                with files.clear_errors(path), path.open("r+b" if self._end else "wb") as file:
                    file.seek(self._end)
                    file.write(content)
                    file.truncate()
            else:
                self._unput += content
            self._end += len(content)
            self._digest.update(content)
            self._rows += rows.height
            if self._rows >= PART:
                with contextlib.suppress(OSError, SondeError):  # the journal has them; the next fold takes all
                    self._write_part(replace(self.manifest, step=step))
            elif isinstance(path, Path) and not self._known:
                with contextlib.suppress(OSError, SondeError):
                    self.sync()
            elif not isinstance(path, Path) and time.monotonic() - self._synced_at >= PAUSE:
                self.sync()

    def sync(self) -> None:
        """Bring the journal to the disk, or into the object store, and its size and checksum into the manifest."""
        with self._alone:
            self._synced_at = time.monotonic()
            if self._end == self._known:
                return
            name = journal_name(self.manifest)
            path = self.path / name
            with files.clear_errors(path):
                if isinstance(path, Path):
                    with path.open("rb+") as file:
                        os.fsync(file.fileno())
                    sync_folder(path.parent)
                else:
                    files.write(path, bytes(self._unput))
            known = Checksum(self._digest.hexdigest(), self._end)
            manifest = replace(self.manifest, checksums={**(self.manifest.checksums or {}), name: known})
            put_manifest(self.path, manifest)
            self.manifest, self._known = manifest, self._end

    def touch(self) -> None:
        """Renew the heartbeat: the loop advances."""
        if self._heartbeat is not None:
            self._heartbeat.touch()

    def write_facts(self, known: Mapping[str, Any]) -> None:
        """Write what was seen once; a later call replaces an earlier one."""
        with self._alone:
            before = self.manifest.files.get("facts")
            name = f"facts-{1 if before is None else _number(before) + 1}.json"
            content = json.dumps(known, indent=1, ensure_ascii=False).encode()
            files.write(self.path / name, content)
            manifest = _with_file(self.manifest, "facts", name, content)
            put_manifest(self.path, manifest)
            self.manifest = manifest
        if before is not None:
            with contextlib.suppress(OSError, SondeError):
                (self.path / before).unlink(missing_ok=True)

    def close(self, state: RunState, step: int, message: str | None = None) -> None:
        """Fold the rest into a part, write the state of the run's end and remove the heartbeat."""
        with self._alone:
            self._write_part(replace(self.manifest, step=step, state=state, message=message))
        if self._heartbeat is not None:
            self._heartbeat.remove()

    def _write_part(self, manifest: Manifest) -> None:
        """Write the journal as a part, which becomes visible when the manifest names it."""
        name = journal_name(self.manifest)
        journal = self.path / name
        checksums = {file: known for file, known in (manifest.checksums or {}).items() if file != name}
        manifest = replace(manifest, checksums=checksums)
        if self._rows:
            part = f"metrics-{parts_of(self.manifest) + 1:04d}"
            chunks = bytes(self._unput) if self._unput else journal.read_bytes()
            content = parquet(pl.concat(list(_chunks(chunks, journal))))
            files.write(self.path / f"{part}.parquet", content)
            manifest = _with_file(manifest, part, f"{part}.parquet", content)
        put_manifest(self.path, manifest)
        self.manifest = manifest
        self._rows = self._end = self._known = 0
        self._digest = hashlib.sha256()
        self._unput.clear()
        with contextlib.suppress(OSError, SondeError):
            journal.unlink(missing_ok=True)


def _new_folder(root: Place, name: str, about: Mapping[str, Any], session: Mapping[str, Any]) -> tuple[Place, Manifest]:
    """A folder under this name, or name-2, name-3, … where it is taken."""
    for number in range(1, 10_000):
        path = root / (name if number == 1 else f"{name}-{number}")
        if run_exists(path):
            continue
        known = {"kind": KIND, "about": dict(about), "config": None}
        try:
            return path, begin_run(path, known, Manifest(sessions=[dict(session)]))
        except SondeError:
            if not run_exists(path):  # else another process was first
                raise
    raise SondeError(f"{root} holds ten thousand runs named {name}: choose another name=")


def _with_file(manifest: Manifest, key: str, name: str, content: bytes) -> Manifest:
    """The manifest with another file of the state, in place of the one of that key."""
    before = manifest.files.get(key)
    checksums = {file: known for file, known in (manifest.checksums or {}).items() if file != before}
    checksums[name] = checksum(content)
    return replace(manifest, files={**manifest.files, key: name}, checksums=checksums)


def _number(name: str) -> int:
    """The number in `facts-2.json`; 0 for `facts.json`, as an earlier version called it."""
    found = re.search(r"-(\d+)\.", name)
    return int(found[1]) if found else 0


def part_files(manifest: Manifest) -> list[str]:
    """The parts in their order."""
    return [file for name, file in sorted(manifest.files.items()) if name != "facts"]


def parts_of(manifest: Manifest) -> int:
    """The number of parts that the manifest names."""
    return sum(name.startswith("metrics-") for name in manifest.files)


def journal_name(manifest: Manifest) -> str:
    """The name of the journal, which has the rows since the last part."""
    return f"journal-{parts_of(manifest) + 1:04d}.chunks"


def read_watched(path: Place, manifest: Manifest | None = None, *, after: int = 0) -> tuple[Manifest, pl.DataFrame]:
    """Read the visible rows: the parts from number `after` on, then the journal; again where a writer folds meanwhile.

    Where the journal is missing or was cut, a notice says so, and the remaining rows are read.
    """
    read = partial(_rows, path, after=after)
    while True:
        try:
            manifest, found = read_visible(path, read, manifest)
        except Cut as error:
            tell(f"{error}; the rows that are left are read")
            read = partial(_rows, path, after=after, cut=True)
            continue
        newer = read_manifest(path)
        if newer.files == manifest.files:
            return newer, found
        manifest = newer


def _rows(path: Place, manifest: Manifest, *, after: int, cut: bool = False) -> pl.DataFrame:
    packed = sum(known.bytes for known in (manifest.checksums or {}).values())
    allowance, found = Allowance(packed), list[pl.DataFrame]()
    for file in part_files(manifest)[after:]:
        found.append(read_part(path / file, manifest, WATCHED))
        allowance.take(found[-1].height, path)
    journal = path / journal_name(manifest)
    try:
        content = files.read(journal)
    except FileNotFoundError:
        content = b""
    chunks = pl.concat([pl.DataFrame(schema=WATCHED), *_chunks(content, journal)])
    if not cut:
        verify_journal(journal, content, manifest)
    refuse_nonsense(chunks, path, path.name, how_to_restore(path))
    return pl.concat([pl.DataFrame(schema=WATCHED), *found, chunks])


class Cut(Damaged):
    """The journal has fewer rows than were stored."""


def verify_journal(journal: Place, content: bytes, manifest: Manifest) -> None:
    """Raise unless the journal begins as the manifest says; it may be longer."""
    known = (manifest.checksums or {}).get(journal.name)
    if known is None:
        return
    if len(content) < known.bytes:
        raise Cut(
            f"{journal} has lost rows ({len(content):,} bytes; stored were {known.bytes:,} or more): "
            "restore it from a copy"
        )
    if checksum(content[: known.bytes]) != known:
        fix = how_to_restore(journal.parent)
        raise Damaged(f"{journal} is not what was stored (its SHA-256 is another): {fix}")


def read_facts(run: Place) -> dict[str, Any]:
    """Read the facts of a watched run; empty before the end of the first step."""

    def read(manifest: Manifest) -> dict[str, Any]:
        named = manifest.files.get("facts")
        if named is None:
            return {}
        path = run / named
        known: dict[str, Any] = from_json(verified(path, files.read(path, JSON_BYTES), manifest))
        validate_as(WatchedFacts, known, str(path), how_to_restore(run))
        return with_defaults(known)

    try:
        return read_visible(run, read)[1]
    except (OSError, ValueError) as error:
        raise SondeError(f"the facts of {run} cannot be read ({error}): {how_to_restore(run)}") from None


def _chunk(rows: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    rows.write_ipc_stream(buffer)
    content = buffer.getvalue()
    head = _HEAD.pack(len(content), zlib.crc32(content))
    return head + _SUM.pack(zlib.crc32(head)) + content


def _chunks(content: bytes, path: Place) -> Iterator[pl.DataFrame]:
    """The complete chunks; an incomplete one at the end of the file is left out."""
    at = 0
    while (begin := at + _HEAD.size + _SUM.size) <= len(content):
        head, (known,) = content[at : at + _HEAD.size], _SUM.unpack_from(content, at + _HEAD.size)
        length, checksum = _HEAD.unpack(head)
        chunk = content[begin : begin + length]
        whole = zlib.crc32(head) == known
        if whole and len(chunk) < length:
            return
        if not whole or zlib.crc32(chunk) != checksum:
            raise Damaged(
                f"{path} is damaged from byte {at} on: `truncate -s {at} {shlex.quote(str(path))}` keeps the rows "
                "before it"
            )
        yield _rows_of(chunk, path)
        at = begin + length


def _rows_of(chunk: bytes, path: Place) -> pl.DataFrame:
    try:
        refuse_rows(rows_of_stream(chunk), len(chunk), path, "move it away")
        rows = pl.read_ipc_stream(io.BytesIO(chunk))
    except (pl.exceptions.PolarsError, ValueError) as error:
        said = (str(error).splitlines() or [""])[0]
        raise SondeError(f"{path} cannot be read ({said}): move it away to keep the rows before it") from None
    except BaseException as error:  # as in `read_parquet`
        if type(error).__name__ != "PanicException":
            raise
        raise SondeError(f"{path} cannot be read (its columns make no sense): move it away") from None
    if rows.schema != WATCHED:
        raise SondeError(f"{path} has the columns of another version: move it away")
    return rows


def folder_name(text: str) -> str:
    """A name for a folder: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "watched"
