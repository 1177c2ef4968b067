"""Pooling: which vector of a sample rules and probes look at.

N samples, T tokens, d width, C channels, H×W positions, D pooled numbers.  A state is N×d (vectors), N×T×d (tokens) or
N×C×H×W (maps).  Vectors are taken whole by every pooling.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

PoolingName = Literal["cls", "last", "mean", "flat"]
_TOKEN = {"cls": 0, "last": -1}
_PLACES = {3: (1,), 4: (2, 3)}  # the axes of tokens, of positions


@final
@dataclass(frozen=True)
class Pooling:
    """`cls`: the first token; `last`: the last; `mean`: over tokens or positions; `flat`: the whole state.

    Pooling is a linear map R from a state to D numbers.  To move the pooled vector by v, the state moves by Sv with
    R S = 1: `cls` and `last` move their token, `mean` moves every token (or position) by v, `flat` the whole state.
    So the gradient with respect to the pooled vector is Sᵀg: for `mean`, the sum of the gradients of the tokens.
    """

    name: PoolingName

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether states of this shape (of one sample) can be pooled so: maps have no tokens."""
        return not (self.name in _TOKEN and len(shape) == 3)

    def width(self, shape: tuple[int, ...]) -> int:
        """D, for states of this shape of one sample."""
        if len(shape) == 1 or self.name == "flat":
            return math.prod(shape)
        return shape[-1] if len(shape) == 2 else shape[0]

    def read(self, h: Tensor) -> Tensor:
        """R h, N×D: the pooled vector."""
        if self._whole(h):
            return h.flatten(1)
        return h.mean(_PLACES[h.ndim]) if self.name == "mean" else h[:, _TOKEN[self.name]]

    def credit(self, a: Tensor) -> Tensor:
        """Sᵀ a, N×D: the credit (or gradient) of a state as that of the pooled vector."""
        if self._whole(a):
            return a.flatten(1)
        return a.sum(_PLACES[a.ndim]) if self.name == "mean" else a[:, _TOKEN[self.name]]

    def moved(self, h: Tensor, steps_kND: Tensor) -> Tensor:
        """h + S v, k×(the shape of h), for k steps v of the pooled vector."""
        if self._whole(h):
            return h + steps_kND.view(-1, *h.shape)
        if self.name == "mean":
            return h + (steps_kND[:, :, None] if h.ndim == 3 else steps_kND[..., None, None])
        moved = h.repeat(len(steps_kND), 1, 1, 1)
        moved[:, :, _TOKEN[self.name]] += steps_kND
        return moved

    def replaced(self, h: Tensor, v_kND: Tensor) -> Tensor:
        """h with v in place of the pooled vector, k×(the shape of h)."""
        if self._whole(h):
            return v_kND.view(-1, *h.shape)
        if self.name == "mean":
            return self.moved(h, v_kND - self.read(h))
        others = (h[:, 1:] if self.name == "cls" else h[:, :-1]).expand(len(v_kND), -1, -1, -1)
        parts = (v_kND[:, :, None], others)
        return torch.cat(parts if self.name == "cls" else parts[::-1], dim=2)

    def spread(self, a_ND: Tensor, h: Tensor) -> Tensor:
        """Rᵀ a in the shape of h: the credit of the pooled vector as that of the state; zero for what is not pooled."""
        if self._whole(h):
            return a_ND.view_as(h)
        if self.name == "mean":
            places = h.shape[1] if h.ndim == 3 else h.shape[2] * h.shape[3]
            a_N1D = (a_ND / places)[:, None] if h.ndim == 3 else (a_ND / places)[..., None, None]
            return a_N1D.expand_as(h)
        others = h.shape[1] - 1
        return F.pad(a_ND[:, None], (0, 0, 0, others) if self.name == "cls" else (0, 0, others, 0))

    def _whole(self, h: Tensor) -> bool:
        return h.ndim == 2 or self.name == "flat"


FLAT = Pooling("flat")


def _deprecated_reader(owner: Any) -> Pooling:
    """Deprecated: use `pooling`."""
    name = type(owner).__name__
    warnings.warn(f"{name}.reader is deprecated: use {name}.pooling", DeprecationWarning, stacklevel=2)
    pooling: Pooling = owner.pooling
    return pooling


READER = property(_deprecated_reader)
"""The deprecated name of `pooling`, for the classes that plugins see."""
