"""Losses: per sample, as the mean that is minimised, and their output error; and any `loss(output, y)` as such a loss.

N samples, C outputs, T tokens, V words.  Axes before the samples are kept: they count replicas, each with its own loss.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sonde.core.errors import SondeError


@dataclass(frozen=True, kw_only=True)
class Loss:
    """ℓ_i of each sample, its mean over the batch, and the output error e_i = ∂ℓ_i/∂z_i."""

    per_sample: Callable[[Tensor, Tensor], Tensor]
    mean: Callable[[Tensor, Tensor], Tensor]
    error: Callable[[Tensor, Tensor], Tensor]
    hits: Callable[[Tensor, Tensor], Tensor] | None  # whether each counted label is the likeliest; None without labels
    floor: float  # a smaller loss has the rounding error of this one: a cross-entropy is the logarithm of a sum
    slope: Callable[[Tensor, Tensor], Tensor] | None = None  # ∂mean/∂z without autograd, with the same bits

    def mean_and_slope(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of each replica, and its gradient at the output."""
        if self.slope is not None:
            return self.mean(output, y), self.slope(output, y)
        with torch.enable_grad():
            z = output.detach().requires_grad_()
            value = self.mean(z, y)
            (g,) = torch.autograd.grad(value.sum() if value.ndim else value, z)
        return value.detach(), g

    @property
    def classifies(self) -> bool:
        """Whether the targets are labels, so that there is an accuracy."""
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


def _mean_squared_slope(output_NC: Tensor, target_NC: Tensor) -> Tensor:
    return _difference_NC(output_NC, target_NC) * (2 / math.prod(output_NC.shape[-2:]))


