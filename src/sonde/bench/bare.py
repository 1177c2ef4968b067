"""The loops one writes without Sonde: the same networks, batches and optimiser, nothing logged.

`fused` is the implementation of Adam that Sonde uses; PyTorch's default is another, slower on a processor.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sonde.config import Optimiser
from sonde.network import Network

Batches = Iterable[tuple[Tensor, Tensor]]


def optimiser(parameters: Iterable[nn.Parameter], config: Optimiser, *, fused: bool) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    implementation: dict[str, Any] = {"fused": True} if fused else {}
    return kind(parameters, lr=config.lr, weight_decay=config.weight_decay, **implementation)


def backprop(net: Network, batches: Batches, *, fused: bool = True) -> Callable[[], None]:
    """Cross entropy by backprop, over all batches at every call."""
    adam = optimiser(net.parameters(), Optimiser(), fused=fused)

    def epoch() -> None:
        for x, y in batches:
            loss = nn.functional.cross_entropy(net(x), y)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()

    return epoch


def identity(net: Network, x_all: Tensor, config: Optimiser, *, steps: int, batch: int) -> Callable[[], None]:
    """The residual study: draw a batch, reproduce it, keep the loss of every step."""
    adam = optimiser(net.parameters(), config, fused=True)

    def epoch() -> None:
        losses = []
        for _ in range(steps):
            x = x_all[torch.randint(len(x_all), (batch,))]
            loss = nn.functional.mse_loss(net(x), x)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            losses.append(loss.detach())
        torch.stack(losses).tolist()

    return epoch
