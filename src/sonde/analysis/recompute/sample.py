"""One sample on its own: its states, its loss, and the gradients on their way back.

T tokens, d width, C outputs.  Every tensor has one sample: 1×d, 1×T×d, or a map 1×channels×height×width.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from sonde.analysis.recompute.numbers import norm
from sonde.network import Network

SampleLoss = Callable[[Tensor, Tensor], Tensor]


def squared_error(z_KC: Tensor, y: Tensor) -> Tensor:
    """Σ_c (z_c − y_c)²/C of K outputs for one target."""
    return ((z_KC - y) ** 2).sum(-1) / z_KC.shape[-1]


def cross_entropy(z_KC: Tensor, y: Tensor) -> Tensor:
    """log Σ_c exp z_c − z_y of K outputs for one label; the largest output is taken out of the sum."""
    z_KC = z_KC - z_KC.detach().max(-1, keepdim=True).values
    return torch.log(torch.exp(z_KC).sum(-1)) - z_KC[:, int(y)]


def first_token(h: Tensor) -> Tensor:
    """The vector 1×d that is read of a sample; of 1×T×d tokens, the first (CLS); of a map, all numbers."""
    return h[:, 0] if h.ndim == 3 else h.flatten(1)


def read(h: Tensor) -> list[float]:
    return entries(first_token(h))


def entries(h: Tensor) -> list[float]:
    found: list[float] = h.detach().flatten().tolist()
    return found


def forward(net: Network, x: Tensor) -> Tensor:
    h = net.embed(x)
    for block in net.blocks:
        h = h + block(h) if net.residual else block(h)
    z: Tensor = net.readout(h)
    return z


class Sample:
    """h_0 … h_L, the branches between them, the output, its loss, and g_l = ∂ℓ/∂h_l."""

    def __init__(self, net: Network, x: Tensor, y: Tensor, loss: SampleLoss) -> None:
        self.net, self.x, self.y, self.sample_loss = net, x[None], y, loss
        self.batch: list[Sample] = [self]  # the samples it was probed with, in order
        self.place = 0  # its own among them
        h = net.embed(self.x).detach().requires_grad_()
        states, branches = [h], []
        for block in net.blocks:
            f = block(h)
            h = h + f if net.residual else f
            branches.append(f)
            states.append(h)
        output = net.readout(h)
        total = loss(output, y).sum()
        self.loss = total.item()
        self.gradients = list(torch.autograd.grad(total, states))
        self.states: list[Tensor] = [h.detach() for h in states]
        self.branches = [f.detach() for f in branches]
        self.output: Tensor = output.detach()

    @property
    def error(self) -> Tensor:
        """e = ∂ℓ/∂z, 1×C."""
        z_1C = self.output
        if self.sample_loss is squared_error:
            return (z_1C - self.y) * 2 / z_1C.shape[-1]
        powers_1C = torch.exp(z_1C - z_1C.max())
        e_1C = powers_1C / powers_1C.sum()
        e_1C[0, int(self.y)] -= 1
        return e_1C

    def losses_from(self, layer: int, h: Tensor) -> list[float]:
        """The losses of copies of this sample whose h_l is each of these."""
        with torch.no_grad():
            for block in list(self.net.blocks)[layer:]:
                h = h + block(h) if self.net.residual else block(h)
            return entries(self.sample_loss(self.net.readout(h), self.y))

    def moved(self, layer: int, step_d: Tensor) -> Tensor:
        """h_l with its vector (of tokens the first, of a map everything) moved."""
        h = self.states[layer].clone()
        first_token(h)[0].add_(step_d)
        return h

    def rms(self, layer: int) -> float:
        vector = read(self.states[layer])
        return norm(vector) / math.sqrt(len(vector))

    def linear(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The output of each block's first linear map or convolution, cut from the graph, and the gradient there."""
        for block in self.net.blocks:
            first = next((part for part in block.modules() if isinstance(part, nn.Linear | nn.Conv2d)), None)
            if first is None:
                continue
            caught: list[Tensor] = []

            def cut(_part: object, _in: object, z: Tensor, caught: list[Tensor] = caught) -> Tensor:
                caught.append(z.detach().requires_grad_())
                return caught[0]

            handle = first.register_forward_hook(cut)
            try:
                total = self.sample_loss(forward(self.net, self.x), self.y).sum()
            finally:
                handle.remove()
            (slope,) = torch.autograd.grad(total, caught[0])
            yield caught[0].detach(), slope