def _mean_cross_entropy(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    if logits_NC.ndim == 2:
        return F.cross_entropy(logits_NC, label_N)
    return _cross_entropy_N(logits_NC, label_N).mean(-1)


def _mean_cross_entropy_slope(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    axis = 1  # of the classes, where `cross_entropy` has them: the same kernels give the same bits
    log_shares = F.log_softmax(logits_NC.mT if logits_NC.ndim > 2 else logits_NC, axis)
    hit = torch.zeros_like(log_shares).scatter_(axis, label_N.unsqueeze(axis), -1 / label_N.shape[-1])
    slope: Tensor = torch.ops.aten._log_softmax_backward_data(hit, log_shares, axis, log_shares.dtype)
    return slope.mT if logits_NC.ndim > 2 else slope


def _softmax_minus_one_hot_NC(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    error_NC = logits_NC.softmax(-1)
    return error_NC.scatter_add(-1, label_N[..., None], -error_NC.new_ones(*label_N.shape, 1))


def _likeliest(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    return logits_NC.argmax(-1) == label_N


MEAN_SQUARED_ERROR = Loss(
    per_sample=_squared_N,
    mean=_mean_squared,
    error=_squared_error_NC,
    hits=None,
    floor=0.0,
    slope=_mean_squared_slope,
)
CROSS_ENTROPY = Loss(
    per_sample=_cross_entropy_N,
    mean=_mean_cross_entropy,
    error=_softmax_minus_one_hot_NC,
    hits=_likeliest,
    floor=1.0,
    slope=_mean_cross_entropy_slope,
)


LossFunction = Callable[[Tensor, Tensor], Tensor]


def as_loss(loss: Loss | LossFunction, output_shape: Sequence[int]) -> Loss:
    """Make a `Loss` for a network whose output has this shape for one sample.

    Sonde's own losses are for outputs N×C; for other shapes the class of `torch.nn` takes over.
    """
    if isinstance(loss, Loss):
        if len(output_shape) == 1 or loss not in (CROSS_ENTROPY, MEAN_SQUARED_ERROR):
            return loss
        loss = nn.CrossEntropyLoss() if loss is CROSS_ENTROPY else nn.MSELoss()
    if not callable(loss):
        raise SondeError(f"a loss is a function of (output, y), not a {type(loss).__name__}")
    chosen = LossAdapter(loss)
    return Loss(
        per_sample=chosen.per_sample,
        mean=chosen.mean,
        error=chosen.error,
        hits=chosen.hits if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) else None,
        floor=0.0 if isinstance(loss, nn.MSELoss) else 1.0,
    )


class LossAdapter:
    """The methods of a `Loss` for a function of (output, y): a module of `torch.nn`, or any callable.

    The loss of a batch must be the mean of the contributions ℓ_i of its samples.  ℓ_i comes from `reduction="none"`
    where the function has it, else from calling the function with one sample at a time.  The first batch of several
    samples is checked: the mean of the ℓ_i must be the loss of the batch.  A loss that mixes samples has no ℓ_i, and
    asking for them raises; backprop does not ask.
    """

    def __init__(self, function: LossFunction) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.is_checked = False
        if getattr(function, "reduction", "mean") == "sum":
            raise SondeError(f"{self.name} adds up the samples: give it reduction='mean'")

    def mean(self, output: Tensor, y: Tensor) -> Tensor:
        """The value of the function for a batch; the mean where it returns several."""
        output, y = self._aligned(output, y)
        value = _like(self.function, output)(output, y)
        return value.mean() if value.ndim else value

    def per_sample(self, output: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample; the first batch checks that their mean is the function's value."""
        values_N = self._contributions(output, y)
        if not self.is_checked and len(values_N) > 1:
            self._check(values_N.detach(), self.mean(output.detach(), y).detach())
            self.is_checked = True
        return values_N

    def error(self, output: Tensor, y: Tensor) -> Tensor:
        """e_i = ∂ℓ_i/∂z_i."""
        with torch.enable_grad():
            z = output.detach().requires_grad_()
            (e,) = torch.autograd.grad(self.per_sample(z, y).sum(), z)
        return e

    def hits(self, output: Tensor, y: Tensor) -> Tensor:
        """Whether each label is the likeliest class; ignored labels are left out."""
        output, y = self._aligned(output, y)
        axis = min(1, output.ndim - 1)
        likeliest: Tensor = output.argmax(axis) == (y.argmax(axis) if y.is_floating_point() else y)
        ignored = getattr(self.function, "ignore_index", None)
        return likeliest if ignored is None or y.is_floating_point() else likeliest[y != ignored]

    def _contributions(self, output: Tensor, y: Tensor) -> Tensor:
        laid, target = self._aligned(output, y)
        elements = self._elements(laid, target)
        if elements.shape[:1] != laid.shape[:1]:
            return _one_by_one(self.function, laid, target)
        elements = elements.reshape(len(laid), -1)
        if isinstance(self.function, nn.CrossEntropyLoss | nn.NLLLoss) and not target.is_floating_point():
            elements = elements * (elements.shape[1] * len(laid) / self._counted(target).to(elements))
        return elements.mean(1)

    def _elements(self, output: Tensor, y: Tensor) -> Tensor:
        """The numbers that the function averages; empty where it has no `reduction`."""
        if not hasattr(self.function, "reduction"):
            return output.new_empty(0)
        single: Any = copy.copy(_like(self.function, output))
        single.reduction = "none"
        elements: Tensor = single(output, y)
        return elements

    def _counted(self, label: Tensor) -> Tensor:
        """The divisor of PyTorch's mean over labels: their number or total weight, without ignored ones."""
        weight, ignored = self.function.weight, self.function.ignore_index  # type: ignore[attr-defined]
        kept: Tensor = label != ignored
        if weight is not None:
            kept = weight.to(label.device)[torch.where(kept, label, 0)] * kept
        return kept.sum()

    def _aligned(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Move the classes of logits to axis 1, and raise where a target would be broadcast by mistake."""
        if y.shape[:1] != output.shape[:1]:
            raise SondeError(
                f"{len(output)} outputs have targets of shape {tuple(y.shape)}: the first axis must be the samples"
            )
        if isinstance(self.function, nn.CrossEntropyLoss | nn.NLLLoss):
            if output.ndim == 3 and y.shape == output.shape[:2]:
                if output.shape[1] == output.shape[2]:
                    raise SondeError(
                        f"logits of shape {tuple(output.shape)} may be N×T×V or N×V×T: say which by a function, such "
                        f"as lambda z, y: F.cross_entropy(z.mT, y) for N×T×V"
                    )
                return output.mT, y
        elif hasattr(self.function, "reduction") and y.is_floating_point() and y.shape != output.shape:
            raise SondeError(
                f"outputs of shape {tuple(output.shape)} have targets of shape {tuple(y.shape)}: {self.name} would "
                f"spread one over the other; give both the same shape"
            )
        return output, y

    def _check(self, values_N: Tensor, batch: Tensor) -> None:
        tolerance = 1e3 * torch.finfo(values_N.dtype).eps * values_N.abs().mean().clamp_min(batch.abs())
        if bool((values_N.mean() - batch).abs() <= tolerance) or not bool(batch.isfinite()):
            return
        if bool((values_N.sum() - batch).abs() <= tolerance * len(values_N)):
            raise SondeError(f"{self.name} adds up the samples: divide by their number")
        raise SondeError(
            f"{self.name} mixes samples: the loss of {len(values_N)} samples is {float(batch):.6g}, the mean of the "
            f"losses of each alone {float(values_N.mean()):.6g}; nothing per sample can be said of it, so train with "
            f"bp and measure with a loss that is a mean over samples"
        )


def _like(function: LossFunction, output: Tensor) -> LossFunction:
    """The function with its weights in the type and on the device of the output; copied where they differ."""
    if isinstance(function, nn.Module):
        for value in (*function.parameters(), *function.buffers()):
            other = value.is_floating_point() and value.dtype != output.dtype
            if other or value.device != output.device:
                return copy.deepcopy(function).to(output.device, output.dtype)
    return function


def _one_by_one(function: LossFunction, output: Tensor, y: Tensor) -> Tensor:
    """The loss of every sample alone: by `vmap` where it works, else in a loop."""

    def alone(z: Tensor, target: Tensor) -> Tensor:
        return _like(function, z)(z[None], target[None]).mean()

    try:
        values_N: Tensor = torch.func.vmap(alone)(output, y)
    except (RuntimeError, ValueError):  # it branches on values, draws random numbers, or has no batching rule
        values_N = torch.stack([alone(z, target) for z, target in zip(output, y, strict=True)])
    return values_N
