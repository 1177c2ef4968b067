"""The files of one run, in the folder that is named after its id.

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

from sonde.core.errors import SondeError
from sonde.core.run_ids import config_digest, run_id
from sonde.metrics.rows import SCHEMA, empty
from sonde.store import files
from sonde.store.files import ASIDE, JSON_BYTES, Place, is_sealed, refuse_rows, seal
from sonde.store.parquet import read_table
from sonde.store.schemas import ENDED, WATCHED_KIND, Checksum, Manifest, Trained, Watched, checksum, validate_as

_R = TypeVar("_R")

_FORMAT = 1  # of run.json
UNSEALED, SEALED = 1, 2  # formats of manifest.json
_STATE_FILES = re.compile(r"(metrics|weights|resume|initial|rule)(-\d+)?\.(parquet|safetensors)")
"""Names of the files of a state."""


class Damaged(SondeError):
    """A file is not what was stored."""


def how_to_restore(path: Place) -> str:
    """How to fix a run with a missing or damaged file, for a message."""
    return f"restore it from a copy, or move {path} away to train it anew"


def run_exists(path: Place) -> bool:
    """Whether there is such a folder; in an object store, such a manifest."""
    with files.clear_errors(path):
        return (path if isinstance(path, Path) else path / "manifest.json").exists()


# ── write ────────────────────────────────────────────────────────────────────────────────────────────
def create_run(
    path: Place,
    config: Mapping[str, Any],
    about: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    plugins: Mapping[str, bytes] | None = None,
    study: Mapping[str, str] | None = None,
) -> None:
    """Write the folder of a trained run, with its configuration and an empty manifest.

    `defaults` has the options that the configuration may leave out, `plugins` the files of code that it names,
    `study` name and scale of the study that trains it.
    """
    plugins = plugins or {}
    known = {"about": about, "config": config, "defaults": defaults or {}, "guests": list(plugins)}
    known |= {"recipe": recipe_key(config)} | ({"study": dict(study)} if study else {})
    begin_run(path, known, Manifest(), plugins)


def begin_run(
    path: Place, known: Mapping[str, Any], manifest: Manifest, beside: Mapping[str, bytes] | None = None
) -> Manifest:
    """Write the folder with its description, other files that stay, and its first manifest, which is returned."""
    contents = {**(beside or {}), "run.json": _json({"format": _FORMAT, "id": path.name, **known})}
    manifest = replace(manifest, checksums={name: checksum(content) for name, content in contents.items()})
    files.refuse_link(path)
    files.write_folder(path, {**contents, "manifest.json": manifest_bytes(manifest)})
    return manifest


def commit(path: Place, manifest: Manifest, rows: pl.DataFrame, tensors: Mapping[str, bytes]) -> Manifest:
    """Make a new state visible, then remove the files of the one before.

    An ended run keeps its files under their plain names; it has nothing to resume.
    """
    files.refuse_link(path)
    contents = {"metrics.parquet": parquet(rows)}
    refuse_rows(rows.height, len(contents["metrics.parquet"]), path, how_to_restore(path))
    contents |= {f"{name}.safetensors": content for name, content in tensors.items()}
    mark = "" if manifest.state in ENDED else f"-{manifest.epoch}"
    checksums = _lasting(path, manifest)
    names: dict[str, str] = {}
    for name, content in contents.items():
        stem, suffix = name.split(".")
        names[stem] = f"{stem}{mark}.{suffix}"
        checksums[names[stem]] = checksum(content)
        files.write(path / names[stem], content)
    manifest = replace(manifest, files=names, checksums=checksums)
    put_manifest(path, manifest)
    clean_up(path, manifest)
    return manifest


def _lasting(path: Place, manifest: Manifest) -> dict[str, Checksum]:
    """Checksums of the files that every state shares; of a run that 0.1.0 began, taken now."""
    before = manifest if manifest.checksums is not None else read_manifest(path)
    if before.checksums is not None:
        state = set(before.files.values())
        return {name: known for name, known in before.checksums.items() if name not in state}
    _, described = _read_json(path / "run.json")
    names = ["run.json", *described.get("guests", [])]
    return {name: checksum(files.read(path / name)) for name in names}


def put_manifest(path: Place, manifest: Manifest) -> None:
    """Write the manifest: its state becomes the visible one."""
    files.refuse_link(path)
    files.write(path / "manifest.json", manifest_bytes(manifest))


def clean_up(path: Place, manifest: Manifest) -> None:
    """Remove files of older states and of interrupted writers."""
    files.refuse_link(path)
    with files.clear_errors(path):
        for file in path.iterdir():
            if is_left_over(file.name, manifest):
                file.unlink(missing_ok=True)


# ── read ─────────────────────────────────────────────────────────────────────────────────────────────
def read_manifest(run: Place) -> Manifest:
    """Read the manifest of the visible state; raise where it is not what was written."""
    path, fix = run / "manifest.json", how_to_restore(run)
    content, known = _read_json(path)
    if known["format"] not in (UNSEALED, SEALED):
        said = f"format is {known['format']!r}, this version reads {UNSEALED} and {SEALED}"
        raise SondeError(f"{path}: {said}; {fix}")
    sealed = known.pop("format") == SEALED
    if sealed and not is_sealed(content):
        raise Damaged(f"{path} is not what was stored (its SHA-256 is another): {fix}")
    for key in ("state", "epoch", "files", *(("checksums", "sha256") if sealed else ())):
        if key not in known:
            raise SondeError(f"{path} has no key {key!r}: {fix}")
    if sealed:
        del known["sha256"]
    elif "checksums" in known:
        raise Damaged(f"{path} has checksums, which format {UNSEALED} has not: {fix}")
    manifest = validate_as(Manifest, known, str(path), fix)
    if manifest.checksums is not None:
        for name in ("run.json", *manifest.files.values()):
            if name not in manifest.checksums:
                raise SondeError(f"{path} names {name} without a checksum: {fix}")
    return manifest


def read_description(run: Place, manifest: Manifest) -> dict[str, Any]:
    """Read run.json; raise unless it is what was stored, under the id of its configuration."""
    path, fix = run / "run.json", how_to_restore(run)
    content, known = _read_json(path)
    verified(path, content, manifest)
    if known["format"] != _FORMAT:
        raise SondeError(f"{path}: format is {known['format']!r}, this version reads {_FORMAT}; {fix}")
    if known.get("id") != run.name:
        raise SondeError(f"{path}: id is {known.get('id')!r}, but the folder is {run.name!r}: {fix}")
    if known.get("kind") == WATCHED_KIND:
        validate_as(Watched, known, str(path), fix)
        return known
    validate_as(Trained, known, str(path), fix)
    if (own := run_id(known["config"])) != run.name:
        raise SondeError(f"{path}: its configuration is that of {own!r}, not of {run.name!r}: {fix}")
    refuse_other_recipe(known, path, fix)
    return known


def read_trained(path: Place, manifest: Manifest | None = None) -> tuple[Manifest, pl.DataFrame]:
    """Read the visible state of a trained run: its manifest and its tidy rows."""

    def rows(manifest: Manifest) -> pl.DataFrame:
        named = manifest.files.get("metrics")
        return empty() if named is None else read_part(path / named, manifest, SCHEMA)

    return read_visible(path, rows, manifest)


def read_visible(path: Place, read: Callable[[Manifest], _R], manifest: Manifest | None = None) -> tuple[Manifest, _R]:
    """Call `read` on the visible state; again on the newer one where a writer replaced it meanwhile."""
    manifest = manifest or read_manifest(path)
    while True:
        try:
            return manifest, read(manifest)
        except (FileNotFoundError, Damaged) as error:
            newer = read_manifest(path)
            if newer == manifest:
                if isinstance(error, Damaged):
                    raise
                missing = path / Path(str(error.filename or error)).name
                raise SondeError(
                    f"{missing} is missing, though manifest.json names it: {how_to_restore(path)}"
                ) from None
            manifest = newer


def read_part(file: Place, manifest: Manifest, schema: pl.Schema) -> pl.DataFrame:
    """The rows of a Parquet file of a state."""
    run = file.parent
    return read_table(read_content(file, manifest), file, run.name, schema, how_to_restore(run))


def read_tensors(path: Place, name: str) -> bytes:
    """The bytes of a safetensors file of the visible state."""
    manifest = read_manifest(path)
    if name not in manifest.files:
        raise SondeError(f"run {path.name} has no {name} in its state: {how_to_restore(path)}")
    file = path / manifest.files[name]
    with files.clear_errors(file):
        return read_content(file, manifest)


def read_content(file: Place, manifest: Manifest, *, follow: bool = True) -> bytes:
    """Read a file of a run and compare it with its checksum."""
    try:
        return verified(file, files.read(file, follow=follow), manifest)
    except FileNotFoundError:
        raise
    except OSError as error:
        said = error.strerror or error
        raise SondeError(f"{file} cannot be read ({said}): {how_to_restore(file.parent)}") from None


def verified(file: Place, content: bytes, manifest: Manifest) -> bytes:
    """The content of a file, compared with its checksum; a manifest without checksums is not compared."""
    if manifest.checksums is not None and checksum(content) != manifest.checksums.get(file.name):
        fix = how_to_restore(file.parent)
        raise Damaged(f"{file} is not what was stored (its SHA-256 or size is another): {fix}")
    return content


def _read_json(path: Place) -> tuple[bytes, dict[str, Any]]:
    """The content of a JSON file of a run, and what it says."""
    fix = how_to_restore(path.parent)
    try:
        content = files.read(path, JSON_BYTES)
        known = from_json(content)
    except FileNotFoundError:
        raise SondeError(f"{path} is missing: {path.parent.name} is not a complete run folder; {fix}") from None
    except OSError as error:
        raise SondeError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise Damaged(f"{path} is not JSON ({error}): {fix}") from None
    if not isinstance(known, dict) or "format" not in known:
        raise SondeError(f"{path} has no key 'format': Sonde did not write it, or it is damaged; {fix}")
    return content, known


# ── the log ──────────────────────────────────────────────────────────────────────────────────────────
def log_file(path: Place) -> Place:
    """The log file of the run in this folder."""
    return path / "log.txt"


def append_log(path: Place, text: str) -> None:
    """Add to the run's log; an object is put anew."""
    log = log_file(path)
    files.refuse_link(path)
    files.refuse_link(log)
    if not isinstance(log, Path):
        files.write(log, (read_log(path) + text).encode())
        return
    with files.clear_errors(log), log.open("a", encoding="utf-8") as file:
        file.write(text)


def read_log(path: Place) -> str:
    """The run's log; empty where there is none."""
    try:
        return files.read(log_file(path), JSON_BYTES).decode(errors="replace")
    except (OSError, SondeError):
        return ""


# ── recipe keys, names and formats ───────────────────────────────────────────────────────────────────
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
    """The manifest as JSON with its own checksum; without it for a state that 0.1.0 wrote."""
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
