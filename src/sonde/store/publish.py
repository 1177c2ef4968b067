"""A store to hand round: rows and configurations, without weights and without what only the machine's owner needs."""

from collections.abc import Iterable
from dataclasses import replace

from sonde.store import files
from sonde.store.checksums import checksum
from sonde.store.folder import RunFolder, manifest_bytes
from sonde.store.place import Place
from sonde.store.run import without_machine
from sonde.store.schemas import ENDED, WATCHED


def publish(root: Place, out: Place, runs: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Copy what can be read again by every command: the runs written, and those left out with the reason.

    Checksums are those of the copies, so `sonde verify` vouches for what was handed round.
    """
    written, left_out = [], {}
    for id in runs:
        folder = RunFolder(root / id)
        files.refuse_link(folder.path)
        manifest = folder.manifest()
        described = folder.description(manifest)
        if described.get("kind") == WATCHED:
            left_out[id] = "it was watched, and its rows are not those of a trained run"
        elif manifest.state not in ENDED:
            left_out[id] = "it has not come to its end"
        else:
            contents = {
                name: folder.content(name, manifest, follow=False)
                for name in ("run.json", *described.get("guests", []), manifest.files["metrics"])
            }
            kept = replace(
                without_machine(manifest),
                files={"metrics": manifest.files["metrics"]},
                checksums={name: checksum(content) for name, content in contents.items()},
            )
            manifest_of_copy = manifest_bytes(kept)
            if not _is_there(out / id, manifest_of_copy):
                files.write_folder(out / id, {**contents, "manifest.json": manifest_of_copy})
            written.append(id)
    return written, left_out


def _is_there(copy: Place, manifest: bytes) -> bool:
    """Whether an export that was interrupted wrote the same copy: a folder appears with all its files."""
    try:
        return (copy / "manifest.json").read_bytes() == manifest
    except OSError:
        return False
