"""Faster arithmetic with the same bits: Adam, layers of R equal networks in one, and the gradient of a weight matrix.

In a stack each parameter of all replicas is one tensor.  R replicas, N samples, i inputs, o outputs, d width.  Any
class of `torch.optim` stands behind the same interface as our own Adam.
"""

import copy
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import Optimiser, PluginOptimiser
from sonde.network import Network
from sonde.network.units import SMALLEST_PRODUCT, has_onednn, onednn_linear

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


LANES = 16  # float32 numbers in the widest SIMD vector of a CPU


def stack_networks(nets: Sequence[Network]) -> Network:
    """One network of R replicas; the parameters of `nets` become views of its own."""
    net = _stacked(nets)
    assert isinstance(net, Network)
    net.lead = 1
    return net


def _stacked(modules: Sequence[nn.Module]) -> nn.Module:
    """One module of all replicas; their parameters become views of its own."""
    first = modules[0]
    if type(first) in _STACKED:
        return _STACKED[type(first)](modules)
    if next(first.parameters(recurse=False), None) is not None:
        raise TypeError(f"a {type(first).__name__} cannot be stacked")
    one = copy.copy(first)
    one._modules = {name: _stacked([module._modules[name] for module in modules]) for name in first._modules}  # type: ignore[misc]
    return one


def _stack_layout(part: Tensor) -> Tensor:
    """A replica's parameter in the layout of the stack: W_oi as W_io, b_o as b_1o.

    The batched product reads W_io, and its gradient is written without a copy.  Rows are padded with zeros to whole
    SIMD vectors, because arithmetic rounds differently where a replica begins or ends inside a vector.
    """
    whole = part.T if part.ndim == 2 else part[None]
    return F.pad(whole, (0, -whole.shape[-1] % LANES))


def share(parts: Sequence[Tensor], whole: Tensor) -> list[Tensor]:
    """Copy the tensors of the replicas into the stack; return a view of the stack for each."""
    torch.stack([_stack_layout(part) for part in parts], out=whole)
    size = len(parts[0])
    return [view[:, :size].T if parts[0].ndim == 2 else view[0, :size] for view in whole]


def _shared_parameter(modules: Sequence[nn.Module], name: str) -> nn.Parameter | None:
    """One parameter of all replicas as one tensor; those of the replicas become views of it."""
    parts: list[nn.Parameter] = [part for module in modules if (part := getattr(module, name)) is not None]
    if not parts:
        return None
    whole = parts[0].new_empty(len(parts), *_stack_layout(parts[0]).shape)
    for part, view in zip(parts, share([part.detach() for part in parts], whole), strict=True):
        part.data = view
    return nn.Parameter(whole)


class StackedLinear(nn.Module):
    """`nn.Linear` of every replica: x Wᵀ + b."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        first = modules[0]
        assert isinstance(first, nn.Linear)
        self.outputs = first.out_features
        self.weight, self.bias = _shared_parameter(modules, "weight"), _shared_parameter(modules, "bias")

    def forward(self, x_RNi: Tensor) -> Tensor:
        assert self.weight is not None
        out = torch.bmm(x_RNi, self.weight) if self.bias is None else torch.baddbmm(self.bias, x_RNi, self.weight)
        return out if self.outputs == out.shape[-1] else out[..., : self.outputs]


class StackedLayerNorm(nn.Module):
    """`nn.LayerNorm` of every replica."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        first = modules[0]
        assert isinstance(first, nn.LayerNorm)
        self.shape, self.eps = list(first.normalized_shape), first.eps
        self.weight, self.bias = _shared_parameter(modules, "weight"), _shared_parameter(modules, "bias")

    def forward(self, x_RNd: Tensor) -> Tensor:
        assert self.weight is not None
        assert self.bias is not None
        return torch.addcmul(self.bias, F.layer_norm(x_RNd, self.shape, eps=self.eps), self.weight)


_STACKED: dict[type[nn.Module], type[StackedLinear] | type[StackedLayerNorm]] = {
    nn.Linear: StackedLinear,
    nn.LayerNorm: StackedLayerNorm,
}


# ── the gradient of a weight matrix ─────────────────────────────────────────────────────────────────
# gᵀ x by the faster of two libraries that round it alike.  PyTorch multiplies float32 matrices with MKL.  oneDNN, which
# PyTorch also contains, takes about half the time on processors of AMD.  Both add up the samples in their order as long
# as there are few, so the bits are the same.  This is tested once for every shape; where one bit differs, MKL is used.
Product = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(g, x, out) → gᵀ x, in `out`."""

_SCALES = (1.0, 1e-20)  # of the numbers that are compared: squares of the second are denormal
_TRIES = 3


def faster_product(samples: int, outputs: int, inputs: int, like: Tensor) -> Product:
    """The product for tensors of this shape, in the type and on the device of `like`."""
    large = samples * outputs * inputs >= SMALLEST_PRODUCT
    suited = large and like.dtype == torch.float32 and like.device.type == "cpu"
    return _compared(samples, outputs, inputs, torch.get_num_threads()) if suited else by_mm


def by_mm(g_No: Tensor, x_Ni: Tensor, out_oi: Tensor) -> Tensor:
    """PyTorch's own product."""
    return torch.mm(g_No.T, x_Ni, out=out_oi)


def by_onednn(g_No: Tensor, x_Ni: Tensor, out_oi: Tensor) -> Tensor:
    """The same by oneDNN, which has no `out`; it is slow for tensors that are not contiguous, so MKL gets these."""
    if not (g_No.is_contiguous() and x_Ni.is_contiguous()):
        return by_mm(g_No, x_Ni, out_oi)
    return out_oi.copy_(onednn_linear(g_No.T, x_Ni.T, None))


@cache
def _compared(samples: int, outputs: int, inputs: int, threads: int) -> Product:
    """oneDNN's product where it exists, gives the same bits and is faster; else `by_mm`."""
    if not has_onednn():
        return by_mm
    rng = torch.Generator().manual_seed(0)
    g_No, x_Ni = (torch.randn(samples, width, generator=rng) for width in (outputs, inputs))
    ours, theirs = torch.empty(outputs, inputs), torch.empty(outputs, inputs)
    for scale in _SCALES:
        if not torch.equal(by_onednn(scale * g_No, scale * x_Ni, ours), by_mm(scale * g_No, scale * x_Ni, theirs)):
            return by_mm
    return min((by_mm, by_onednn), key=lambda product: _seconds(product, g_No, x_Ni, ours))


def _seconds(product: Product, g_No: Tensor, x_Ni: Tensor, out_oi: Tensor) -> float:
    times = []
    for _ in range(_TRIES):
        begin = time.process_time()
        product(g_No, x_Ni, out_oi)
        times.append(time.process_time() - begin)
    return min(times)
