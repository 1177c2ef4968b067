"""Losses: per sample, as the mean the optimiser descends, and their output error.  N samples, C outputs.

Axes before the samples are kept: they count replicas, each with a loss of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sonde.core.errors import SondeError


@dataclass(frozen=True, kw_only=True)
class Loss:
    """ℓ_i of each sample, its mean over the batch, and the output error e_i = ∂ℓ_i/∂z_i."""

    per_sample: Callable[[Tensor, Tensor], Tensor]
    mean: Callable[[Tensor, Tensor], Tensor]
    error: Callable[[Tensor, Tensor], Tensor]
    hits: (
        Callable[[Tensor, Tensor], Tensor] | None
    )  # whether each label that counts is the likeliest; None where there are none
    floor: float  # a smaller loss is rounded as if it were this: a cross-entropy is the logarithm of a sum

    @property
    def classifies(self) -> bool:
        return self.hits is not None


def _difference_NC(output_NC: Tensor, target_NC: Tensor) -> Tensor:
    if output_NC.shape != target_NC.shape:
        raise SondeError(
            f"outputs of shape {tuple(output_NC.shape)} have targets of shape {tuple(target_NC.shape)}: a squared "
            f"error would spread one over the other; give both the same shape"
        )
    return output_NC - target_NC


def _squared_N(output_NC: Tensor, target_NC: Tensor) -> Tensor:
    return _difference_NC(output_NC, target_NC).square().mean(-1)


def _squared_error_NC(output_NC: Tensor, target_NC: Tensor) -> Tensor:
    return _difference_NC(output_NC, target_NC) * (2 / output_NC.shape[-1])


def _cross_entropy_N(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    return F.cross_entropy(logits_NC.mT if logits_NC.ndim > 2 else logits_NC, label_N, reduction="none")


def _mean_squared(output_NC: Tensor, target_NC: Tensor) -> Tensor:
    if output_NC.ndim == 2 and output_NC.shape == target_NC.shape:
        return F.mse_loss(output_NC, target_NC)
    return _difference_NC(output_NC, target_NC).square().mean((-2, -1))


def _mean_cross_entropy(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    if logits_NC.ndim == 2:
        return F.cross_entropy(logits_NC, label_N)
    return _cross_entropy_N(logits_NC, label_N).mean(-1)


def _softmax_minus_one_hot_NC(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    error_NC = logits_NC.softmax(-1)
    return error_NC.scatter_add(-1, label_N[..., None], -error_NC.new_ones(*label_N.shape, 1))


def _likeliest(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    return logits_NC.argmax(-1) == label_N


MEAN_SQUARED_ERROR = Loss(per_sample=_squared_N, mean=_mean_squared, error=_squared_error_NC, hits=None, floor=0.0)
CROSS_ENTROPY = Loss(
    per_sample=_cross_entropy_N,
    mean=_mean_cross_entropy,
    error=_softmax_minus_one_hot_NC,
    hits=_likeliest,
    floor=1.0,
)
