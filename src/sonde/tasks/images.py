"""Classify images: small handwritten digits, and CIFAR-10.  N samples, C channels, H height, W width.

Alpaydin & Kaynak (1998), "Optical recognition of handwritten digits", UCI Machine Learning Repository.
Krizhevsky (2009), "Learning multiple layers of features from tiny images".
"""

import gzip
import importlib.util
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.core.validated import validated
from sonde.network.losses import CROSS_ENTROPY, Loss
from sonde.store.datasets import CLASSES, SIDE, data_folder, find_or_mirror_cifar10
from sonde.store.datasets.decoded import PAD, Images, open_images
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
    standard deviation 1 over the training images.  With `random_labels` every image has a label that is drawn from the
    run's seed and has nothing to do with the image.
    """

    random_labels: bool = False

    shape: ClassVar[tuple[int, ...]] = (1, 8, 8)
    outputs: ClassVar[int] = 10

    @property
    def label(self) -> str:
        return "digits, random labels" if self.random_labels else "digits"

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        pixels, labels = read_digits()
        x, y_N = torch.from_numpy(pixels).double()[:, None], torch.from_numpy(labels)
        order_N = torch.randperm(len(x), generator=generator(0, "digits/split"))
        train_N, test_N = order_N[_TEST:], order_N[:_TEST]
        x = (x - x[train_N].mean()) / x[train_N].std(correction=0)
        if self.random_labels:
            y_N = _random_labels(len(x), self.outputs, seed, "digits")

        def split(chosen_N: Tensor) -> tuple[Tensor, Tensor]:
            return x[chosen_N].to(device, dtype), y_N[chosen_N].to(device)

        return Samples(split(train_N), split(test_N))


SHAPE = (3, SIDE, SIDE)
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


@validated
class Cifar10(Task):
    """CIFAR-10, 50,000 training and 10,000 test images of 3×32×32 pixels in 10 classes, cross entropy.

    With `augment`, training images get a black margin of 4 pixels, are cropped at random, and are mirrored with
    probability ½.  All channels are normalised.  `subset` keeps so many training images, the same random ones in every
    run; `test_subset` keeps so many of the first test images.  With `random_labels` every image has a label that is
    drawn from the run's seed and has nothing to do with the image (Zhang et al. 2017, arXiv:1611.03530).
    """

    augment: bool = True
    subset: Annotated[int, Ge(1)] | None = None
    test_subset: Annotated[int, Ge(1)] | None = None
    random_labels: bool = False

    shape: ClassVar[tuple[int, ...]] = SHAPE
    outputs: ClassVar[int] = CLASSES

    @property
    def label(self) -> str:
        images = "" if self.subset is None else f", {self.subset:,} images"
        augmented = "" if self.augment else ", not augmented"
        return f"CIFAR-10{images}{augmented}{', random labels' if self.random_labels else ''}"

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        """Find the images and decode them into the cache."""
        open_images(find_or_mirror_cifar10(data_folder(data_root)), on_progress)

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        return Cifar10Data(open_images(find_or_mirror_cifar10(data_folder(data_root))), self, device, dtype, seed)


class Cifar10Data:
    """Batches cut from memory-mapped pixels; only the pixels of a batch are converted to floats."""

    loss: Loss = CROSS_ENTROPY

    def __init__(self, images: Images, task: Cifar10, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.train_samples = _at_most(task.subset, len(images.train_label_N), "subset")
        self.test_samples = _at_most(task.test_subset, len(images.test_label_N), "test_subset")
        self.source: dict[str, str] | None = {"form": images.form, "fingerprint": images.fingerprint}
        self._augment = task.augment
        self._device, self._dtype = device, dtype
        self._chosen_N = torch.arange(self.train_samples)
        if task.subset is not None:
            order_N = torch.randperm(len(images.train_label_N), generator=generator(0, "cifar10/subset"))
            self._chosen_N = order_N[: task.subset]
        self._label_N = torch.from_numpy(images.train_label_N.astype(np.int64)).to(device)
        self._test_NCHW = images.test_NCHW
        self._test_label_N = torch.from_numpy(images.test_label_N.astype(np.int64)).to(device)
        if task.random_labels:
            for label_N, part in ((self._label_N, "train"), (self._test_label_N, "test")):
                label_N.copy_(_random_labels(len(label_N), task.outputs, seed, f"cifar10/{part}"))
        # A view: every place a crop of SIDE×SIDE can have in an image, as N × down × right × C × H × W.
        windows = sliding_window_view(images.train_NCHW, (SIDE, SIDE), axis=(2, 3))
        self._windows = windows.transpose(0, 2, 3, 1, 4, 5)
        mean_C, std_C = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (MEAN, STD))
        self._scale = (1 / (255 * std_C)).expand(SHAPE).contiguous().to(device, dtype)
        self._shift = (-mean_C / std_C).expand(SHAPE).contiguous().to(device, dtype)

    def steps(self, batch_size: int) -> int:
        return -(-self.train_samples // batch_size)

    def batches(self, batch_size: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass in a new order, with new crops and mirror images; the last batch may be smaller."""
        samples = self.train_samples
        chosen_N = self._chosen_N[torch.randperm(samples, generator=rng)]
        label_N = self._label_N[chosen_N.to(self._device)]
        place_N2 = torch.full((samples, 2), PAD)
        mirrored_N = torch.zeros(samples, dtype=torch.bool)
        if self._augment:
            place_N2 = torch.randint(2 * PAD + 1, (samples, 2), generator=rng)
            mirrored_N = torch.randint(2, (samples,), generator=rng).bool()
        which, down, right = chosen_N.numpy(), place_N2[:, 0].numpy(), place_N2[:, 1].numpy()
        mirrored = mirrored_N.numpy()
        for first in range(0, samples, batch_size):
            some = slice(first, first + batch_size)
            pixels_NCHW = self._windows[which[some], down[some], right[some]]
            mirror(pixels_NCHW, mirrored[some])
            yield self._normalised(pixels_NCHW), label_N[some]

    def test(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        some = slice(first, min(last, self.test_samples))
        return self._normalised(self._test_NCHW[some]), self._test_label_N[some]

    def _normalised(self, pixels_NCHW: NDArray[Any]) -> Tensor:
        """(pixels/255 − mean)/std, on the device: what crosses to it is bytes."""
        x_NCHW = torch.from_numpy(pixels_NCHW)
        if self._device.type == "cuda":
            x_NCHW = x_NCHW.pin_memory().to(self._device, non_blocking=True)
        x_NCHW = x_NCHW.to(self._device).to(self._dtype)
        return torch.addcmul(self._shift, x_NCHW, self._scale, out=x_NCHW)


def mirror(pixels_NCHW: NDArray[np.uint8], mirrored_N: NDArray[np.bool_]) -> None:
    """Reverse the rows of pixels of the chosen images, in place.

    It reverses the 8-byte words of a row and reads them in the other byte order, which reverses the bytes of each
    word; this is faster than byte by byte.
    """
    chosen = np.flatnonzero(mirrored_N)
    pixels_NCHW.view("<u8")[chosen] = pixels_NCHW[chosen].view(">u8")[..., ::-1]


def _random_labels(samples: int, classes: int, seed: int, name: str) -> Tensor:
    return torch.randint(classes, (samples,), generator=generator(seed, f"{name}/random labels"))


def _at_most(wanted: int | None, there: int, key: str) -> int:
    if wanted is not None and wanted > there:
        raise SondeError(f"task.{key} is {wanted:,}, but there are {there:,} images: choose at most that many")
    return there if wanted is None else wanted
