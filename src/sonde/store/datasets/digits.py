"""The handwritten digits that scikit-learn brings along.  N samples, H height, W width.

Alpaydin & Kaynak (1998), "Optical recognition of handwritten digits", UCI Machine Learning Repository.
"""

import gzip
import importlib.util
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sonde.core.errors import SondeError

SAMPLES = 1797


def read_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images N×8×8 with values 0..16, and labels.

    The file is read directly: importing scikit-learn takes seconds, reading it milliseconds.
    """
    path = _path()
    try:
        text = gzip.decompress(path.read_bytes())
        table = np.array(text.replace(b"\n", b",").strip(b",").split(b","), np.float32).reshape(SAMPLES, 65)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise SondeError(f"cannot read {path} ({error}): `pip install --force-reinstall scikit-learn`") from error
    return table[:, :64].reshape(-1, 8, 8), table[:, 64].astype(np.int64)


def _path() -> Path:
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise SondeError("the digits come with scikit-learn, which is not installed: `pip install scikit-learn`")
    return Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
