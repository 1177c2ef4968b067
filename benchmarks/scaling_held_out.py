"""The held-out cases of benchmarks/scaling.py: ten networks with a planted scaling fault, and ten without.

The tolerances of `sonde scaling` were chosen on scaling_cases.py.  These architectures are others, and most faults are
of other kinds.  The list was written before any of it was measured.  Two rules of the verdicts were corrected afterwards.
"""

# ruff: noqa: E501

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling_cases import ADAM, BASE, BASE_DEPTH, SAME, SGD, Case, Rates, batch, optimiser, role


class GatedBlock(nn.Module):
    """h + branch · W(silu(G n) ∘ U n), with n = RMSNorm(h)."""

    def __init__(self, n: int, branch: float) -> None:
        super().__init__()
        self.norm, self.branch = nn.RMSNorm(n), branch
        self.gate, self.up, self.down = (nn.Linear(*s, bias=False) for s in ((n, 2 * n), (n, 2 * n), (2 * n, n)))

    def forward(self, h: Tensor) -> Tensor:
        n = self.norm(h)
        return h + self.branch * self.down(functional.silu(self.gate(n)) * self.up(n))  # type: ignore[no-any-return]


class Gated(nn.Module):
    """Input layer, gated residual blocks, RMSNorm, readout."""

    def __init__(self, n: int, layers: int, branch: float, multiplier: float) -> None:
        super().__init__()
        self.inp, self.norm, self.readout = nn.Linear(16, n, bias=False), nn.RMSNorm(n), nn.Linear(n, 4, bias=False)
        self.blocks, self.multiplier = nn.ModuleList([GatedBlock(n, branch) for _ in range(layers)]), multiplier

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        for block in self.blocks:
            h = block(h)
        return self.readout(self.norm(h)) * self.multiplier  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A tanh network over five steps, one weight for all of them."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inp, self.recurrent, self.readout = nn.Linear(8, n), nn.Linear(n, n), nn.Linear(n, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inp(x[:, 0]))
        for step in range(1, x.shape[1]):
            h = torch.tanh(self.inp(x[:, step]) + self.recurrent(h))
        return self.readout(h)  # type: ignore[no-any-return]


