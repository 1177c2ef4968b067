"""One run's folder.

    run.json       what it is: format, id, configuration, and facts derived from it for readers
    manifest.json  which state is visible: epoch, files, time spent, where and with what it was computed
    metrics…       tidy rows in Parquet          weights…   safetensors
    mine.py        a copy of each file of code that the configuration names as a guest
    resume…        optimiser, rule and generators in safetensors; only while the run is unfinished
    initial…       the weights at initialisation     rule…   what the rule owns; once the run has ended
    log.txt        what an engine has to tell of its sessions; no state names it, and none removes it

A state is visible when the manifest that names its files is renamed into place, all at once or not at all; in an
object store, when it is put, and there a run exists when its manifest does.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from sonde.errors import SondeError
from sonde.rows import SCHEMA, empty
from sonde.store import files
from sonde.store.place import Place

FORMAT = 1
State = Literal["unfinished", "complete", "diverged", "failed"]
ENDED: tuple[State, ...] = ("complete", "diverged")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Which state of the run is visible, and how it came to be."""

    state: State = "unfinished"
    epoch: int | None = None  # None: created, nothing measured yet
    step: int = 0
    files: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    message: str | None = None


class RunFolder:
    """A run in a store: created once, then one visible state after the other."""

    def __init__(self, path: Place) -> None:
        self.path = path

    @property
    def id(self) -> str:
        return self.path.name

    def exists(self) -> bool:
        return (self.path if isinstance(self.path, Path) else self.path / "manifest.json").exists()

    def create(
        self,
        config: Mapping[str, Any],
        about: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        guests: Mapping[str, bytes] | None = None,
    ) -> None:
        """The folder with its configuration and an empty manifest.

        `defaults` has the options that the configuration may leave out, `guests` the files of code it was made from.
        """
        guests = guests or {}
        description = {"format": FORMAT, "id": self.id, "about": about, "config": config}
        description |= {"defaults": defaults or {}, "guests": list(guests)}
        contents = {**guests, "run.json": _json(description)}
        contents["manifest.json"] = _json(self._with_format(Manifest()))
        files.write_folder(self.path, contents)

    def description(self) -> dict[str, Any]:
        return _read(self.path / "run.json", ("id", "about", "config"))

    def manifest(self) -> Manifest:
        known = _read(self.path / "manifest.json", ("state", "epoch", "files"))
        known.pop("format")
        try:
            return Manifest(**known)
        except TypeError as error:
            raise SondeError(
                f"{self.path / 'manifest.json'}: {error}; it was written by another version"
            ) from None

    def commit(self, manifest: Manifest, rows: pl.DataFrame, tensors: Mapping[str, bytes]) -> Manifest:
        """Make a new state visible, then remove the files of the one before.

        An ended run keeps its files under their plain names; it has nothing to resume.
        """
        contents = {"metrics.parquet": _parquet(rows)}
        contents |= {f"{name}.safetensors": content for name, content in tensors.items()}
        mark = "" if manifest.state in ENDED else f"-{manifest.epoch}"
        names: dict[str, str] = {}
        for name, content in contents.items():
            stem, suffix = name.split(".")
            names[stem] = f"{stem}{mark}.{suffix}"
            files.write(self.path / names[stem], content)
        manifest = replace(manifest, files=names)
        self.put(manifest)
        self.sweep(manifest)
        return manifest

    def put(self, manifest: Manifest) -> None:
        files.write(self.path / "manifest.json", _json(self._with_format(manifest)))

    def sweep(self, manifest: Manifest) -> None:
        """Remove what no manifest names: older states and what an interrupted writer left behind."""
        keep = {"run.json", "manifest.json", *manifest.files.values()}
        with files.clear_errors(self.path):
            for file in self.path.iterdir():
                if file.name not in keep and (file.name.startswith(files.ASIDE) or file.suffix in KINDS):
                    file.unlink(missing_ok=True)

    def read(self) -> tuple[Manifest, pl.DataFrame]:
        """The visible state and its tidy rows; follows a writer that moves on meanwhile."""
        manifest = self.manifest()
        while True:
            named = manifest.files.get("metrics")
            if named is None:
                return manifest, empty()
            try:
                return manifest, self._rows(self.path / named)
            except FileNotFoundError:
                newer = self.manifest()
                if newer == manifest:
                    path = self.path / named
                    raise SondeError(
                        f"{path} is missing, though manifest.json names it: {_fix(self.path)}"
                    ) from None
                manifest = newer

    def _rows(self, path: Place) -> pl.DataFrame:
        try:
            rows = pl.read_parquet(io.BytesIO(path.read_bytes()))
        except FileNotFoundError:
            raise
        except (pl.exceptions.PolarsError, OSError) as error:
            raise SondeError(
                f"{path} cannot be read ({str(error).splitlines()[0]}): {_fix(self.path)}"
            ) from None
        if rows.schema != SCHEMA:
            raise SondeError(f"{path} has the columns of another version: {_fix(self.path)}")
        return rows

    def tensors(self, name: str) -> bytes:
        """The bytes of a safetensors file of the visible state."""
        path = self.path / self.manifest().files[name]
        with files.clear_errors(path):
            return path.read_bytes()

    @property
    def log_path(self) -> Place:
        return self.path / "log.txt"

    def log(self, text: str) -> None:
        """Add to the run's log; an object is put anew."""
        path = self.log_path
        if not isinstance(path, Path):
            files.write(path, (self.read_log() + text).encode())
            return
        with files.clear_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(text)

    def read_log(self) -> str:
        """The run's log; empty where there is none."""
        try:
            return self.log_path.read_bytes().decode(errors="replace")
        except OSError:
            return ""

    @staticmethod
    def _with_format(manifest: Manifest) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(manifest)}


KINDS = (".parquet", ".safetensors")


def _fix(run: Place) -> str:
    return f"remove {run} to train it anew"


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _parquet(rows: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    rows.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def _read(path: Place, needed: tuple[str, ...]) -> dict[str, Any]:
    """A JSON file of the store, or an error naming the file and the key."""
    fix = _fix(path.parent)
    try:
        known = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise SondeError(
            f"{path} is missing: {path.parent.name} is not a complete run folder; {fix}"
        ) from None
    except OSError as error:
        raise SondeError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise SondeError(f"{path} is not JSON ({error}): {fix}") from None
    if not isinstance(known, dict) or "format" not in known:
        raise SondeError(f"{path} has no key 'format': it was not written by this version; {fix}")
    if known["format"] != FORMAT:
        raise SondeError(f"{path}: format is {known['format']!r}, this version reads {FORMAT}; {fix}")
    for key in needed:
        if key not in known:
            raise SondeError(f"{path} has no key {key!r}: {fix}")
    return known
