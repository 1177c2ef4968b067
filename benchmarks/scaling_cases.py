"""The cases of benchmarks/scaling.py: 20 networks with one planted scaling fault each, and 20 without.

A parametrisation is written as powers of the size relative to a base of 64 (width) or 4 (depth): the standard deviation
of the initial weights, the rate, and a multiplier of the output.  A fault changes one entry of it.

The list was written before the first measurement.  Two corrections of "correct" cases followed from it, both of biases:
that of the readout, which does not grow, had the rate of other biases under SGD; and biases behind a multiplier had
rates as if there were none.  Both are faults, which the measurement named.
"""

# ruff: noqa: E501

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Rates = Mapping[str, float]  # role → power of the width

ADAM: Rates = {"input": 0.0, "hidden": -1.0, "output": -1.0, "vector": 0.0, "fixed": 0.0}
SGD: Rates = {"input": 1.0, "hidden": 0.0, "output": -1.0, "vector": 1.0, "fixed": 0.0}
SAME: Rates = dict.fromkeys(ADAM, 0.0)  # the standard parametrisation: one rate for all, at every width

BASE, BASE_DEPTH = 64, 4


@dataclass(frozen=True)
class Case:
    """A factory with a size argument; for a fault, parts of the names of the groups that it is in."""

    make: Callable[..., Any]
    over: str = "width"
    promise: str = "mup"
    faulty: tuple[str, ...] = ()
    sizes: tuple[int, ...] = field(default=())


def role(name: str, parameter: Tensor) -> str:
    """The role of a parameter of the networks below, from its name."""
    if name == "readout.bias":
        return "fixed"
    if parameter.dim() < 2:
        return "vector"
    if name.startswith(("inp", "embed", "position")):
        return "input"
    return "output" if name.startswith("readout") else "hidden"


def optimiser(
    model: nn.Module,
    kind: str,
    lr: float,
    scale: float,
    rates: Rates,
    change: Mapping[str, float] | None = None,
    factors: Mapping[str, float] | None = None,
    branch: float = 1.0,
) -> torch.optim.Optimizer:
    """One group per parameter; `change` replaces the power, and `factors` multiply the rate, where a name begins so.

    `branch` multiplies the rates of residual blocks.
    """
    groups = []
    for name, parameter in model.named_parameters():
        power = next((p for start, p in (change or {}).items() if start in name), rates[role(name, parameter)])
        factor = next((f for start, f in (factors or {}).items() if start in name), 1.0)
        rate = lr * scale**power * factor * (branch if name.startswith("blocks") else 1.0)
        groups.append({"params": [parameter], "lr": rate})
    optimisers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
        "momentum": partial(torch.optim.SGD, momentum=0.9),
    }
    return optimisers[kind](groups, lr=lr)


def batch(*shape: int, classes: int = 4) -> tuple[Tensor, Tensor]:
    """The same batch at every size and seed."""
    rng = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=rng), torch.randint(classes, shape[:1], generator=rng)


class MLP(nn.Module):
    """Input layer, two hidden ones, readout; `multiplier` scales the logits."""

    def __init__(self, n: int, act: Callable[[Tensor], Tensor], multiplier: float, forward_scale: float) -> None:
        super().__init__()
        self.inp, self.readout = nn.Linear(16, n), nn.Linear(n, 4)
        self.hidden = nn.ModuleList([nn.Linear(n, n) for _ in range(2)])
        self.act, self.multiplier, self.forward_scale = act, multiplier, forward_scale

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.inp(x))
        for layer in self.hidden:
            h = self.act(layer(h) * self.forward_scale)
        return self.readout(h) * self.multiplier  # type: ignore[no-any-return]