class Mixer(nn.Module):
    """Two blocks that mix eight tokens and then features; the readout takes the mean over tokens."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inp, self.readout = nn.Linear(12, n), nn.Linear(n, 4)
        self.norms = nn.ModuleList([nn.LayerNorm(n) for _ in range(4)])
        self.tokens = nn.ModuleList([nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2)])
        self.channels = nn.ModuleList(
            [nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n)) for _ in range(2)]
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        for place, (tokens, channels) in enumerate(zip(self.tokens, self.channels, strict=True)):
            h = h + tokens(self.norms[2 * place](h).transpose(1, 2)).transpose(1, 2)
            h = h + channels(self.norms[2 * place + 1](h))
        return self.readout(h.mean(1))  # type: ignore[no-any-return]


class CausalBlock(nn.Module):
    """Causal attention by torch's fused function, one weight for queries, keys and values; then a ReLU network."""

    def __init__(self, n: int, power: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(n), nn.RMSNorm(n)
        self.qk, self.value, self.out = nn.Linear(n, 2 * n, bias=False), nn.Linear(n, n), nn.Linear(n, n)
        self.up, self.down = nn.Linear(n, 2 * n), nn.Linear(2 * n, n)
        self.scale = (BASE / 4) ** (power - 0.5) * (n / 4) ** -power

    def forward(self, h: Tensor) -> Tensor:
        n = self.norm1(h)
        q, k, v = (x.unflatten(-1, (4, -1)).transpose(1, 2) for x in (*self.qk(n).chunk(2, -1), self.value(n)))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        h = h + self.out(mixed.transpose(1, 2).flatten(2))
        return h + self.down(functional.relu(self.up(self.norm2(h))))  # type: ignore[no-any-return]


class Causal(nn.Module):
    """A causal language model of a vocabulary of 24."""

    def __init__(self, n: int, power: float) -> None:
        super().__init__()
        self.embed, self.readout = nn.Embedding(24, n), nn.Linear(n, 24, bias=False)
        self.blocks, self.norm = nn.Sequential(CausalBlock(n, power), CausalBlock(n, power)), nn.RMSNorm(n)

    def forward(self, ids: Tensor) -> Tensor:
        return self.readout(self.norm(self.blocks(self.embed(ids)))).flatten(0, 1)  # type: ignore[no-any-return]


class Bag(nn.Module):
    """The mean of six embeddings, a hidden layer, a readout."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.embed, self.hidden, self.readout = nn.Embedding(32, n), nn.Linear(n, n), nn.Linear(n, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.readout(functional.elu(self.hidden(self.embed(ids).mean(1))))  # type: ignore[no-any-return]


def prepared(
    model: nn.Module,
    scale: float,
    kind: str,
    lr: float | None,
    rates: Rates | None,
    readout: float,
    starts: Mapping[str, float],
    change: Mapping[str, float] | None,
    branch: float = 1.0,
) -> torch.optim.Optimizer:
    """Initial weights and rates of µP; `starts` multiplies the initial weights, where a name contains the key."""
    for name, p in model.named_parameters():
        if role(name, p) == "fixed" or (p.dim() < 2 and "bias" in name):
            nn.init.zeros_(p)
        elif p.dim() > 1:
            power = BASE**-0.5 * scale**readout if name.startswith("readout") else p.shape[1] ** -0.5
            nn.init.normal_(p, 0, 1.0 if name.startswith("embed") else power)
        with torch.no_grad():
            p.mul_(math.prod(factor for part, factor in starts.items() if part in name))
    is_adam = kind.startswith("adam")
    return optimiser(
        model, kind, lr or (2e-3 if is_adam else 0.02), scale, rates or (ADAM if is_adam else SGD), change, None, branch
    )


def gated(
    width: int = 64,
    depth: int = 2,
    *,
    kind: str = "adam",
    lr: float | None = None,
    rates: Rates | None = None,
    readout: float = -1.0,
    gate: float = 0.0,
    multiplier: float = 0.0,
    branch: float = 0.0,
    branch_rate: float = 0.0,
    eps: float | None = None,
    decay: float | None = None,
    change: Mapping[str, float] | None = None,
) -> Any:
    """µP for gated blocks; `gate` is a power of the width, `branch` and `branch_rate` are of the depth."""
    scale, deep = width / BASE, depth / BASE_DEPTH
    model = Gated(width, depth, deep**branch, scale**multiplier)
    made = prepared(model, scale, kind, lr, rates, readout, {"gate": scale**gate}, change, deep**branch_rate)
    for group in made.param_groups:
        group |= {key: value for key, value in (("eps", eps), ("weight_decay", decay)) if value is not None}
    return model, made, *batch(32, 16), nn.CrossEntropyLoss()


def recurrent(
    width: int,
    *,
    kind: str = "adam",
    lr: float | None = None,
    rates: Rates | None = None,
    readout: float = -1.0,
    start: float = 0.0,
    change: Mapping[str, float] | None = None,
) -> Any:
    """µP for a recurrent network; `start` is a power of the width in the initial recurrent weight."""
    scale = width / BASE
    model = Recurrent(width)
    made = prepared(model, scale, kind, lr, rates, readout, {"recurrent": scale**start}, change)
    return model, made, *batch(16, 5, 8), nn.CrossEntropyLoss()


def mixer(width: int, *, rates: Rates | None = None, readout: float = -1.0, tokens: float = 0.0) -> Any:
    """µP for a mixer; weights between tokens do not grow, so their rate is constant (`tokens` is its power)."""
    model = Mixer(width)
    made = prepared(model, width / BASE, "adam", None, rates, readout, {}, {"tokens": tokens})
    return model, made, *batch(8, 8, 12), nn.CrossEntropyLoss()


def causal(width: int, *, power: float = 1.0, change: Mapping[str, float] | None = None) -> Any:
    """µP for a causal language model; logits are divided by d^power."""
    model = Causal(width, power)
    made = prepared(model, width / BASE, "adam", None, None, -1.0, {}, change)
    ids = torch.randint(24, (4, 11), generator=torch.Generator().manual_seed(2))
    return model, made, ids[:, :-1], ids[:, 1:].flatten(), nn.CrossEntropyLoss()


def bag(width: int, *, start: float = 0.0) -> Any:
    """µP for a bag of embeddings; `start` is a power of the width in the initial embedding."""
    scale, model = width / BASE, Bag(width)
    made = prepared(model, scale, "adam", None, None, -1.0, {"embed": scale**start}, None)
    rng = torch.Generator().manual_seed(3)
    y = torch.randint(4, (32,), generator=rng)
    return model, made, torch.randint(32, (32, 6), generator=rng), y, nn.CrossEntropyLoss()


_STANDARD: dict[str, Any] = {"rates": SAME, "readout": -0.5}

FAULTS: dict[str, Case] = {
    "gates start with a constant deviation": Case(partial(gated, gate=0.5), faulty=("gate",)),
    "rate of the down projection is not scaled": Case(partial(gated, change={"down": 0.0}), faulty=("down",)),
    "multiplier of the logits grows like √n": Case(partial(gated, multiplier=0.5), faulty=("readout", "output")),
    "Adam's eps is above the gradients": Case(partial(gated, eps=1e-3), faulty=("inp", "gate", "up", "down")),
    "recurrent rate is not scaled, Adam": Case(partial(recurrent, change={"recurrent.weight": 0.0}), faulty=("recurrent",)),
    "recurrent weights start with 1/n": Case(partial(recurrent, start=-0.5), faulty=("recurrent",)),
    "fused causal attention 1/√d": Case(partial(causal, power=0.5), faulty=("logits", "qk")),
    "token-mixing rate is scaled like a hidden one": Case(partial(mixer, tokens=-1.0), faulty=("tokens",)),
    "embeddings start with 1/√n": Case(partial(bag, start=-0.5), faulty=("embed",)),
    "rates of gated blocks grow with depth": Case(partial(gated, branch=-0.5, branch_rate=0.5), over="depth", faulty=("blocks",)),
}  # fmt: skip

CORRECT: dict[str, Case] = {
    "µP gated blocks, Adam": Case(gated),
    "µP gated blocks, AdamW with decay": Case(partial(gated, kind="adamw", decay=0.1)),
    "µP recurrent network, Adam": Case(recurrent),
    "µP recurrent network, SGD": Case(partial(recurrent, kind="sgd")),
    "µP mixer, Adam": Case(mixer),
    "µP causal language model, fused attention 1/d": Case(causal),
    "depth-µP gated blocks, Adam": Case(partial(gated, branch=-0.5, branch_rate=-0.5), over="depth"),
    "standard gated blocks, Adam": Case(partial(gated, **_STANDARD), promise="standard"),
    "standard recurrent network, SGD with momentum": Case(partial(recurrent, kind="momentum", **_STANDARD), promise="standard"),
    "standard mixer, Adam": Case(partial(mixer, **_STANDARD), promise="standard"),
}  # fmt: skip


# A second set.  It was written before any of it was measured, after two rules had been corrected on the first.


class ConvNet(nn.Module):
    """Three convolutions with GroupNorm, the mean over places, a readout."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inp, self.readout = nn.Conv2d(2, n, 3, padding=1), nn.Linear(n, 4)
        self.convs = nn.ModuleList([nn.Conv2d(n, n, 3, padding=1, stride=2) for _ in range(2)])
        self.norms = nn.ModuleList([nn.GroupNorm(4, n) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        h = functional.silu(self.inp(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = functional.silu(norm(conv(h)))
        return self.readout(h.mean((2, 3)))  # type: ignore[no-any-return]


class Heads(nn.Module):
    """A pre-norm encoder of two blocks, with so many heads and so large a divisor of the logits."""

    def __init__(self, n: int, heads: int, divisor: float) -> None:
        super().__init__()
        self.heads, self.divisor = heads, divisor
        self.inp, self.readout, self.norm = nn.Linear(10, n), nn.Linear(n, 4), nn.LayerNorm(n)
        self.norms = nn.ModuleList([nn.LayerNorm(n) for _ in range(2)])
        self.qkv = nn.ModuleList([nn.Linear(n, 3 * n, bias=False) for _ in range(2)])
        self.out = nn.ModuleList([nn.Linear(n, n, bias=False) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=True):
            parts = qkv(norm(h)).unflatten(-1, (3, self.heads, -1))
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            weights = torch.softmax(q @ k.transpose(-1, -2) / self.divisor, -1)
            h = h + out((weights @ v).transpose(1, 2).flatten(2))
        return self.readout(self.norm(h).mean(1))  # type: ignore[no-any-return]


class Branch(nn.Module):
    """h + branch · V relu(W h), without norms."""

    def __init__(self, n: int, branch: float) -> None:
        super().__init__()
        self.up, self.down, self.branch = nn.Linear(n, n), nn.Linear(n, n), branch

    def forward(self, h: Tensor) -> Tensor:
        return h + self.branch * self.down(functional.relu(self.up(h)))  # type: ignore[no-any-return]


class Deep(nn.Module):
    """Input layer, residual blocks, readout."""

    def __init__(self, layers: int, branch: float) -> None:
        super().__init__()
        self.inp, self.readout = nn.Linear(16, 48), nn.Linear(48, 4)
        self.blocks = nn.Sequential(*[Branch(48, branch) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.blocks(self.inp(x)))  # type: ignore[no-any-return]


def convolutional(width: int, *, readout: float = -1.0, change: Mapping[str, float] | None = None) -> Any:
    """µP for convolutions under Adam."""
    model = ConvNet(width)
    made = prepared(model, width / BASE, "adam", None, None, readout, {}, change)
    return model, made, *batch(12, 2, 8, 8), nn.CrossEntropyLoss()


def heads(width: int, *, grow: bool = False, power: float = 1.0, change: Mapping[str, float] | None = None) -> Any:
    """µP for attention: four heads whose size grows, or heads of size 16 whose number grows."""
    many = width // 16 if grow else 4
    size, base = width / many, 16.0
    model = Heads(width, many, base**0.5 * (size / base) ** power)
    made = prepared(model, width / BASE, "adam", None, None, -1.0, {}, change)
    return model, made, *batch(8, 7, 10), nn.CrossEntropyLoss()


def deep(depth: int, *, branch: float = -0.5, branch_rate: float = -0.5) -> Any:
    """Depth-µP for Adam; both are powers of the depth."""
    more = depth / BASE_DEPTH
    model = Deep(depth, more**branch)
    made = prepared(model, 1.0, "adam", None, None, -1.0, {}, None, more**branch_rate)
    return model, made, *batch(32, 16), nn.CrossEntropyLoss()


SECOND_FAULTS: dict[str, Case] = {
    "convolutions' rate is not scaled, GroupNorm": Case(partial(convolutional, change={"convs": 0.0}), faulty=("convs",)),
    "readout starts with 1/√n behind pooling": Case(partial(convolutional, readout=-0.5), faulty=("readout", "output")),
    "four heads, logits divided by √d": Case(partial(heads, power=0.5), faulty=("logits", "qkv")),
    "more heads, rate of the output projection grows": Case(partial(heads, grow=True, change={"out.": 0.0}), faulty=("out",)),
    "1/√L is missing, no norms": Case(partial(deep, branch=0.0), over="depth", faulty=("blocks", "output")),
}  # fmt: skip

SECOND_CORRECT: dict[str, Case] = {
    "µP convolutions with GroupNorm": Case(convolutional),
    "µP attention, four heads that grow": Case(heads),
    "µP attention, more heads of one size": Case(partial(heads, grow=True)),
    "depth-µP residual network without norms": Case(deep, over="depth"),
    "standard attention, more heads of one size": Case(partial(heads, grow=True), promise="standard"),
}  # fmt: skip


# A third set, written before any of it was measured, after the second had been scored.


class Memory(nn.Module):
    """A long short-term memory over four steps, written with its gates."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inp, self.hidden, self.readout = nn.Linear(8, 4 * n), nn.Linear(n, 4 * n, bias=False), nn.Linear(n, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), self.readout.in_features)
        for step in range(x.shape[1]):
            i, f, g, o = (self.inp(x[:, step]) + self.hidden(h)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.readout(h)  # type: ignore[no-any-return]


class Code(nn.Module):
    """An autoencoder with a code of eight numbers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inp, self.down, self.readout = nn.Linear(16, n), nn.Linear(n, 8), nn.Linear(n, 16)
        self.up, self.hidden = nn.Linear(8, n), nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        code = self.down(functional.gelu(self.inp(x)))
        return self.readout(functional.gelu(self.hidden(functional.gelu(self.up(code)))))  # type: ignore[no-any-return]


class Latents(nn.Module):
    """Six learned vectors attend to the input once; the readout takes their mean.  Logits are divided by d."""

    def __init__(self, n: int, multiplier: float) -> None:
        super().__init__()
        self.embed_latents, self.inp, self.readout = nn.Parameter(torch.zeros(6, n)), nn.Linear(12, n), nn.Linear(n, 4)
        self.query, self.key, self.value = (nn.Linear(n, n, bias=False) for _ in range(3))
        self.norm, self.multiplier = nn.LayerNorm(n), multiplier

    def forward(self, x: Tensor) -> Tensor:
        h, latents = self.inp(x) * self.multiplier, self.embed_latents.expand(len(x), -1, -1)
        logits = self.query(latents) @ self.key(h).transpose(1, 2) / latents.shape[-1]
        mixed = latents + torch.softmax(logits, -1) @ self.value(h)
        return self.readout(self.norm(mixed).mean(1))  # type: ignore[no-any-return]


class Separable(nn.Module):
    """Two depthwise convolutions, each before a linear map of channels; the mean over places, a readout."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inp, self.readout = nn.Conv2d(3, n, 1), nn.Linear(n, 4)
        self.depthwise = nn.ModuleList([nn.Conv2d(n, n, 3, padding=1, groups=n) for _ in range(2)])
        self.mix = nn.ModuleList([nn.Conv2d(n, n, 1) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        for depthwise, mix in zip(self.depthwise, self.mix, strict=True):
            h = h + mix(functional.relu(depthwise(h)))
        return self.readout(h.mean((2, 3)))  # type: ignore[no-any-return]


def memory(
    width: int, *, rates: Rates | None = None, readout: float = -1.0, change: Mapping[str, float] | None = None
) -> Any:
    """µP for a long short-term memory under Adam."""
    model = Memory(width)
    made = prepared(model, width / BASE, "adam", None, rates, readout, {}, change)
    return model, made, *batch(16, 4, 8), nn.CrossEntropyLoss()


def coded(width: int, *, kind: str = "adam", rates: Rates | None = None, readout: float = -1.0, up: float = 0.0) -> Any:
    """µP for an autoencoder; weights from the code are like those of an input (`up` is the power of their rate)."""
    model = Code(width)
    made = prepared(model, width / BASE, kind, None, rates, readout, {}, {"up.weight": up} if rates is None else None)
    x, _ = batch(32, 16)
    return model, made, x, x, nn.MSELoss()


def latent(width: int, *, multiplier: float = 0.0, rate: float = 0.0) -> Any:
    """µP for attention of learned vectors under Adam; both are powers of the width."""
    scale = width / BASE
    model = Latents(width, scale**multiplier)
    made = prepared(model, scale, "adam", None, None, -1.0, {}, {"embed_latents": rate})
    nn.init.normal_(model.embed_latents)
    return model, made, *batch(8, 7, 12), nn.CrossEntropyLoss()


def separable(width: int, *, rate: float = 0.0) -> Any:
    """µP for depthwise convolutions under Adam, whose weights have nine terms at every width."""
    model = Separable(width)
    change = {"depthwise.0.weight": rate, "depthwise.1.weight": rate}
    made = prepared(model, width / BASE, "adam", None, None, -1.0, {"depthwise": 1 / 3}, change)
    return model, made, *batch(12, 3, 6, 6), nn.CrossEntropyLoss()


THIRD_FAULTS: dict[str, Case] = {
    "long short-term memory, hidden rate is not scaled": Case(partial(memory, change={"hidden": 0.0}), faulty=("hidden",)),
    "rate of weights from a code is scaled like a hidden one": Case(partial(coded, up=-1.0), faulty=("up",)),
    "rate of learned vectors is scaled like a hidden one": Case(partial(latent, rate=-1.0), faulty=("embed_latents",)),
    "input of attention multiplied by √n": Case(partial(latent, multiplier=0.5), faulty=("inp", "logits", "value")),
    "depthwise rate is scaled like a hidden one": Case(partial(separable, rate=-1.0), faulty=("depthwise",)),
    "branches divided by L√L": Case(partial(deep, branch=-1.5, branch_rate=-0.5), over="depth", faulty=("blocks",)),
}  # fmt: skip

THIRD_CORRECT: dict[str, Case] = {
    "µP long short-term memory": Case(memory),
    "µP autoencoder": Case(coded),
    "µP attention of learned vectors": Case(latent),
    "µP depthwise convolutions": Case(separable),
    "standard long short-term memory, Adam": Case(partial(memory, **_STANDARD), promise="standard"),
    "standard autoencoder, SGD with momentum": Case(partial(coded, kind="momentum", **_STANDARD), promise="standard"),
}  # fmt: skip
