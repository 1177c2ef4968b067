"""Which folders hold data sets and what is decoded from them."""

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """`SONDE_CACHE`, else the user's cache folder."""
    named = os.environ.get("SONDE_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(platformdirs.user_cache_dir("sonde", appauthor=False))


def data_folder(given: Path | None = None) -> Path:
    """The root below which data sets are looked for: as given, else `SONDE_DATA`, else the cache folder."""
    if given is not None:
        return Path(given).expanduser()
    named = os.environ.get("SONDE_DATA")
    return Path(named).expanduser() if named else cache_folder()
