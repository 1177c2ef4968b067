"""Every recorded value against a recomputation without hooks: the same weights and data, tensors handed out by name."""

import copy
import math
from typing import Any

import naive_watch as naive
import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde

Trace = dict[str, tuple[Tensor, Tensor]]  # module → input, output


class Net(nn.Module):
    """An embedding, a residual block with attention, activations of each kind, a head: every metric occurs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.mix = Mix(16)
        self.up, self.relu, self.down = nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)
        self.tanh, self.sigmoid = nn.Tanh(), nn.Sigmoid()
        self.head, self.softmax = nn.Linear(16, 11), nn.Softmax(-1)
        with torch.no_grad():
            self.up.bias[:5] = -500  # five units, massive before the ReLU and dead after it
            self.down.weight *= 4  # some saturation

    def forward(self, x: Tensor, trace: Trace | None = None) -> Tensor:
        def run(name: str, module: nn.Module, value: Tensor) -> Tensor:
            out: Tensor = module(value)
            if trace is not None:
                if out.requires_grad:
                    out.retain_grad()
                trace[name] = value, out
            return out

        h = run("embed", self.embed, x)
        h = h + run("mix", self.mix, run("norm", self.norm, h))
        h = run("down", self.down, run("relu", self.relu, run("up", self.up, h)))
        h = run("tanh", self.tanh, h) + run("sigmoid", self.sigmoid, h)
        return run("softmax", self.softmax, run("head", self.head, h))


class Mix(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qk = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qk(x).chunk(2, -1))
        v = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def close(found: float, wanted: float, scale: float, tolerance: float) -> bool:
    """Relative to the value, and for a mean of numbers of either sign to their size."""
    return abs(found - wanted) <= tolerance * max(abs(wanted), scale)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_every_value_equals_a_recomputation_without_hooks(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    model = Net().to(dtype)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    watch = sonde.watch(model, optimiser, runs=None, every=1)
    wanted: list[dict[tuple[str, str], float]] = []
    start: dict[str, float] = {}
    gradients: dict[str, list[Tensor]] = {}  # of every step so far
    for step in range(3):
        x = torch.randint(11, (12, 9), generator=torch.Generator().manual_seed(step))
        before = copy.deepcopy(model)
        optimiser.zero_grad()
        loss = -model(x).clamp_min(1e-9).log()[..., 3].mean()
        loss.backward()
        for name, p in model.named_parameters():
            if p.grad is not None:
                gradients.setdefault(name, []).append(p.grad.clone())
        optimiser.step()
        wanted.append(expected(before, model, gradients, x, start, costly=step in (0, 1)))
    rows = watch.rows
    for step, values in enumerate(wanted):
        found = {
            (module, metric): value
            for module, metric, value, defined in rows.filter(pl.col("step") == step)
            .select("module", "metric", "value", "defined")
            .iter_rows()
            if defined
        }
        left = [found.pop(key) for key in list(found) if key[1] == "grad_left"]
        assert left == [0.0] * (2 if step else 0), "gradients are cleared"
        missing = {key for key in found if key[0] != "(model)"} ^ values.keys()
        assert not missing, f"step {step}: {missing}"
        for key, value in values.items():
            scale = values.get((key[0], "out_rms"), 0.0) if key[1] == "out_mean" else 1.0 if "cosine" in key[1] else 0.0
            assert close(found[key], value, scale, tolerance), f"step {step}, {key}: {found[key]} is not {value}"


def expected(
    before: nn.Module,
    after: nn.Module,
    gradients: dict[str, list[Tensor]],
    x: Tensor,
    start: dict[str, float],
    *,
    costly: bool,
) -> dict[tuple[str, str], float]:
    trace: Trace = {}
    for module in before.modules():  # a copy of a watched model carries no watch
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    (-before(x, trace).clamp_min(1e-9).log()[..., 3].mean()).backward()
    inner = before.mix.qk(trace["mix"][0])
    values: dict[tuple[str, str], float] = {}

    def put(module: str, known: dict[str, float]) -> None:
        values.update({(module, metric): value for metric, value in known.items()})

    for name, (value, out) in trace.items():
        put(name, naive.of_output(out))
        put(name, {"grad_rms": naive.grad_rms(out.grad)})
        if value.shape == out.shape:
            put(name, naive.stream(value, out))
        if costly:
            rows = out.detach().double().flatten(0, 1).numpy()
            put(name, naive.directions(rows[:: len(rows) // 64][:64]))
            put(name, naive.tails(out) | {"grad_noise": naive.grad_noise(out.grad)})
    for name in ("relu", "tanh", "sigmoid", "softmax"):
        put(name, {"dead_share": naive.dead_share(trace[name][1], -1)})
    for name, low in (("tanh", -1.0), ("sigmoid", 0.0), ("softmax", 0.0)):
        put(name, {"saturated_share": naive.saturated_share(trace[name][1], low, 1.0)})
    entering = naive.of_output(trace["norm"][0])["out_rms"]
    put("norm", {"masked_growth": entering / start.setdefault("norm", entering), "norm_in_rms": entering})
    q, k = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in inner.chunk(2, -1))
    put("mix", naive.attention(q, k, causal=True, heads=costly))
    put_inner(put, before, trace, inner, costly)
    old, new = dict(before.named_parameters()), dict(after.named_parameters())
    for name, weight in old.items():
        norm = float(np.linalg.norm(naive.array(weight)))
        put(name, {"weight_norm": norm})
        if name in gradients:
            put(name, {"weight_grad_norm": float(np.linalg.norm(naive.array(gradients[name][-1])))})
        moved = float(np.linalg.norm(naive.array(new[name]) - naive.array(weight)))
        if norm:
            put(name, {"update_ratio": moved / norm})
        if costly:
            put(name, {"update_rms": moved / math.sqrt(weight.numel())})
            if name in gradients:
                put(name, {"adam_ratio": naive.adam_ratio(gradients[name])})
    return values


def put_inner(put: Any, before: Any, trace: Trace, inner: Tensor, costly: bool) -> None:
    """`mix.qk`, whose output stays inside `mix`: its gradient by the chain rule of what follows."""
    leaf = inner.detach().requires_grad_()
    x = trace["mix"][0].detach()
    q, k = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in leaf.chunk(2, -1))
    weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(
        torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -math.inf
    )
    mixed = (weights.softmax(-1) @ x.unflatten(-1, (2, -1)).transpose(1, 2)).transpose(1, 2).flatten(2)
    mixed.backward(trace["mix"][1].grad)
    put("mix.qk", naive.of_output(leaf) | {"grad_rms": naive.grad_rms(leaf.grad)})
    if costly:
        rows = leaf.detach().double().flatten(0, 1).numpy()
        put(
            "mix.qk",
            naive.directions(rows[:: len(rows) // 64][:64])
            | naive.tails(leaf)
            | {"grad_noise": naive.grad_noise(leaf.grad)},
        )
