"""Noise and curvature of the loss on one batch, computed on a copy of the model in float64, when asked for."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sonde.core.errors import SondeError
from sonde.core.generators import preserve_rng
from sonde.metrics.rows import Reading, undefined
from sonde.observe.experiments.copies import OutputLoss, cast_tensors, copied, map_tensors
from sonde.observe.facts import tensors

_PARTS = 16  # of a batch whose gradients are compared
_LANCZOS = 24  # Hessian–vector products at most
_ADAM = "exp_avg_sq"  # in the state of Adam
_CONVERGED = 1e-6  # relative change of the largest eigenvalue


class LossOnBatch:
    """The loss of a copy of a model on a batch, as a function of its parameters.  The loss is a mean over samples."""

    def __init__(self, model: nn.Module, loss: OutputLoss, x: Any, y: Any) -> None:
        self._model, self._loss = copied(model, torch.float64), loss
        device = next(self._model.parameters()).device
        moved = (map_tensors(lambda t: t.to(device), cast_tensors(value, torch.float64)) for value in (x, y))
        self._x, self._y = moved
        self.samples = next((len(t) for _, t in tensors(self._x) if t.dim()), 0)
        self.parameters = [p for p in self._model.parameters() if p.requires_grad]
        if not self.parameters:
            raise SondeError("no parameter asks for a gradient: there is no curvature to measure")

    def gradient(self, start: int, end: int, *, keeps_graph: bool = False) -> Tensor:
        """The gradient of the mean loss of some of the samples, as one vector."""
        many = self.samples
        x, y = (
            map_tensors(lambda t: t[start:end] if t.dim() and len(t) == many else t, value)
            for value in (self._x, self._y)
        )
        out = self._model(**x) if isinstance(x, dict) else self._model(*x) if isinstance(x, tuple) else self._model(x)
        found = torch.autograd.grad(
            self._loss(out, y), self.parameters, create_graph=keeps_graph, materialize_grads=True
        )
        return torch.cat([part.flatten() for part in found])


def noise_scale(on_batch: LossOnBatch) -> Reading:
    """tr Σ/‖G‖² (McCandlish et al. 2018): the batch size beyond which a larger batch hardly helps.

    From gradients of b and of B samples: E‖g_b‖² = ‖G‖² + tr Σ/b, which gives both without bias.
    """
    parts = min(_PARTS, on_batch.samples)
    if parts < 2:
        return undefined("noise_scale", "a batch of one sample tells nothing of the noise")
    b = on_batch.samples // parts
    total, squares = torch.zeros(()), 0.0
    with preserve_rng(on_batch.parameters[0].device):
        for place in range(parts):
            one = on_batch.gradient(place * b, (place + 1) * b)
            total, squares = total.to(one.device) + one, squares + float(one @ one)
    small, large = squares / parts, float(total @ total) / parts**2
    signal = (parts * large - small) / (parts - 1)
    noise = (small - large) * b * parts / (parts - 1)
    if not (signal > 0 and math.isfinite(noise)):
        return undefined(
            "noise_scale", "the gradient is not larger than its noise: give a larger batch", samples=b * parts
        )
    return Reading(metric="noise_scale", value=noise / signal, samples=b * parts)


def sharpness(on_batch: LossOnBatch, stretch: Tensor | None = None, metric: str = "sharpness") -> Reading:
    """The largest eigenvalue of the Hessian H of the loss, by Lanczos' method with Hessian–vector products.

    With `stretch`, a vector d over parameters: of diag(d) H diag(d).  Every vector is made orthogonal to all before it,
    which takes memory of up to 24 times the parameters.
    """
    with (
        preserve_rng(on_batch.parameters[0].device),
        sdpa_kernel(SDPBackend.MATH),
    ):  # the other kernels have no second derivative
        gradient = on_batch.gradient(0, on_batch.samples, keeps_graph=True)
        generator = torch.Generator(gradient.device).manual_seed(0)
        vector = torch.randn(gradient.shape, generator=generator, dtype=gradient.dtype, device=gradient.device)
        basis = [vector / vector.norm()]
        diagonal: list[float] = []
        beside: list[float] = []
        largest = math.nan
        for _ in range(min(_LANCZOS, len(gradient))):
            product = _hessian_times(on_batch, gradient, basis[-1] if stretch is None else stretch * basis[-1])
            product = product if stretch is None else stretch * product
            diagonal.append(float(product @ basis[-1]))
            before, largest = largest, _largest_eigenvalue(diagonal, beside)
            for known in (*basis, *basis):  # twice, against rounding
                product = product - (product @ known) * known
            beside.append(float(product.norm()))
            scale = max(map(abs, (*diagonal, *beside)))
            if abs(largest - before) <= _CONVERGED * abs(largest) or beside[-1] <= 1e-12 * scale:
                break
            basis.append(product / beside[-1])
    if not math.isfinite(largest):
        return undefined(metric, "the loss or its curvature is not finite", samples=on_batch.samples)
    return Reading(metric=metric, value=largest, samples=on_batch.samples)


def preconditioned_sharpness(
    on_batch: LossOnBatch, parameters: Sequence[Tensor], optimisers: Sequence[torch.optim.Optimizer]
) -> Reading | None:
    """The largest eigenvalue of P^(−1/2) H P^(−1/2), with Adam's P = (1 − β₁ᵗ)(√(v/(1 − β₂ᵗ)) + ε); None without Adam.

    Cohen et al. (2022), arXiv:2207.14484.  `parameters` are those that the copy was made from.  One that no optimiser
    holds does not move: its row of P^(−1/2) is 0.
    """
    metric = "preconditioned_sharpness"
    held = _held(optimisers)
    if not any(_ADAM in state for _, state in held.values()):
        return None
    scales = []
    for parameter in parameters:
        group, state = held.get(id(parameter), ({}, {}))
        if group and _ADAM not in state:
            return undefined(metric, "the optimiser of a parameter has no second moment, or has not stepped")
        scales.append(_adam_scale(group, state) if group else torch.zeros_like(parameter, dtype=torch.float64))
    return sharpness(on_batch, torch.cat([scale.flatten() for scale in scales]), metric)


def _held(optimisers: Sequence[torch.optim.Optimizer]) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    """The id of each parameter that an optimiser holds → its group, and its state."""
    groups = [(group, one.state) for one in optimisers for group in one.param_groups]
    return {id(p): (group, states.get(p, {})) for group, states in groups for p in group["params"]}


def _adam_scale(group: dict[str, Any], state: dict[str, Any]) -> Tensor:
    """The diagonal of P^(−1/2)."""
    second: Tensor = state.get(f"max_{_ADAM}", state[_ADAM]).double()
    first, other = (1 - beta ** float(state["step"]) for beta in group["betas"])
    scale: Tensor = first * ((second / other).sqrt() + group["eps"])
    return scale.rsqrt()


def _hessian_times(on_batch: LossOnBatch, gradient: Tensor, vector: Tensor) -> Tensor:
    if not gradient.requires_grad:
        return torch.zeros_like(vector)
    found = torch.autograd.grad(gradient @ vector, on_batch.parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in found]).detach()


def _largest_eigenvalue(diagonal: list[float], beside: list[float]) -> float:
    if not all(map(math.isfinite, (*diagonal, *beside))):
        return math.nan
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for place, value in enumerate(beside[: len(diagonal) - 1]):
        matrix[place, place + 1] = matrix[place + 1, place] = value
    return float(torch.linalg.eigvalsh(matrix)[-1])
