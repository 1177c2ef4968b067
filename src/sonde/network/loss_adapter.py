"""Any `loss(output, y)` as a `Loss`: a module of torch.nn, or a function.  N samples, T tokens, V words.

What is asked of it is that the loss of a batch is the mean of what its samples contribute.  The contribution ℓ_i is
taken from `reduction="none"` where there is such a thing, else by giving the function one sample at a time, and it is
checked on the first batch of several samples that their mean is the loss of the batch.  Where it is not, nothing per
sample exists, and asking for it is an error; backprop does not ask.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.network.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR, Loss

Criterion = Callable[[Tensor, Tensor], Tensor]


def as_loss(loss: Loss | Criterion, output_shape: Sequence[int]) -> Loss:
    """The loss of a network whose output has this shape for one sample; Sonde's own are for vectors N×C."""
    if isinstance(loss, Loss):
        if len(output_shape) == 1 or loss not in (CROSS_ENTROPY, MEAN_SQUARED_ERROR):
            return loss
        loss = nn.CrossEntropyLoss() if loss is CROSS_ENTROPY else nn.MSELoss()
    if not callable(loss):
        raise SondeError(f"a loss is a function of (output, y), not a {type(loss).__name__}")
    chosen = _Chosen(loss)
    return Loss(
        per_sample=chosen.per_sample,
        mean=chosen.mean,
        error=chosen.error,
        hits=chosen.hits if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) else None,
        floor=0.0 if isinstance(loss, nn.MSELoss) else 1.0,
    )


class _Chosen:
    """A criterion, and whether it was seen to be the mean of its samples' contributions."""

    def __init__(self, criterion: Criterion) -> None:
        self.criterion = criterion
        self.name = getattr(criterion, "__name__", type(criterion).__name__)
        self.seen = False
        if getattr(criterion, "reduction", "mean") == "sum":
            raise SondeError(f"{self.name} adds up the samples: give it reduction='mean'")

    def mean(self, output: Tensor, y: Tensor) -> Tensor:
        output, y = self._laid(output, y)
        value = _like(self.criterion, output)(output, y)
        return value.mean() if value.ndim else value

    def per_sample(self, output: Tensor, y: Tensor) -> Tensor:
        values_N = self._contributions(output, y)
        if not self.seen and len(values_N) > 1:
            self._check(values_N.detach(), self.mean(output.detach(), y).detach())
            self.seen = True
        return values_N

    def error(self, output: Tensor, y: Tensor) -> Tensor:
        """e_i = ∂ℓ_i/∂z_i."""
        with torch.enable_grad():
            z = output.detach().requires_grad_()
            (e,) = torch.autograd.grad(self.per_sample(z, y).sum(), z)
        return e

    def hits(self, output: Tensor, y: Tensor) -> Tensor:
        output, y = self._laid(output, y)
        axis = min(1, output.ndim - 1)
        likeliest: Tensor = output.argmax(axis) == (y.argmax(axis) if y.is_floating_point() else y)
        ignored = getattr(self.criterion, "ignore_index", None)
        return likeliest if ignored is None or y.is_floating_point() else likeliest[y != ignored]

    def _contributions(self, output: Tensor, y: Tensor) -> Tensor:
        laid, target = self._laid(output, y)
        elements = self._elements(laid, target)
        if elements.shape[:1] != laid.shape[:1]:
            return _one_by_one(self.criterion, laid, target)
        elements = elements.reshape(len(laid), -1)
        if isinstance(self.criterion, nn.CrossEntropyLoss | nn.NLLLoss) and not target.is_floating_point():
            elements = elements * (elements.shape[1] * len(laid) / self._counted(target).to(elements))
        return elements.mean(1)

    def _elements(self, output: Tensor, y: Tensor) -> Tensor:
        """What the criterion averages, or nothing where it cannot say."""
        if not hasattr(self.criterion, "reduction"):
            return output.new_empty(0)
        single: Any = copy.copy(_like(self.criterion, output))
        single.reduction = "none"
        elements: Tensor = single(output, y)
        return elements

    def _counted(self, label: Tensor) -> Tensor:
        """What PyTorch divides a sum over labels by: their number or weight, ignored ones left out."""
        weight, ignored = self.criterion.weight, self.criterion.ignore_index  # type: ignore[attr-defined]
        kept: Tensor = label != ignored
        if weight is not None:
            kept = weight.to(label.device)[torch.where(kept, label, 0)] * kept
        return kept.sum()

    def _laid(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Logits with their classes where PyTorch wants them, and targets that cannot be spread by mistake."""
        if y.shape[:1] != output.shape[:1]:
            raise SondeError(
                f"{len(output)} outputs have targets of shape {tuple(y.shape)}: the first axis must be the samples"
            )
        if isinstance(self.criterion, nn.CrossEntropyLoss | nn.NLLLoss):
            if output.ndim == 3 and y.shape == output.shape[:2]:
                if output.shape[1] == output.shape[2]:
                    raise SondeError(
                        f"logits of shape {tuple(output.shape)} may be N×T×V or N×V×T: say which by a function, such "
                        f"as lambda z, y: F.cross_entropy(z.mT, y) for N×T×V"
                    )
                return output.mT, y
        elif hasattr(self.criterion, "reduction") and y.is_floating_point() and y.shape != output.shape:
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


def _like(criterion: Criterion, output: Tensor) -> Criterion:
    """With its weights in the precision and on the device of the output; a module that has others is copied."""
    if isinstance(criterion, nn.Module):
        for value in (*criterion.parameters(), *criterion.buffers()):
            other = value.is_floating_point() and value.dtype != output.dtype
            if other or value.device != output.device:
                return copy.deepcopy(criterion).to(output.device, output.dtype)
    return criterion


def _one_by_one(criterion: Criterion, output: Tensor, y: Tensor) -> Tensor:
    """Every sample as a batch of one: at once where `vmap` can do it, else one after the other."""

    def alone(z: Tensor, target: Tensor) -> Tensor:
        return _like(criterion, z)(z[None], target[None]).mean()

    try:
        values_N: Tensor = torch.func.vmap(alone)(output, y)
    except (RuntimeError, ValueError):  # it looks at values, or draws, or has no batching rule
        values_N = torch.stack([alone(z, target) for z, target in zip(output, y, strict=True)])
    return values_N
