"""Classify small handwritten digits.  N samples."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from sonde.core.generators import generator
from sonde.core.validated import validated
from sonde.store.datasets.digits import read_digits
from sonde.store.files import Place
from sonde.tasks.samples import Samples
from sonde.tasks.task import Data

TEST = 360


@validated
class Digits:
    """scikit-learn's 1,797 images of 8×8 pixels, cross entropy.

    1,437 train and 360 test; the split is the same for every seed.  Pixels are shifted and scaled to mean 0 and
    standard deviation 1 over the training images.
    """

    label: ClassVar[str] = "digits"
    shape: ClassVar[tuple[int, ...]] = (1, 8, 8)
    outputs: ClassVar[int] = 10
    classifies: ClassVar[bool] = True

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        """Nothing to do: the samples are bundled."""

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        pixels, labels = read_digits()
        x, y_N = torch.from_numpy(pixels).double()[:, None], torch.from_numpy(labels)
        order_N = torch.randperm(len(x), generator=generator(0, "digits/split"))
        train_N, test_N = order_N[TEST:], order_N[:TEST]
        x = (x - x[train_N].mean()) / x[train_N].std(correction=0)

        def split(chosen_N: Tensor) -> tuple[Tensor, Tensor]:
            return x[chosen_N].to(device, dtype), y_N[chosen_N].to(device)

        return Samples(split(train_N), split(test_N))
