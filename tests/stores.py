"""What the tests of stores share: an object store in memory, and a reader beside a writer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import fsspec
import polars as pl

from sonde.rows import Reading, rows_of
from sonde.store.place import place
from sonde.store.remote import Remote
from sonde.store.run import Manifest, RunFolder


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


def rows(epoch: int) -> pl.DataFrame:
    return rows_of("r", epoch, [Reading(metric="loss", value=float(epoch), samples=1)], steps=[epoch])


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
