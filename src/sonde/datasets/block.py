"""Some decoded images with their labels: what every reader yields.  N samples, C channels, H height, W width."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Block:
    image_NCHW: NDArray[np.uint8]
    label_N: NDArray[np.uint8]
