"""CIFAR-10 with noise on every pixel, to see whether the rules go by fine detail of the images.

python docs/findings/noise.py       # writes noise.npz, 740 MB
sonde train --task noise.npz --rule dfa --epochs 12 --set model.d=256 --set model.L=4 --set batch_size=128
"""

import numpy as np
from numpy.typing import NDArray

from sonde.store.datasets import data_folder, find_or_mirror_cifar10
from sonde.store.datasets.decoded import PAD, open_images
from sonde.tasks.images import MEAN, STD

LEVELS = 8  # of 255, the standard deviation of the noise


def noisy() -> dict[str, NDArray[np.generic]]:
    """Both parts, normalised as CIFAR-10 is, in the form that `--task` takes."""
    images, rng = open_images(find_or_mirror_cifar10(data_folder(None))), np.random.default_rng(0)

    def moved(pixels_NCHW: NDArray[np.uint8]) -> NDArray[np.float32]:
        pixels_NHWC = pixels_NCHW.transpose(0, 2, 3, 1)
        noisy_NHWC = np.clip(pixels_NHWC + rng.normal(0, LEVELS, pixels_NHWC.shape), 0, 255).round()
        mean, std = (np.array(of, np.float32)[:, None, None] for of in (MEAN, STD))
        return (noisy_NHWC.transpose(0, 3, 1, 2).astype(np.float32) / 255 - mean) / std

    return {
        "x_train": moved(images.train_NCHW[..., PAD:-PAD, PAD:-PAD]),
        "y_train": images.train_label_N.astype(np.int64),
        "x_test": moved(images.test_NCHW),
        "y_test": images.test_label_N.astype(np.int64),
    }


if __name__ == "__main__":
    np.savez("noise.npz", allow_pickle=False, **noisy())
