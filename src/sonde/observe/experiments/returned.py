"""A loss as experiments call it: of whatever the model returned, and of one tensor in place of its output."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.observe.experiments.copies import Loss
from sonde.observe.facts import first_float, tensors


class ReturnedLoss:
    """The loss of (what the model returned, y); where it takes no tuple or mapping, of the first tensor in it."""

    def __init__(self, loss: Loss, returned: Any, y: Any) -> None:
        self._loss, self._returned = _copied(loss), returned
        self._whole = isinstance(returned, Tensor) or self._takes(returned, y)

    def _takes(self, returned: Any, y: Any) -> bool:
        try:
            self._loss(returned, y)
        except SondeError:
            raise
        except Exception as error:
            return self._takes_first(returned, y, error)
        return True

    def _takes_first(self, returned: Any, y: Any, error: Exception) -> bool:
        first = first_float(returned)
        try:
            if first is not None:
                self._loss(first, y)
                return False
        except Exception:
            pass
        kind, why = type(returned).__name__, f"{type(error).__name__}: {error}".splitlines()[0]
        raise SondeError(
            f"the loss takes neither the {kind} that the model returns nor the first tensor in it ({why}): "
            "give loss= a function of (output, y)"
        ) from error

    def __call__(self, returned: Any, y: Any) -> Tensor:
        return self._loss(returned if self._whole else first_float(returned), y)

    def of_output(self, z: Tensor, y: Any) -> Tensor:
        """The loss with this tensor as the model's output, and everything else that it returned as it was."""
        return self._loss(_with(self._returned, z) if self._whole else z, y)

    def depends_on_output(self, output: Tensor, y: Any) -> bool:
        """Whether another output means another loss; a loss that the model has computed itself stays the same."""
        if isinstance(self._returned, Tensor):
            return True
        z, rng = output.detach(), torch.Generator().manual_seed(0)
        moved = z + torch.randn(z.shape, generator=rng).to(z)
        with torch.no_grad():
            return not torch.equal(self.of_output(z, y), self.of_output(moved, y))


def own_loss(returned: Any, y: Any) -> Tensor:
    """The loss that a model computes itself: `loss` of a mapping, or a scalar beside the output of a tuple."""
    if isinstance(returned, Mapping):
        found = [returned.get("loss")]
    else:
        found = [tensor for _, tensor in tensors(returned) if tensor.dim() == 0]
    loss = next((one for one in found if isinstance(one, Tensor) and one.is_floating_point()), None)
    if loss is None:
        raise SondeError("the model returns no loss for this batch: give loss=, or a batch with targets in it")
    return loss


def _copied(loss: Loss) -> Loss:
    """A copy of a loss that is a module, whose own parameters and buffers experiments would change."""
    try:
        return copy.deepcopy(loss) if isinstance(loss, nn.Module) else loss
    except Exception:
        return loss


def _with(returned: Any, z: Tensor) -> Any:
    """What the model returned, with another tensor in place of its output."""
    return _replaced(returned, first_float(returned), z)


def _replaced(value: Any, old: Tensor | None, new: Tensor) -> Any:
    if value is old:
        return new
    if isinstance(value, Mapping):
        made: Any = copy.copy(value)
        for key, inner in value.items():
            if any(tensor is old for _, tensor in tensors(inner)):
                made[key] = _replaced(inner, old, new)
        return made
    if isinstance(value, list | tuple):
        inner = [_replaced(one, old, new) for one in value]
        make: Callable[..., Any] = type(value)
        return make(*inner) if hasattr(value, "_fields") else make(inner)
    return value
