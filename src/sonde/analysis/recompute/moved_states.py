"""Credits of rules that compute states of their own, by their equations; and the changes they make to the network.

L blocks, C outputs.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sonde.analysis.recompute.sample import Sample, advanced, continued, forward
from sonde.network import Network

_State = Mapping[str, Any]
_Options = Mapping[str, Any]


def relaxed(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """PC: a_l = −ε_l where the energy has descended, a_0 = −J_0ᵀ ε_1; on arrival, rate^{L+1−l} g_l."""
    if options["learn_at"] == "arrival":
        top = len(sample.states)
        return [g * options["rate"] ** (top - l) for l, g in enumerate(sample.gradients)]
    return [-error for error in _errors(sample, 1.0, options)]


def nudged(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """EP: a_l = (ε⁻_l − ε⁺_l)/2β; with one side, −ε⁺_l/β."""
    beta = options["beta"]
    above = _errors(sample, beta, options)
    if options["one_sided"]:
        return [-error / beta for error in above]
    below = _errors(sample, -beta, options)
    return [(minus - plus) / (2 * beta) for plus, minus in zip(above, below, strict=True)]


def _errors(sample: Sample, beta: float, options: _Options) -> list[Tensor]:
    """J_0ᵀ ε_1, then ε_1 … ε_L: E = Σ ½‖h_{l+1} − unit_l(h_l)‖² + βℓ has descended, all states at once."""
    net, h = sample.net, list(sample.states)
    for _ in range(options["steps"]):
        h = [h[0], *(one.detach().requires_grad_() for one in h[1:])]
        loss = sample.sample_loss(continued(net, h[-1], len(net.blocks)), sample.y).sum()
        energy = sum(((error**2).sum() / 2 for error in _ahead(net, h)), beta * loss)
        slopes = torch.autograd.grad(energy, h[1:])
        h = [h[0], *((one - options["rate"] * slope).detach() for one, slope in zip(h[1:], slopes, strict=True))]
    h[0] = h[0].clone().requires_grad_()
    errors = _ahead(net, h)
    (slope,) = torch.autograd.grad((errors[0] ** 2).sum() / 2, h[0])
    return [-slope, *(error.detach() for error in errors)]


def _ahead(net: Network, h: list[Tensor]) -> list[Tensor]:
    """h_{l+1} − unit_l(h_l)."""
    return [above - advanced(net, block, below)[0] for block, below, above in zip(net.blocks, h, h[1:], strict=False)]


def apart(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """Dual propagation: a_L = ∂ℓ/∂h_L, a_l = J_l(h̄_l)ᵀ a_{l+1}; then h̄_l = unit(h̄_{l−1}) − (2α − 1)β a_l."""
    net, mean = sample.net, [h.clone() for h in sample.states]
    shift = (2 * options["alpha"] - 1) * options["beta"]
    for _ in range(options["passes"]):
        at = [h.detach().requires_grad_() for h in mean]
        top = sample.sample_loss(continued(net, at[-1], len(net.blocks)), sample.y).sum()
        credits = list(torch.autograd.grad(top, at[-1]))
        for block, h in reversed(list(zip(net.blocks, at, strict=False))):
            credits[:0] = torch.autograd.grad(advanced(net, block, h)[0], h, credits[0])
        for l, block in enumerate(net.blocks):
            mean[l + 1] = advanced(net, block, mean[l])[0].detach() - shift * credits[l + 1]
    return credits


def pushed_by_the_input(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """PEPITA: a_l = h_l − h^err_l, the states on x + F e."""
    (f_iC,) = state["matrices"]
    h = sample.net.embed(sample.x + (sample.error @ f_iC.double().T).view(sample.x.shape))
    credits = [sample.states[0] - h]
    for block, own in zip(sample.net.blocks, sample.states[1:], strict=True):
        h, _ = advanced(sample.net, block, h)
        credits.append(own - h)
    return credits


def drawn_input_matrix(
    state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]
) -> tuple[dict[str, Any], _State]:
    """PEPITA: F ~ N(0, σ²), σ = scale·2√(6/d_in)."""
    (f_iC,) = state["matrices"]
    drawn = torch.randn(f_iC.shape, generator=rng) * (state["options"]["scale"] * 2 * math.sqrt(6 / len(f_iC)))
    return {}, {"matrices": [drawn]}


def no_credit(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """Forward-Forward: its credit does not stand in for the gradient, so nothing is defined of it."""
    return [torch.full_like(h, math.nan) for h in sample.states]


class _NeutralLabel:
    """Forward-Forward: 1/C in place of the first C inputs."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def __call__(self, x: Tensor) -> Tensor:
        return _labelled(x, [1 / self.classes] * self.classes)


def _labelled(x: Tensor, label: list[float]) -> Tensor:
    rows = x.reshape(len(x), -1).clone()
    for place, value in enumerate(label):
        rows[:, place] = value
    return rows.reshape(x.shape)


def _of_unit_size(h: Tensor) -> Tensor:
    """h/(RMS(h) + 1e-8) of each sample."""
    sizes = [torch.sqrt((one**2).sum() / one.numel()) + 1e-8 for one in h]
    return torch.stack([one / size for one, size in zip(h, sizes, strict=True)])


def by_goodness(net: Network, x: Tensor) -> Tensor:
    """Forward-Forward: for every label, the sum over h_1 … h_L of the squares of a vector, token or position; N×C."""
    classes = net.entry.classes  # type: ignore[union-attr]
    columns = []
    for c in range(classes):
        h = net.embed(_labelled(x, [float(c == other) for other in range(classes)]))
        total = torch.zeros(len(x), dtype=x.dtype)
        for block in net.blocks:
            h, _ = advanced(net, block, h)
            places = {2: 1, 3: h.shape[1], 4: math.prod(h.shape[2:])}[h.ndim]
            total = total + torch.stack([(one**2).sum() / places for one in h])
        columns.append(total)
    return torch.stack(columns, dim=1)


def altered(net: Network, options: _Options, classes: int) -> Callable[[Network, Tensor], Tensor]:
    """Change the network as the rule does; return the function that predicts."""
    if options["name"] == "pc" and options["depth_scale"]:
        net.branch_scale = 1 / math.sqrt(len(net.blocks))
    if options["name"] == "ff":
        net.entry, net.between = _NeutralLabel(classes), _of_unit_size
        return by_goodness if options["prediction"] == "goodness" else forward
    return forward
