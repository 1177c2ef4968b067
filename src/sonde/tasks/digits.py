"""Classify small handwritten digits.  N samples.

Alpaydin & Kaynak (1998), "Optical recognition of handwritten digits", UCI Machine Learning Repository.
"""

import gzip
import importlib.util
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.core.validated import validated
from sonde.store.files import Place
from sonde.tasks.task import Data, Samples, Task

_SAMPLES = 1797


def read_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read images N×8×8 with values 0..16, and labels.

    The file of scikit-learn is read directly: importing scikit-learn takes seconds.
    """
    path = _path()
    try:
        text = gzip.decompress(path.read_bytes())
        table = np.array(text.replace(b"\n", b",").strip(b",").split(b","), np.float32).reshape(_SAMPLES, 65)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise SondeError(f"cannot read {path} ({error}): `pip install --force-reinstall scikit-learn`") from error
    return table[:, :64].reshape(-1, 8, 8), table[:, 64].astype(np.int64)


def _path() -> Path:
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise SondeError("the digits come with scikit-learn, which is not installed: `pip install scikit-learn`")
    return Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"


_TEST = 360


@validated
class Digits(Task):
    """scikit-learn's 1,797 images of 8×8 pixels, cross entropy.

    1,437 train and 360 test; the split is the same for every seed.  Pixels are shifted and scaled to mean 0 and
    standard deviation 1 over the training images.
    """

    label: ClassVar[str] = "digits"
    shape: ClassVar[tuple[int, ...]] = (1, 8, 8)
    outputs: ClassVar[int] = 10

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        pixels, labels = read_digits()
        x, y_N = torch.from_numpy(pixels).double()[:, None], torch.from_numpy(labels)
        order_N = torch.randperm(len(x), generator=generator(0, "digits/split"))
        train_N, test_N = order_N[_TEST:], order_N[:_TEST]
        x = (x - x[train_N].mean()) / x[train_N].std(correction=0)

        def split(chosen_N: Tensor) -> tuple[Tensor, Tensor]:
            return x[chosen_N].to(device, dtype), y_N[chosen_N].to(device)

        return Samples(split(train_N), split(test_N))
