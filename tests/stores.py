"""What the tests of stores share: an object store in memory, and a reader beside a writer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import fsspec
import polars as pl

from sonde.metrics.rows import WATCHED, Reading, rows_of
from sonde.store import files
from sonde.store.files import checksum, place
from sonde.store.folder import RunFolder
from sonde.store.remote import Remote
from sonde.store.schemas import Manifest


def at(url: str) -> Remote:
    found = place(url)
    assert isinstance(found, Remote)
    return found


@contextmanager
def memory() -> Iterator[None]:
    """What lies below memory:// is nobody else's."""
    store = fsspec.filesystem("memory").store
    store.clear()
    try:
        yield
    finally:
        store.clear()


def rows(epoch: int, run: str = "r") -> pl.DataFrame:
    return rows_of(run, epoch, [Reading(metric="loss", value=float(epoch), samples=1)], steps=[epoch])


def some_rows(step: int, many: int = 3, run: str = "net") -> pl.DataFrame:
    """Of a watched step."""
    values = [(run, None, step, i, "out_rms", 1.5, True, None, 4, f"layer {i}") for i in range(many)]
    return pl.DataFrame(values, schema=WATCHED, orient="row")


def forge(folder: RunFolder, name: str, content: bytes) -> None:
    """Another content under a file's name, with a manifest that was written for it: checksums are no signature."""
    manifest = folder.manifest()
    files.write(folder.path / name, content)
    assert manifest.checksums is not None
    folder.put(replace(manifest, checksums={**manifest.checksums, name: checksum(content)}))


def without_checksums(folder: RunFolder) -> None:
    """The run as 0.1.0 would have stored it."""
    folder.put(replace(folder.manifest(), checksums=None))


def assert_a_reader_sees_whole_states(folder: RunFolder) -> None:
    """While another thread commits one after the other."""
    folder.create({}, {})

    def write() -> None:
        for epoch in range(1, 60):
            folder.commit(Manifest(epoch=epoch), rows(epoch), {"weights": bytes([epoch])})

    seen = set()
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        while not writing.done():
            manifest, visible = folder.read()
            if manifest.epoch is not None:
                assert visible["epoch"].to_list() == [manifest.epoch]
                seen.add(manifest.epoch)
        writing.result()
    assert len(seen) > 3
