"""Copies of a model and its batch: in another precision, with first or fresh weights, trained for a few steps."""

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sonde.analysis.diagnosis.run_evidence import FIT_STEPS
from sonde.core.errors import SondeError
from sonde.core.generators import preserve_rng
from sonde.metrics.reductions import root_mean_square
from sonde.observe.facts import IGNORED, tensors
from sonde.observe.watched_modules import uncompiled, unwrapped

OutputLoss = Callable[[Any, Any], Tensor]

OptimiserRecipes = Sequence[tuple[type[torch.optim.Optimizer], list[dict[str, Any]]]]
"""Classes and parameter groups; in a group, `params` are names of parameters."""

_FEWEST_STEPS = 10


def copied(model: nn.Module, precision: torch.dtype | None = None) -> nn.Module:
    """A copy, in this precision and on a device that has it; its gradients are cleared."""
    try:
        source = uncompiled(unwrapped(model))
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


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Nested tuples, lists and mappings with every tensor changed, and everything else as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(change, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        inner = [map_tensors(change, one) for one in value]
        return inner if isinstance(value, list) else tuple(inner)
    return value


def cast_tensors(value: Any, precision: torch.dtype | None) -> Any:
    """Copies of tensors, floating-point ones in this precision."""

    def change(x: Tensor) -> Tensor:
        x = x.detach().clone()
        return x.to(precision) if precision is not None and x.is_floating_point() else x

    return map_tensors(change, value)


def take_samples(value: Any, places: Tensor, many: int) -> Any:
    """The samples at these places, of every tensor that has `many` along its first axis."""
    return map_tensors(lambda x: x[places] if x.dim() and x.shape[0] == many else x, value)


def standardised(value: Any) -> Any:
    """Floating-point tensors with mean 0 and spread 1 in each feature (of maps and sequences: in each channel)."""

    def change(x: Tensor) -> Tensor:
        if not x.is_floating_point() or x.dim() < 2 or x.layout != torch.strided:
            return x
        axes = [0] if x.dim() == 2 else [axis for axis in range(x.dim()) if axis != (1 if x.dim() > 3 else x.dim() - 1)]
        spread = x.std(axes, correction=0, keepdim=True)
        return (x - x.mean(axes, keepdim=True)) / torch.where(spread > 0, spread, 1.0)

    return map_tensors(change, value)


def run_model(model: nn.Module, x: Any) -> Any:
    """The model's output.  A mapping is its keyword arguments, a tuple its arguments; anything else is one argument."""
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


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


# Targets


def describe_targets(y: Any, outputs: Tensor | None) -> dict[str, Any]:
    """`kind`: classes (whole numbers that name one), one-hot, labels (several may hold), binary, real, or none."""
    if not isinstance(y, Tensor) or not y.numel() or y.is_complex():
        return {"kind": "none"}
    flat = y.detach().double()
    if not y.is_floating_point() and bool((y != IGNORED).any()):
        flat = flat[y != IGNORED]
    values = flat.flatten().tolist()
    known: dict[str, Any] = {
        "shape": list(y.shape),
        "many": len(values),
        "mean": float(flat.mean()),
        "std": float(flat.std(correction=0)),
        "min": float(flat.min()),
        "max": float(flat.max()),
        "rms": float(root_mean_square(flat)),
        "distinct": len(set(values)),
        "top_share": Counter(values).most_common(1)[0][1] / len(values),
    }
    return known | {"kind": _kind_of_targets(y, flat, outputs)}


def _kind_of_targets(y: Tensor, flat: Tensor, outputs: Tensor | None) -> str:
    if not y.is_floating_point():
        return _kind_of_whole_targets(y, flat, outputs)
    if not bool(((flat == 0) | (flat == 1)).all()):
        return "real"
    if y.dim() < 2 or y.shape[-1] == 1:
        return "binary"
    if y.dim() == 2 and bool((flat.sum(-1) == 1).all()):
        return "one-hot"
    return "labels" if y.dim() == 2 and y.shape[-1] <= y.shape[0] else "real"


def name_places(y: Tensor, outputs: Tensor | None) -> bool:
    """Whether targets are 0, 1, 2…: the place of each sample in the batch, in a softmax over its samples."""
    if outputs is None or y.dim() != 1 or list(outputs.shape) != [len(y), len(y)]:
        return False
    return torch.equal(y, torch.arange(len(y)).to(y))


def _kind_of_whole_targets(y: Tensor, flat: Tensor, outputs: Tensor | None) -> str:
    """Whole numbers name classes where there are several outputs for each of them, with or without its axes."""
    if outputs is None or outputs.dim() == y.dim() + 1:
        return "none" if name_places(y, outputs) else "classes"
    several = [outputs.shape[axis] for axis in (1, -1) if outputs.dim() > 1]
    if any(many > 1 and many * y.numel() == outputs.numel() for many in several):
        return "classes"
    if bool(flat.max() <= 1) and bool(flat.min() >= 0):
        return "binary"
    return "real" if y.numel() == outputs.numel() else "none"


def missing_classes(y: Any, outputs: Tensor) -> dict[str, Any] | None:
    """How many classes one answer per sample has, the number of targets, and the classes that no target names."""
    if not isinstance(y, Tensor) or outputs.dim() != 2 or y.dim() != 1:
        return None
    seen, many = {*y.tolist()}, outputs.shape[1]
    return {"outputs": many, "samples": len(y), "missing": [one for one in range(many) if one not in seen]}


def sample_count(x: Any, y: Any) -> int | None:
    """How many samples a batch has: the first axis of its tensors; None where these differ."""
    known = [tensor for _, tensor in tensors((x, y)) if tensor.layout != torch.strided or tensor.dim()]
    if any(tensor.layout != torch.strided for tensor in known):
        return None
    sizes = {len(tensor) for tensor in known}
    return sizes.pop() if len(sizes) == 1 else None


# Fits


def optimiser_recipes(
    optimisers: Sequence[torch.optim.Optimizer], names: Mapping[int, str], facts: Mapping[str, Any]
) -> OptimiserRecipes:
    """How to make the same optimisers for a copy, with the rates of the first step, or of now after a warm-up."""
    first_rates = {
        (place, number): group["lr"]
        for place, optimiser in enumerate(facts.get("optimisers", []))
        for number, group in enumerate(optimiser["groups"])
        if "lr" in group
    }
    made = []
    for place, known in enumerate(optimisers):
        groups = []
        for number, group in enumerate(known.param_groups):
            options = {key: value for key, value in group.items() if key not in ("params", "initial_lr")}
            if "lr" in options:
                options["lr"] = max(first_rates.get((place, number), options["lr"]), options["lr"])
            members = [names[id(p)] for p in group["params"] if id(p) in names]
            groups.append({**options, "params": members})
        made.append((type(known), groups))
    return made


def _rebuilt(model: nn.Module, optimisers: OptimiserRecipes, rate: float) -> list[torch.optim.Optimizer]:
    known = dict(model.named_parameters(remove_duplicate=False))
    made = []
    for kind, groups in optimisers:
        own = []
        for group in groups:
            lr = group["lr"] * rate
            own.append({**group, "params": [known[name] for name in group["params"] if name in known], "lr": lr})
        own = [group for group in own if group["params"]]
        if own:
            build: Any = kind
            made.append(build(own, lr=own[0]["lr"]))
    return made


def _train_once(
    model: nn.Module,
    walks: Sequence[torch.optim.Optimizer],
    loss: OutputLoss,
    x: Any,
    y: Any,
    measure: OutputLoss | None = None,
) -> float:
    """The loss, or what `measure` says of the same output; the model takes a step if the loss is finite."""
    moved = [p for walk in walks for group in walk.param_groups for p in group["params"] if p.requires_grad]
    returned = run_model(model, x)
    value = loss(returned, y)
    known = float((value if measure is None else measure(returned, y)).detach().double().mean())
    if math.isfinite(known) and bool(value.isfinite().all()):
        for walk in walks:
            walk.zero_grad()
        if moved:  # and nothing else: the loss may hold parameters of the run
            torch.autograd.backward(value, inputs=moved)
        for walk in walks:
            walk.step()
    return known


def _raise_rates(walks: Sequence[torch.optim.Optimizer], step: int) -> None:
    """Rates of a step in which they rise linearly over the first half of a fit."""
    for group in (group for walk in walks for group in walk.param_groups):
        group["lr"] = group.setdefault("full_lr", group["lr"]) * min(1.0, 2 * (step + 1) / FIT_STEPS)


def fit(
    model: nn.Module,
    optimisers: OptimiserRecipes,
    loss: OutputLoss,
    x: Any,
    y: Any,
    *,
    rate: float = 1.0,
    warm_up: bool = False,
    seconds: float = 1.0,
    measure: OutputLoss | None = None,
) -> dict[str, Any]:
    """Train the model for fifty steps on one batch, with learning rates times `rate`; its losses.

    With `warm_up` rates rise linearly over the first half.  A large model gets fewer steps: ten, or as many as
    `seconds` allow.
    """
    walks = _rebuilt(model, optimisers, rate)
    losses: list[float] = []
    begun = time.process_time()
    with torch.enable_grad():
        while len(losses) < FIT_STEPS:
            if warm_up:
                _raise_rates(walks, len(losses))
            losses.append(_train_once(model, walks, loss, x, y, measure))
            late = time.process_time() - begun > seconds and len(losses) >= _FEWEST_STEPS
            if late or not math.isfinite(losses[-1]):
                break
    tail = losses[-5:]
    return {
        "first": losses[0],
        "last": sum(tail) / len(tail) if all(map(math.isfinite, tail)) else None,
        "lowest": min((one for one in losses if math.isfinite(one)), default=None),
        "highest": max((one for one in losses if math.isfinite(one)), default=None),
        "steps": len(losses),
        "rate": rate,
    }


def attempt(question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of an experiment, or why it failed."""
    try:
        return question()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