def mlp(
    width: int,
    lr: float | None = None,
    *,
    kind: str = "adam",
    rates: Rates | None = None,
    act: Callable[[Tensor], Tensor] = functional.relu,
    readout: float = -1.0,
    hidden: float = -0.5,
    multiplier: float = 0.0,
    forward_scale: float = 0.0,
    zero: bool = False,
    change: Mapping[str, float] | None = None,
) -> Any:
    """µP for an MLP; `readout` and `hidden` are powers of the width in the initial standard deviations."""
    scale = width / BASE
    model = MLP(width, act, scale**multiplier, scale**forward_scale)
    nn.init.normal_(model.inp.weight, 0, 16**-0.5)
    layer: Any
    for layer in model.hidden:
        nn.init.normal_(layer.weight, 0, math.sqrt(2 / BASE) * scale**hidden)
    nn.init.normal_(model.readout.weight, 0, 0 if zero else BASE**-0.5 * scale**readout)
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.zeros_(parameter)
    rates = rates or (ADAM if kind.startswith("adam") else SGD)
    lr = lr or (2e-3 if kind.startswith("adam") else 0.02)
    made = optimiser(model, kind, lr, scale, rates, change)
    return model, made, *batch(32, 16), nn.CrossEntropyLoss()


class Attention(nn.Module):
    """Two heads; logits are divided by d^power of the head's size d, times a constant that is 1 at the base width."""

    def __init__(self, n: int, power: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(n, n, bias=False) for _ in range(4))
        d = n // 2
        self.scale = (BASE / 2) ** (power - 0.5) * d**-power

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        weights = (q @ k.transpose(-1, -2) * self.scale).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A pre-norm transformer block; branches are multiplied by `branch`."""

    def __init__(self, n: int, power: float, branch: float) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(n), nn.LayerNorm(n), Attention(n, power)
        self.up, self.down, self.branch = nn.Linear(n, 2 * n), nn.Linear(2 * n, n), branch

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branch * self.attention(self.norm1(x))
        return x + self.branch * self.down(functional.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """A language model of a vocabulary of 32; tied: logits are products with the embedding."""

    def __init__(self, n: int, layers: int, power: float, branch: float, multiplier: float, tied: bool) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(32, n), nn.Parameter(torch.randn(8, n) * 0.3)
        self.blocks = nn.ModuleList([Block(n, power, branch) for _ in range(layers)])
        self.norm = nn.LayerNorm(n)
        if not tied:
            self.readout = nn.Linear(n, 32, bias=False)
        self.multiplier = multiplier

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids) + self.position
        for block in self.blocks:
            h = block(h)
        h = self.norm(h)
        logits = self.readout(h) if hasattr(self, "readout") else h @ self.embed.weight.T
        return logits.flatten(0, 1) * self.multiplier  # type: ignore[no-any-return]


def transformer(
    width: int = 64,
    lr: float | None = None,
    *,
    depth: int = 2,
    power: float = 1.0,
    rates: Rates = ADAM,
    readout: float = -1.0,
    tied: bool = False,
    multiplier: float = 0.0,
    query_zero: bool = False,
    branch: float = 0.0,
    branch_rate: float = 0.0,
    change: Mapping[str, float] | None = None,
    factors: Mapping[str, float] | None = None,
) -> Any:
    """µP for a small language model under Adam; `branch` and `branch_rate` are powers of the depth."""
    scale, deep = width / BASE, depth / BASE_DEPTH
    model = Transformer(width, depth, power, deep**branch, scale**multiplier, tied)
    for name, parameter in model.named_parameters():
        if role(name, parameter) == "hidden":
            nn.init.normal_(parameter, 0, parameter.shape[1] ** -0.5)
    nn.init.normal_(model.embed.weight, 0, BASE**-0.5 if tied else 1.0)
    if not tied:
        nn.init.normal_(model.readout.weight, 0, BASE**-0.5 * scale**readout)
    if query_zero:
        block: Any
        for block in model.blocks:
            nn.init.zeros_(block.attention.query.weight)
    made = optimiser(model, "adam", lr or 2e-3, scale, rates, change, factors, deep**branch_rate)
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(32, (4, 9), generator=rng)
    return model, made, ids[:, :-1], ids[:, 1:].flatten(), nn.CrossEntropyLoss()


class ConvNet(nn.Module):
    """Three convolutions, a mean over places, a readout."""

    def __init__(self, n: int, norm: bool) -> None:
        super().__init__()
        self.inp, self.conv1, self.conv2 = (nn.Conv2d(c, n, 3, padding=1) for c in (3, n, n))
        self.norm1, self.norm2 = (nn.BatchNorm2d(n) if norm else nn.Identity() for _ in range(2))
        self.readout = nn.Linear(n, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.inp(x))
        h = functional.relu(self.norm1(self.conv1(h)))
        h = functional.relu(self.norm2(self.conv2(h)))
        return self.readout(h.mean((2, 3)))  # type: ignore[no-any-return]


def convnet(
    width: int,
    lr: float | None = None,
    *,
    kind: str = "adam",
    rates: Rates | None = None,
    readout: float = -1.0,
    norm: bool = False,
    change: Mapping[str, float] | None = None,
) -> Any:
    """µP for a small convolutional network."""
    scale = width / BASE
    model = ConvNet(width, norm)
    for conv in (model.inp, model.conv1, model.conv2):
        nn.init.kaiming_normal_(conv.weight)
    nn.init.normal_(model.readout.weight, 0, BASE**-0.5 * scale**readout)
    rates = rates or (ADAM if kind == "adam" else SGD)
    made = optimiser(model, kind, lr or (2e-3 if kind == "adam" else 0.02), scale, rates, change)
    return model, made, *batch(8, 3, 6, 6), nn.CrossEntropyLoss()


class ResidualMLP(nn.Module):
    """h + branch · W₂ ReLU(W₁ h), some blocks."""

    def __init__(self, n: int, layers: int, branch: float) -> None:
        super().__init__()
        self.inp, self.readout, self.branch = nn.Linear(16, n), nn.Linear(n, 4), branch
        parts = [nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n)) for _ in range(layers)]
        self.blocks = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        for block in self.blocks:
            h = h + self.branch * block(h)
        return self.readout(h)  # type: ignore[no-any-return]


def residual(
    depth: int,
    lr: float | None = None,
    *,
    kind: str = "adam",
    branch: float = -0.5,
    branch_rate: float | None = None,
    width: int = 64,
) -> Any:
    """Depth-µP for a residual MLP: branches ∝ depth^-½; under Adam their rates ∝ depth^-½, under SGD constant."""
    deep = depth / BASE_DEPTH
    model = ResidualMLP(width, depth, 0.5 * deep**branch)
    nn.init.normal_(model.inp.weight, 0, 16**-0.5)
    block: Any
    for block in model.blocks:
        for layer in (block[0], block[2]):
            nn.init.normal_(layer.weight, 0, width**-0.5)
            nn.init.zeros_(layer.bias)
    nn.init.normal_(model.readout.weight, 0, width**-0.5)
    if branch_rate is None:
        branch_rate = -0.5 if kind == "adam" else 0.0
    made = optimiser(model, kind, lr or (1e-3 if kind == "adam" else 0.02), 1.0, SAME, branch=deep**branch_rate)
    return model, made, *batch(32, 16), nn.CrossEntropyLoss()


_STANDARD: dict[str, Any] = {"rates": SAME, "readout": -0.5}

FAULTS: dict[str, Case] = {
    "readout starts with 1/√n, Adam": Case(partial(mlp, readout=-0.5), faulty=("readout",)),
    "readout's rate is not scaled, Adam": Case(partial(mlp, change={"readout.weight": 0.0}), faulty=("readout",)),
    "hidden rate is not scaled, Adam": Case(partial(mlp, change={"hidden.0.weight": 0.0, "hidden.1.weight": 0.0}), faulty=("hidden",)),
    "input's rate is scaled like a hidden one, Adam": Case(partial(mlp, change={"inp.weight": -1.0}), faulty=("inp",)),
    "biases' rate is scaled like a hidden one, Adam": Case(partial(mlp, change={"hidden.0.bias": -1.0, "hidden.1.bias": -1.0}), faulty=("hidden",)),
    "hidden weights start with a constant deviation, Adam": Case(partial(mlp, hidden=0.0), faulty=("hidden",)),
    "Adam's rates under SGD": Case(partial(mlp, kind="sgd", rates=ADAM), faulty=("inp", "hidden")),
    "input's rate is not scaled, SGD": Case(partial(mlp, kind="sgd", change={"inp.weight": 0.0}), faulty=("inp",)),
    "readout's rate is not scaled, SGD": Case(partial(mlp, kind="sgd", change={"readout.weight": 0.0}), faulty=("readout",)),
    "readout starts with 1/√n, SGD": Case(partial(mlp, kind="sgd", readout=-0.5), faulty=("readout",)),
    "attention 1/√d": Case(partial(transformer, power=0.5), faulty=("attention", "query", "key")),
    "embedding's rate is scaled": Case(partial(transformer, change={"embed": -1.0}), faulty=("embed",)),
    "tied embedding without a multiplier": Case(partial(transformer, tied=True), faulty=("embed", "output")),
    "norms are frozen": Case(partial(transformer, factors={"norm": 0.0}), faulty=("norm",)),
    "norms' rate is scaled": Case(partial(transformer, change={"norm": -1.0}), faulty=("norm",)),
    "one feed-forward rate is not scaled": Case(partial(transformer, change={"up.weight": 0.0}), faulty=("up",)),
    "attention without a scale": Case(partial(transformer, power=0.0, **_STANDARD), promise="standard", faulty=("attention",)),
    "convolutions' rate is not scaled": Case(partial(convnet, change={"conv1.weight": 0.0, "conv2.weight": 0.0}), faulty=("conv",)),
    "1/√L is missing": Case(partial(residual, branch=0.0), over="depth", faulty=("blocks",)),
    "the rate of blocks is not scaled with depth, Adam": Case(partial(residual, branch_rate=0.0), over="depth", faulty=("blocks",)),
}  # fmt: skip

CORRECT: dict[str, Case] = {
    "µP MLP, Adam": Case(mlp),
    "µP MLP, Adam, tanh": Case(partial(mlp, act=torch.tanh)),
    "µP MLP, AdamW": Case(partial(mlp, kind="adamw")),
    "µP MLP, SGD": Case(partial(mlp, kind="sgd")),
    "µP MLP, SGD with momentum": Case(partial(mlp, kind="momentum", lr=0.01)),
    "µP MLP, SGD, tanh": Case(partial(mlp, kind="sgd", act=torch.tanh)),
    "µP MLP, readout starts at zero": Case(partial(mlp, zero=True)),
    "µP MLP, multiplier of the readout": Case(partial(mlp, readout=-0.5, multiplier=-0.5, change={"readout.weight": -0.5, "readout.bias": 0.5})),
    "µP MLP, multiplier of hidden layers": Case(partial(mlp, hidden=0.0, forward_scale=-0.5, change={"hidden.0.weight": -0.5, "hidden.1.weight": -0.5, "hidden.0.bias": 0.5, "hidden.1.bias": 0.5})),
    "µP transformer": Case(transformer),
    "µP transformer, queries start at zero": Case(partial(transformer, query_zero=True)),
    "µP transformer, tied with a multiplier": Case(partial(transformer, tied=True, multiplier=-1.0)),
    "µP convolutions, Adam": Case(convnet),
    "µP convolutions, SGD": Case(partial(convnet, kind="sgd")),
    "depth-µP residual MLP, Adam": Case(residual, over="depth"),
    "depth-µP residual MLP, SGD": Case(partial(residual, kind="sgd"), over="depth"),
    "standard MLP, Adam": Case(partial(mlp, **_STANDARD), promise="standard"),
    "standard MLP, SGD": Case(partial(mlp, kind="sgd", **_STANDARD), promise="standard"),
    "standard transformer, Adam": Case(partial(transformer, power=0.5, **_STANDARD), promise="standard"),
    "standard convolutions with BatchNorm, Adam": Case(partial(convnet, norm=True, **_STANDARD), promise="standard"),
}  # fmt: skip
