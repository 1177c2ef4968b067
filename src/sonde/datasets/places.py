"""Which folders hold data sets and what is decoded from them."""

import os
from pathlib import Path

import platformdirs

from sonde.store.place import Place, place


def cache_folder() -> Path:
    """`SONDE_CACHE`, else the user's cache folder."""
    named = os.environ.get("SONDE_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(platformdirs.user_cache_dir("sonde", appauthor=False))


def data_folder(given: Place | None = None) -> Place:
    """The root below which data sets are looked for: as given, else `SONDE_DATA`, else the cache folder."""
    named = place(given or os.environ.get("SONDE_DATA") or cache_folder())
    return named.expanduser() if isinstance(named, Path) else named
