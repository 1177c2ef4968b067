"""Adam and AdamW with everything kept that need not be made anew at every step.

PyTorch's fused kernel does the arithmetic; `torch.optim` would spend, on a small network, longer gathering its
lists than computing.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Adam:
    """The steps of `torch.optim.Adam(fused=True)`, or of AdamW where the decay is decoupled, bit for bit.

    A parameter gets a gradient at every step or at none; those without are left alone.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, weight_decay: float, decoupled: bool) -> None:
        self.parameters = list(parameters)
        self.weight_decay = weight_decay
        self.first = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters]
        self.steps = torch.zeros((), dtype=torch.float32, device=parameters[0].device)
        self._kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
        self._lists: tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]] = ([], [], [], [])

    @torch.no_grad()
    def step(self, lr: float) -> None:
        grads = [p.grad for p in self.parameters if p.grad is not None]
        if len(grads) != len(self._lists[0]):
            self._gather()
        if not grads:
            return
        self.steps += 1
        parameters, first, second, steps = self._lists
        self._kernel(
            parameters,
            grads,
            first,
            second,
            [],
            steps,
            lr=lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=None,
        )

    def _gather(self) -> None:
        trained = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        kept: tuple[Sequence[Tensor], ...] = (self.parameters, self.first, self.second)
        parameters, first, second = ([tensors[i] for i in trained] for tensors in kept)
        self._lists = parameters, first, second, [self.steps] * len(trained)

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "first": self.first, "second": self.second}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps.copy_(state["steps"])
        for mine, stored in ((self.first, state["first"]), (self.second, state["second"])):
            for to, value in zip(mine, stored, strict=True):
                to.copy_(value)
