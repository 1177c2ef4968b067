"""One batch, over and over: does the model learn it by heart in fifty steps, and what would have to change if not?"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sonde.observe.experiments.copies import Loss, run

STEPS = 50
FEWEST = 10
SECONDS = 1.0  # of one fit; a large model gets fewer steps

Optimisers = Sequence[tuple[type[torch.optim.Optimizer], list[dict[str, Any]]]]
"""Kinds and groups; in a group, `params` are names of parameters."""


def recipe(
    optimisers: Sequence[torch.optim.Optimizer], names: Mapping[int, str], facts: Mapping[str, Any]
) -> Optimisers:
    """How to make the same optimisers for a copy, with the rates of the first step."""
    made = []
    for place, known in enumerate(optimisers):
        groups = []
        told = facts.get("optimisers", [])
        for number, group in enumerate(known.param_groups):
            first = told[place]["groups"][number] if place < len(told) and number < len(told[place]["groups"]) else {}
            options = {key: value for key, value in group.items() if key not in ("params", "initial_lr")}
            options["lr"] = first.get("lr", options.get("lr"))
            members = [names[id(p)] for p in group["params"] if id(p) in names]
            groups.append({**options, "params": members})
        made.append((type(known), groups))
    return made


def rebuilt(model: nn.Module, optimisers: Optimisers, rate: float) -> list[torch.optim.Optimizer]:
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


def fit(
    model: nn.Module,
    optimisers: Optimisers,
    loss: Loss,
    x: Any,
    y: Any,
    *,
    rate: float = 1.0,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Losses of so many steps on one batch."""
    return _fit(model, rebuilt(model, optimisers, rate), loss, x, y, steps) | {"rate": rate}


def _fit(
    model: nn.Module, walks: Sequence[torch.optim.Optimizer], loss: Loss, x: Any, y: Any, steps: int
) -> dict[str, Any]:
    losses: list[float] = []
    begun = time.process_time()
    moved = [p for walk in walks for group in walk.param_groups for p in group["params"] if p.requires_grad]
    with torch.enable_grad():
        for _ in range(steps):
            value = loss(run(model, x), y)
            losses.append(float(value.detach().double().mean()))
            if not math.isfinite(losses[-1]):
                break
            for walk in walks:
                walk.zero_grad()
            if moved:  # and nothing else: the loss may hold parameters of the run
                torch.autograd.backward(value, inputs=moved)
            for walk in walks:
                walk.step()
            if time.process_time() - begun > SECONDS and len(losses) >= FEWEST:
                break
    tail = losses[-5:]
    return {
        "first": losses[0],
        "last": sum(tail) / len(tail) if all(map(math.isfinite, tail)) else None,
        "lowest": min((one for one in losses if math.isfinite(one)), default=None),
        "highest": max((one for one in losses if math.isfinite(one)), default=None),
        "steps": len(losses),
    }


def attempt(question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A fit, or why there is none."""
    try:
        return question()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
