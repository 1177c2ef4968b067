"""Copies of a model and its batch: in another precision, with the weights it began with, with fresh ones."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.generators import preserve_rng
from sonde.observe.facts import tensors
from sonde.observe.watched_modules import contents, inside

Loss = Callable[[Any, Any], Tensor]


def copied(model: nn.Module, precision: torch.dtype | None = None) -> nn.Module:
    """A copy, in this precision and on a device that has it; its gradients are cleared."""
    try:
        source = contents(inside(model))
        twin = copy.deepcopy(source, _computed(source))
    except Exception as error:
        raise SondeError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}): check it before its first use"
        ) from error
    if precision == torch.float64 and next(twin.parameters()).device.type == "mps":
        twin = twin.cpu()
    twin.zero_grad()
    return twin if precision is None else twin.to(precision)


def _computed(model: nn.Module) -> dict[int, Any]:
    """Copies of tensors that modules keep and autograd made, which `deepcopy` refuses: a normalised weight, a state."""
    kept = (known for module in model.modules() for _, known in tensors(module.__dict__))
    return {id(known): known.detach().clone() for known in kept if known.grad_fn is not None}


def cast(value: Any, precision: torch.dtype | None) -> Any:
    """Copies of tensors, floating-point ones in this precision; everything else as it is."""
    if isinstance(value, Tensor):
        value = value.detach().clone()
        return value.to(precision) if precision is not None and value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: cast(inner, precision) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        inner = [cast(one, precision) for one in value]
        return inner if isinstance(value, list) else tuple(inner)
    return value


def arguments(x: Any) -> tuple[Any, ...]:
    """A tuple is several arguments; anything else is one."""
    return x if isinstance(x, tuple) else (x,)


def run(model: nn.Module, x: Any) -> Any:
    """The model's output; a mapping is its keyword arguments."""
    return model(**x) if isinstance(x, Mapping) else model(*arguments(x))


def reset(model: nn.Module) -> list[str]:
    """Fresh weights from every module that knows how to draw them; the parameters that are not among those."""
    drawn: set[int] = set()
    for module in model.modules():
        known = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(known):
            known()
            drawn |= {id(parameter) for parameter in module.parameters(recurse=known.__name__[0] == "_")}
    return [name for name, parameter in model.named_parameters() if id(parameter) not in drawn]


def set_modes(model: nn.Module, facts: Mapping[str, Any]) -> None:
    """Train or eval mode of every module as it was in the first step."""
    if "training" not in facts:
        return
    model.train(facts["training"])
    known = dict(model.named_modules())
    for name in facts.get("in_the_other_mode", []):
        if name in known:
            known[name].training = not facts["training"]


@contextmanager
def generators_kept(seed: int | None = None) -> Iterator[None]:
    """Whatever is drawn inside leaves the random generators as they were."""
    devices = [torch.device("cuda", place) for place in range(torch.cuda.device_count())]
    devices += [torch.device("mps")] if torch.backends.mps.is_available() else []
    with preserve_rng(*devices):
        if seed is not None:
            torch.manual_seed(seed)
        yield
