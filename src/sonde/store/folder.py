"""One run's folder.

    run.json       what it is: format, id, configuration, and facts derived from it for readers
    manifest.json  which state is visible: epoch, files and their checksums, time spent, where it was computed
    metrics…       tidy rows in Parquet          weights…   safetensors
    mine.py        a copy of each file of code that the configuration names as a plugin
    resume…        optimiser, rule and generators in safetensors; only while the run is unfinished
    initial…       the weights at initialisation     rule…   what the rule owns; once the run has ended
    log.txt        the engine's log of its sessions; it belongs to no state

A state is visible when the manifest that names its files is renamed into place, all at once or not at all; in an
object store, when it is put, and there a run exists when its manifest does.

The manifest has SHA-256 and size of every other file but the log, and ends with the SHA-256 of its own content.
Whatever is read is compared with them.  0.1.0 wrote manifests of format 1, without checksums.
"""

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from pydantic_core import from_json

from sonde.core.atomic import ASIDE
from sonde.core.errors import SondeError
from sonde.core.run_ids import config_digest, run_id
from sonde.metrics.rows import SCHEMA, empty
from sonde.store import files
from sonde.store.files import JSON_BYTES, Place, is_sealed, refuse_rows, seal
from sonde.store.parquet import read_table
from sonde.store.schemas import ENDED, WATCHED_KIND, Checksum, Manifest, Trained, Watched, checksum, validate_as

_R = TypeVar("_R")

_FORMAT = 1  # of run.json
UNSEALED, SEALED = 1, 2  # formats of manifest.json
_STATE_FILES = re.compile(r"(metrics|weights|resume|initial|rule)(-\d+)?\.(parquet|safetensors)")
"""How the files of a state are called."""


class Damaged(SondeError):
    """A file is not what was stored."""


