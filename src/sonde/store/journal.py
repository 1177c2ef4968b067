"""A watched run's rows: appended as they come, folded into Parquet parts, never rewritten.

    run.json, manifest.json                       as in every run; `kind` is "watched" and there is no configuration
    facts.json                                    what was seen once: modules, parameters, inputs; named by the manifest
    metrics-0001.parquet, metrics-0002.parquet …  parts, named by the manifest
    journal-0003.chunks                           rows since the last part: length, checksum and rows of each chunk

A process that is killed loses the chunk it was writing.  In an object store the journal is put anew, at most every
ten seconds.
"""

import contextlib
import io
import json
import re
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from sonde.errors import SondeError
from sonde.rows import WATCHED
from sonde.store import files
from sonde.store.place import Place
from sonde.store.run import FORMAT, Manifest, RunFolder, State

KIND = "watched"
PART = 50_000  # rows of a part: what is ever held in memory
PAUSE = 10.0  # seconds between two puts of a journal into an object store
_HEAD = struct.Struct("<II")  # bytes of a chunk, and their checksum


class Journal:
    """The rows of one watched run, as long as it is written."""

    def __init__(self, root: Place, name: str, about: Mapping[str, Any], session: Mapping[str, Any]) -> None:
        files.make_folder(root)
        self.folder = _new_folder(root, name, about, session)
        self.manifest = self.folder.manifest()
        self._rows = 0  # in the journal
        self._end = 0  # bytes of whole chunks in it
        self._unput = bytearray()  # the journal of an object store
        self._put_at = time.monotonic()

    @property
    def id(self) -> str:
        return self.folder.id

    def append(self, rows: pl.DataFrame, step: int) -> None:
        """Rows that survive a kill as soon as this returns; in an object store, ten seconds later."""
        content = _chunk(rows)
        path = self.folder.path / journal_name(self.manifest)
        if isinstance(path, Path):
            with files.clear_errors(path), path.open("r+b" if self._end else "wb") as file:
                file.seek(self._end)
                file.write(content)
                file.truncate()
            self._end += len(content)
        else:
            self._unput += content
            if time.monotonic() - self._put_at >= PAUSE:
                files.write(path, bytes(self._unput))
                self._put_at = time.monotonic()
        self._rows += rows.height
        if self._rows >= PART:
            self._fold(replace(self.manifest, step=step))

    def facts(self, known: Mapping[str, Any]) -> None:
        """What was seen once; the last word counts."""
        content = json.dumps(known, indent=1, ensure_ascii=False).encode()
        files.write(self.folder.path / "facts.json", content)
        if "facts" not in self.manifest.files:
            self.manifest = replace(self.manifest, files={**self.manifest.files, "facts": "facts.json"})
            self.folder.put(self.manifest)

    def close(self, state: State, step: int, message: str | None = None) -> None:
        self._fold(replace(self.manifest, step=step, state=state, message=message))

    def _fold(self, manifest: Manifest) -> None:
        """The journal as a part; it counts from the moment the manifest names it."""
        journal = self.folder.path / journal_name(self.manifest)
        if self._rows:
            part = f"metrics-{parts_of(self.manifest) + 1:04d}"
            content = bytes(self._unput) if self._unput else journal.read_bytes()
            buffer = io.BytesIO()
            pl.concat(list(_chunks(content))).write_parquet(buffer, compression="zstd")
            files.write(self.folder.path / f"{part}.parquet", buffer.getvalue())
            manifest = replace(manifest, files={**manifest.files, part: f"{part}.parquet"})
        self.folder.put(manifest)
        self.manifest = manifest
        self._rows = self._end = 0
        self._unput.clear()
        with contextlib.suppress(OSError, SondeError):
            journal.unlink(missing_ok=True)


def _new_folder(root: Place, name: str, about: Mapping[str, Any], session: Mapping[str, Any]) -> RunFolder:
    """A folder under this name, or name-2, name-3, … where it is taken."""
    for number in range(1, 10_000):
        folder = RunFolder(root / (name if number == 1 else f"{name}-{number}"))
        if folder.exists():
            continue
        known = {"format": FORMAT, "id": folder.id, "kind": KIND, "about": dict(about), "config": None}
        manifest = {
            "format": FORMAT,
            "state": "unfinished",
            "epoch": None,
            "step": 0,
            "files": {},
            "sessions": [dict(session)],
        }
        contents = {"run.json": known, "manifest.json": manifest}
        try:
            files.write_folder(
                folder.path,
                {
                    file: json.dumps(what, indent=1, ensure_ascii=False).encode()
                    for file, what in contents.items()
                },
            )
        except SondeError:
            if folder.exists():  # somebody else was first
                continue
            raise
        return folder
    raise SondeError(f"{root} holds ten thousand runs named {name}: choose another name=")


def parts_of(manifest: Manifest) -> int:
    return sum(name.startswith("metrics-") for name in manifest.files)


def journal_name(manifest: Manifest) -> str:
    """The journal of what no part holds yet."""
    return f"journal-{parts_of(manifest) + 1:04d}.chunks"


def read_watched(folder: RunFolder) -> tuple[Manifest, pl.DataFrame]:
    """The visible rows: every part, then the journal; follows a writer that moves on meanwhile."""
    manifest = folder.manifest()
    while True:
        try:
            found = [
                _part(folder.path / file) for name, file in sorted(manifest.files.items()) if name != "facts"
            ]
            found += _journal(folder.path / journal_name(manifest))
        except FileNotFoundError as missing:
            newer = folder.manifest()
            if newer == manifest:
                raise SondeError(f"{missing.filename} is missing, though manifest.json names it") from None
            manifest = newer
            continue
        newer = folder.manifest()
        if newer.files == manifest.files:
            return newer, pl.concat([pl.DataFrame(schema=WATCHED), *found])
        manifest = newer


def read_facts(folder: RunFolder) -> dict[str, Any]:
    """What the watch saw once; empty before the end of the first step."""
    named = folder.manifest().files.get("facts")
    if named is None:
        return {}
    path = folder.path / named
    try:
        known: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SondeError(f"{path} cannot be read ({error}): remove {folder.path}") from None
    return known


def _part(path: Place) -> pl.DataFrame:
    try:
        rows = pl.read_parquet(io.BytesIO(path.read_bytes()))
    except FileNotFoundError:
        raise
    except (pl.exceptions.PolarsError, OSError) as error:
        raise SondeError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): remove {path.parent}"
        ) from None
    if rows.schema != WATCHED:
        raise SondeError(f"{path} has the columns of another version: remove {path.parent}")
    return rows


def _journal(path: Place) -> list[pl.DataFrame]:
    try:
        return list(_chunks(path.read_bytes()))
    except FileNotFoundError:
        return []


def _chunk(rows: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    rows.write_ipc_stream(buffer)
    content = buffer.getvalue()
    return _HEAD.pack(len(content), zlib.crc32(content)) + content


def _chunks(content: bytes) -> Iterator[pl.DataFrame]:
    """The whole chunks; a torn one and what follows it were never there."""
    at = 0
    while at + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        chunk = content[at : at + length]
        if len(chunk) < length or zlib.crc32(chunk) != checksum:
            return
        yield pl.read_ipc_stream(io.BytesIO(chunk))
        at += length


def folder_name(text: str) -> str:
    """A name for a folder: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "watched"
