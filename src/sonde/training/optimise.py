"""Optimisers in training: our own Adam, and any class of `torch.optim` behind the same interface."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.optimisers import Optimiser, PluginOptimiser

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8


class Adam:
    """The steps of `torch.optim.Adam(fused=True)`, or of AdamW where the decay is decoupled, bit for bit.

    It calls PyTorch's fused kernel and keeps the lists of tensors between steps: on a small network `torch.optim`
    spends more time on making these lists than on computing.  A parameter gets a gradient at every step or at none;
    parameters without one are left alone.
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
        """Take a step at this rate."""
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
            beta1=ADAM_BETAS[0],
            beta2=ADAM_BETAS[1],
            weight_decay=self.weight_decay,
            eps=ADAM_EPSILON,
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

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "first": self.first, "second": self.second}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps.copy_(state["steps"])
        for moments, stored in ((self.first, state["first"]), (self.second, state["second"])):
            for moment, value in zip(moments, stored, strict=True):
                moment.copy_(value)


class TrainingOptimiser(Protocol):
    """What training needs of an optimiser."""

    def step(self, lr: float) -> None:
        """Take a step at this rate."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def make_optimiser(chosen: Optimiser | PluginOptimiser, parameters: Sequence[nn.Parameter]) -> TrainingOptimiser:
    """Make the optimiser of a configuration for these parameters."""
    if isinstance(chosen, PluginOptimiser):
        try:
            return TorchOptimiser(chosen.kind(parameters, lr=chosen.lr, **chosen.keywords))
        except (TypeError, ValueError) as error:
            raise SondeError(f"optimiser {type(chosen).__name__}: {error}") from error
    if chosen.name == "sgd":
        sgd = torch.optim.SGD(
            parameters,
            lr=chosen.lr,
            weight_decay=chosen.weight_decay,
            momentum=chosen.momentum,
            nesterov=chosen.nesterov,
        )
        return TorchOptimiser(sgd)
    return adam(chosen, parameters)


def adam(chosen: Optimiser | PluginOptimiser, parameters: Sequence[nn.Parameter]) -> Adam:
    """Make Adam or AdamW."""
    assert isinstance(chosen, Optimiser)
    return Adam(parameters, weight_decay=chosen.weight_decay, decoupled=chosen.name == "adamw")


class TorchOptimiser:
    """An optimiser of `torch.optim`.  Loads its state unchanged; PyTorch's own loading converts types."""

    def __init__(self, optimiser: torch.optim.Optimizer) -> None:
        self.optimiser = optimiser
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]

    def step(self, lr: float) -> None:
        """Set the rate of every group, and take a step."""
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        self.optimiser.step()

    def state_dict(self) -> dict[str, Any]:
        """The state of each parameter, and the options of each group."""
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimiser.param_groups]
        known = [dict(self.optimiser.state.get(p, {})) for p in self.parameters]
        for values in (*groups, *known):
            for name, value in values.items():
                if not isinstance(value, Tensor | bool | int | float | str | list | tuple | dict | None):
                    raise SondeError(
                        f"{type(self.optimiser).__name__} remembers {name!r} as a {type(value).__name__}, which cannot "
                        "be stored: let it keep tensors and plain values"
                    )
        return {"groups": groups, "parameters": known}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for group, stored in zip(self.optimiser.param_groups, state["groups"], strict=True):
            group |= {k: tuple(v) if isinstance(group.get(k), tuple) else v for k, v in stored.items()}
        for p, values in zip(self.parameters, state["parameters"], strict=True):
            if values:
                self.optimiser.state[p] = {
                    k: v.to(p.device) if isinstance(v, Tensor) and v.ndim else v for k, v in values.items()
                }