class RunFolder:
    """A run in a store: created once, then one visible state after the other."""

    def __init__(self, path: Place) -> None:
        self.path = path

    @property
    def id(self) -> str:
        """The run's id: the name of the folder."""
        return self.path.name

    @property
    def fix(self) -> str:
        """What helps where a file is not what it should be."""
        return f"restore it from a copy, or move {self.path} away to train it anew"

    def exists(self) -> bool:
        """Whether there is such a folder; in an object store, such a manifest."""
        with files.clear_errors(self.path):
            return (self.path if isinstance(self.path, Path) else self.path / "manifest.json").exists()

    def create(
        self,
        config: Mapping[str, Any],
        about: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        plugins: Mapping[str, bytes] | None = None,
        study: Mapping[str, str] | None = None,
    ) -> None:
        """Write the folder with its configuration and an empty manifest.

        `defaults` has the options that the configuration may leave out, `plugins` the files of code that it names,
        `study` name and scale of the study that trains it.
        """
        plugins = plugins or {}
        known = {"about": about, "config": config, "defaults": defaults or {}, "guests": list(plugins)}
        known |= {"recipe": recipe_key(config)} | ({"study": dict(study)} if study else {})
        self.begin(known, Manifest(), plugins)

    def begin(self, known: Mapping[str, Any], manifest: Manifest, beside: Mapping[str, bytes] | None = None) -> None:
        """The folder with its description, other files that stay, and its first manifest."""
        contents = {**(beside or {}), "run.json": _json({"format": _FORMAT, "id": self.id, **known})}
        manifest = replace(manifest, checksums={name: checksum(content) for name, content in contents.items()})
        files.refuse_link(self.path)
        files.write_folder(self.path, {**contents, "manifest.json": manifest_bytes(manifest)})

    def manifest(self) -> Manifest:
        """The manifest of the visible state; an error if it is not what was written."""
        path = self.path / "manifest.json"
        content, known = self._json(path)
        if known["format"] not in (UNSEALED, SEALED):
            said = f"format is {known['format']!r}, this version reads {UNSEALED} and {SEALED}"
            raise SondeError(f"{path}: {said}; {self.fix}")
        sealed = known.pop("format") == SEALED
        if sealed and not is_sealed(content):
            raise Damaged(f"{path} is not what was stored (its SHA-256 is another): {self.fix}")
        for key in ("state", "epoch", "files", *(("checksums", "sha256") if sealed else ())):
            if key not in known:
                raise SondeError(f"{path} has no key {key!r}: {self.fix}")
        if sealed:
            del known["sha256"]
        elif "checksums" in known:
            raise Damaged(f"{path} has checksums, which format {UNSEALED} has not: {self.fix}")
        manifest = validate_as(Manifest, known, str(path), self.fix)
        if manifest.checksums is not None:
            for name in ("run.json", *manifest.files.values()):
                if name not in manifest.checksums:
                    raise SondeError(f"{path} names {name} without a checksum: {self.fix}")
        return manifest

    def description(self, manifest: Manifest | None = None) -> dict[str, Any]:
        """What the run is.  A trained run's id is that of its configuration."""
        path = self.path / "run.json"
        content, known = self._json(path)
        self.verify("run.json", content, manifest or self.manifest())
        if known["format"] != _FORMAT:
            raise SondeError(f"{path}: format is {known['format']!r}, this version reads {_FORMAT}; {self.fix}")
        if known.get("id") != self.id:
            raise SondeError(f"{path}: id is {known.get('id')!r}, but the folder is {self.id!r}: {self.fix}")
        if known.get("kind") == WATCHED_KIND:
            validate_as(Watched, known, str(path), self.fix)
            return known
        validate_as(Trained, known, str(path), self.fix)
        if (own := run_id(known["config"])) != self.id:
            raise SondeError(f"{path}: its configuration is that of {own!r}, not of {self.id!r}: {self.fix}")
        refuse_other_recipe(known, path, self.fix)
        return known

    def configuration(self) -> dict[str, Any]:
        """The stored configuration of a trained run, as plain data."""
        described = self.description()
        if described.get("kind") == WATCHED_KIND:
            raise SondeError(f"run {self.id} was watched: it has no configuration, and nothing to recompute")
        config: dict[str, Any] = described["config"]
        return config

    def verify(self, name: str, content: bytes, manifest: Manifest) -> bytes:
        """The content of a file, if it is what the manifest says; one without checksums is believed."""
        if manifest.checksums is not None and checksum(content) != manifest.checksums.get(name):
            raise Damaged(f"{self.path / name} is not what was stored (its SHA-256 or size is another): {self.fix}")
        return content

    def commit(self, manifest: Manifest, rows: pl.DataFrame, tensors: Mapping[str, bytes]) -> Manifest:
        """Make a new state visible, then remove the files of the one before.

        An ended run keeps its files under their plain names; it has nothing to resume.
        """
        files.refuse_link(self.path)
        contents = {"metrics.parquet": parquet(rows)}
        refuse_rows(rows.height, len(contents["metrics.parquet"]), self.path, self.fix)
        contents |= {f"{name}.safetensors": content for name, content in tensors.items()}
        mark = "" if manifest.state in ENDED else f"-{manifest.epoch}"
        checksums = self.lasting(manifest)
        names: dict[str, str] = {}
        for name, content in contents.items():
            stem, suffix = name.split(".")
            names[stem] = f"{stem}{mark}.{suffix}"
            checksums[names[stem]] = checksum(content)
            files.write(self.path / names[stem], content)
        manifest = replace(manifest, files=names, checksums=checksums)
        self.put(manifest)
        self.clean_up(manifest)
        return manifest

    def lasting(self, manifest: Manifest) -> dict[str, Checksum]:
        """Checksums of the files that every state shares; of a run that 0.1.0 began, taken now."""
        before = manifest if manifest.checksums is not None else self.manifest()
        if before.checksums is not None:
            state = set(before.files.values())
            return {name: known for name, known in before.checksums.items() if name not in state}
        _, described = self._json(self.path / "run.json")
        names = ["run.json", *described.get("guests", [])]
        return {name: checksum(files.read(self.path / name)) for name in names}

    def put(self, manifest: Manifest) -> None:
        """Write the manifest: its state becomes the visible one."""
        files.refuse_link(self.path)
        files.write(self.path / "manifest.json", manifest_bytes(manifest))

    def clean_up(self, manifest: Manifest) -> None:
        """Remove files of older states and of interrupted writers."""
        files.refuse_link(self.path)
        with files.clear_errors(self.path):
            for file in self.path.iterdir():
                if is_left_over(file.name, manifest):
                    file.unlink(missing_ok=True)

    def read(self, manifest: Manifest | None = None) -> tuple[Manifest, pl.DataFrame]:
        """The visible state and its tidy rows."""

        def rows(manifest: Manifest) -> pl.DataFrame:
            named = manifest.files.get("metrics")
            return empty() if named is None else self.table(named, manifest, SCHEMA)

        return self.follow(rows, manifest)

    def follow(self, read: Callable[[Manifest], _R], manifest: Manifest | None = None) -> tuple[Manifest, _R]:
        """Call `read` on the visible state; again on the newer one where a writer replaced it meanwhile."""
        manifest = manifest or self.manifest()
        while True:
            try:
                return manifest, read(manifest)
            except (FileNotFoundError, Damaged) as error:
                newer = self.manifest()
                if newer == manifest:
                    if isinstance(error, Damaged):
                        raise
                    missing = self.path / Path(str(error.filename or error)).name
                    raise SondeError(f"{missing} is missing, though manifest.json names it: {self.fix}") from None
                manifest = newer

    def table(self, name: str, manifest: Manifest, schema: pl.Schema) -> pl.DataFrame:
        """The rows of a Parquet file of a state."""
        path = self.path / name
        return read_table(self.content(name, manifest), path, self.id, schema, self.fix)

    def tensors(self, name: str) -> bytes:
        """The bytes of a safetensors file of the visible state."""
        manifest = self.manifest()
        if name not in manifest.files:
            raise SondeError(f"run {self.id} has no {name} in its state: {self.fix}")
        with files.clear_errors(self.path / manifest.files[name]):
            return self.content(manifest.files[name], manifest)

    def content(self, name: str, manifest: Manifest, *, follow: bool = True) -> bytes:
        """The bytes of a file, if they are what the manifest says."""
        path = self.path / name
        try:
            return self.verify(name, files.read(path, follow=follow), manifest)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SondeError(f"{path} cannot be read ({error.strerror or error}): {self.fix}") from None

    def _json(self, path: Place) -> tuple[bytes, dict[str, Any]]:
        """The content of a JSON file, and what it says."""
        try:
            content = files.read(path, JSON_BYTES)
            known = from_json(content)
        except FileNotFoundError:
            raise SondeError(
                f"{path} is missing: {path.parent.name} is not a complete run folder; {self.fix}"
            ) from None
        except OSError as error:
            raise SondeError(f"{path}: {error.strerror or error}") from None
        except ValueError as error:
            raise Damaged(f"{path} is not JSON ({error}): {self.fix}") from None
        if not isinstance(known, dict) or "format" not in known:
            raise SondeError(f"{path} has no key 'format': Sonde did not write it, or it is damaged; {self.fix}")
        return content, known

    @property
    def log_path(self) -> Place:
        """The run's log file."""
        return self.path / "log.txt"

    def log(self, text: str) -> None:
        """Add to the run's log; an object is put anew."""
        path = self.log_path
        files.refuse_link(self.path)
        files.refuse_link(path)
        if not isinstance(path, Path):
            files.write(path, (self.read_log() + text).encode())
            return
        with files.clear_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(text)

    def read_log(self) -> str:
        """The run's log; empty where there is none."""
        try:
            return files.read(self.log_path, JSON_BYTES).decode(errors="replace")
        except (OSError, SondeError):
            return ""


