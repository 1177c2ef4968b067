"""The credit of every rule as its equation reads, from the state it stored.

T tokens, d width, C outputs, L blocks; `state` is what the rule owned, by name.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sonde.recompute.sample import Sample, first_token

State = Mapping[str, Any]
Options = Mapping[str, Any]  # of the rule's configuration
Credit = Callable[[Sample, State, Options, int], list[Tensor]]
"""a_0 … a_L of one sample; the number is that of the optimiser steps of the whole run."""


def gradient(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """BP: a_l = g_l."""
    return sample.gradients


def gradient_at_the_embedding(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """Frozen blocks: a_0 = g_0, and nothing above."""
    return [sample.gradients[0], *(torch.zeros_like(h) for h in sample.states[1:])]


def carried_down(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """FA: a_L = g_L, a_l = a_{l+1} B_lᵀ; of tokens, each by itself."""
    credits = [sample.gradients[-1]]
    for b_dd in reversed(state["matrices"]):
        credits.insert(0, credits[0] @ b_dd.double().T)
    return credits


def sent_error(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """DFA: a_l = e B_lᵀ; each of T tokens gets it divided by √T."""
    e_1C = sample.error
    credits = []
    for b_dC, h in zip(state["matrices"], sample.states, strict=True):
        a_1d = e_1C @ b_dC.double().T
        tokens = h.shape[1] if h.ndim == 3 else None
        credits.append(a_1d if tokens is None else (a_1d / math.sqrt(tokens))[:, None].repeat(1, tokens, 1))
    return credits


def through_predicted_end(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """State Bridge: a_l = ∇_{h_l} ℓ(readout(G(h_l, l/L, s)), y); a_L = g_L."""
    top = sample.gradients[-1]
    s_1S = sample.error
    if options["side"] == "top_gradient":
        s_1S = first_token(top)
    depth, credits = len(sample.states) - 1, []
    for layer, h in enumerate(sample.states[:-1]):
        h_1d = first_token(h).clone().requires_grad_()
        end_1d = bridge(state["net"], h_1d, layer / depth, s_1S, options)
        output = sample.net.readout(end_1d if h.ndim == 2 else end_1d[:, None])
        (a_1d,) = torch.autograd.grad(sample.sample_loss(output, sample.y).sum(), h_1d)
        credits.append(on_first_token(a_1d, h))
    return [*credits, top]


def slope_of_value(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """Credit Bridge: a_l = ∇_h V(h_l, l/L, e); as long as it warms up, DFA's."""
    if state["steps"] < math.ceil(options["warmup"] * steps):
        return sent_error(sample, state["feedback"], options, steps)
    e_1C = sample.error
    depth, credits = len(sample.states) - 1, []
    for layer, h in enumerate(sample.states):
        h_1d = first_token(h).clone().requires_grad_()
        value = bridge(state["value"]["net"], h_1d, layer / depth, e_1C, options)
        (a_1d,) = torch.autograd.grad(value.sum(), h_1d)
        credits.append(on_first_token(a_1d, h))
    return credits


def bridge(weights: Mapping[str, Tensor], h_1d: Tensor, t: float, s_1S: Tensor, options: Options) -> Tensor:
    """A bridge's network: linear maps with GELU between them, on the state (normalised or not), t = l/L and s."""
    if options["input_norm"] == "layer":
        centred = h_1d - h_1d.mean()
        h_1d = centred / torch.sqrt((centred**2).mean() + 1e-5)
    x = torch.cat([h_1d, torch.full((1, 1), t, dtype=torch.float64), s_1S], dim=-1)
    layers = len(weights) // 2
    for layer in range(layers):
        weight, bias = weights[f"layers.{layer}.weight"], weights[f"layers.{layer}.bias"]
        x = x @ weight.double().T + bias.double()
        if layer < layers - 1:
            x = x * (1 + torch.erf(x / math.sqrt(2))) / 2
    return x


def on_first_token(a_1d: Tensor, h: Tensor) -> Tensor:
    """Credit in the shape of its state: tokens that were not read get none."""
    if h.ndim == 2:
        return a_1d
    a = torch.zeros_like(h)
    a[:, 0] = a_1d
    return a


CREDITS: dict[str, Credit] = {
    "bp": gradient,
    "fa": carried_down,
    "dfa": sent_error,
    "state_bridge": through_predicted_end,
    "credit_bridge": slope_of_value,
    "frozen": gradient_at_the_embedding,
}
WITHOUT_STATE = ("bp", "frozen")  # what they send follows from the network alone
