"""Losses: per sample, as the mean the optimiser descends, and their output error.  N samples, C outputs.

Axes before the samples are kept: they count replicas, each with a loss of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Loss:
    """ℓ_i of each sample, its mean over the batch, and the output error e_i = ∂ℓ_i/∂z_i."""

    per_sample: Callable[[Tensor, Tensor], Tensor]
    mean: Callable[[Tensor, Tensor], Tensor]
    error: Callable[[Tensor, Tensor], Tensor]
    classifies: bool


def _squared_N(output_NC: Tensor, target_NC: Tensor) -> Tensor:
    return (output_NC - target_NC).square().mean(-1)


def _squared_error_NC(output_NC: Tensor, target_NC: Tensor) -> Tensor:
    return (output_NC - target_NC) * (2 / output_NC.shape[-1])


def _cross_entropy_N(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    return F.cross_entropy(logits_NC.mT if logits_NC.ndim > 2 else logits_NC, label_N, reduction="none")


def _mean_squared(output_NC: Tensor, target_NC: Tensor) -> Tensor:
    if output_NC.ndim == 2:
        return F.mse_loss(output_NC, target_NC)
    return (output_NC - target_NC).square().mean((-2, -1))


def _mean_cross_entropy(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    if logits_NC.ndim == 2:
        return F.cross_entropy(logits_NC, label_N)
    return _cross_entropy_N(logits_NC, label_N).mean(-1)


def _softmax_minus_one_hot_NC(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    error_NC = logits_NC.softmax(-1)
    return error_NC.scatter_add(-1, label_N[..., None], -error_NC.new_ones(*label_N.shape, 1))


MEAN_SQUARED_ERROR = Loss(
    per_sample=_squared_N, mean=_mean_squared, error=_squared_error_NC, classifies=False
)
CROSS_ENTROPY = Loss(
    per_sample=_cross_entropy_N, mean=_mean_cross_entropy, error=_softmax_minus_one_hot_NC, classifies=True
)