def recipe_key(config: Mapping[str, Any]) -> str:
    """The digest of a configuration without its seed: equal for runs that differ in nothing else."""
    return config_digest({key: value for key, value in config.items() if key != "seed"})


def refuse_other_recipe(description: Mapping[str, Any], where: object, fix: str) -> None:
    """Raise where a description has a recipe key that is not that of its configuration; 0.1.0 stored none."""
    if "recipe" in description and description["recipe"] != recipe_key(description["config"]):
        raise SondeError(f"{where}: its recipe key is not that of its configuration: {fix}")


def is_left_over(name: str, manifest: Manifest) -> bool:
    """Whether a file was written for a state that is not the visible one."""
    return name not in manifest.files.values() and (name.startswith(ASIDE) or _STATE_FILES.fullmatch(name) is not None)


def as_tree(manifest: Manifest) -> dict[str, Any]:
    """The manifest as plain JSON values."""
    known = dict(vars(manifest))
    if manifest.checksums is not None:
        known["checksums"] = {name: dict(vars(one)) for name, one in manifest.checksums.items()}
    return known


def manifest_bytes(manifest: Manifest) -> bytes:
    """A state of 0.1.0 whose manifest is written once more stays one."""
    known = as_tree(manifest)
    if manifest.checksums is None:
        del known["checksums"]
        return _json({"format": UNSEALED, **known})
    return seal({"format": SEALED, **known})


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def parquet(rows: pl.DataFrame) -> bytes:
    """The rows as a Parquet file, compressed with zstd."""
    buffer = io.BytesIO()
    rows.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()
