"""The credit of every rule as its equation reads, from the state it stored.

T tokens, d width, C outputs, L blocks; `state` is what the rule owned, by name.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sonde.analysis.recompute.sample import Sample, first_token, squared_error
from sonde.network import Network

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
    """FA: a_L = g_L, a_l = a_{l+1} B_lᵀ; of tokens, each by itself.  By layers: V in the place of every W."""
    if options.get("level", "block") == "layer":
        return through_layers(sample, state, options, steps)
    credits = [sample.gradients[-1]]
    for b_dd in reversed(state["matrices"]):
        credits.insert(0, credits[0] @ b_dd.double().T)
    return credits


def sent_error(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """DFA, DKP: a_l = e B_lᵀ; each of T tokens gets it divided by √T; a map's numbers, or its channels, have a row."""
    return sent(sample.error, state["matrices"], sample)


def sent(e_1C: Tensor, matrices: Iterable[Tensor], sample: Sample) -> list[Tensor]:
    credits = []
    for b_dC, h in zip(matrices, sample.states, strict=True):
        a_1d = e_1C @ b_dC.double().T
        if h.ndim == 3:
            a_1d = (a_1d / math.sqrt(h.shape[1]))[:, None].repeat(1, h.shape[1], 1)
        elif h.ndim == 4 and a_1d.shape[1] < h.numel():
            _, channels, height, width = h.shape
            a_1d = (a_1d / math.sqrt(height * width)).view(1, channels, 1, 1).repeat(1, 1, height, width)
        credits.append(a_1d.reshape(h.shape))
    return credits


def sent_target(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """DRTP: a_l = −y B_lᵀ."""
    return sent(-target(sample), state["matrices"], sample)


def target(sample: Sample) -> Tensor:
    """The label as 0s and a 1, or the target itself, 1×C."""
    if sample.sample_loss is squared_error:
        return sample.y[None]
    y_1C = torch.zeros_like(sample.output)
    y_1C[0, int(sample.y)] = 1
    return y_1C


def sent_through_learned(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """FDFA: a_l = e B_lᵀ."""
    return sent(sample.error, [state["net"][str(l)] for l in range(len(sample.states))], sample)


def through_layers(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """A rule of layers: V in the place of every W."""
    return back_through(sample, FEEDBACK[options["name"]](sample.net, state))


def own(net: Network, state: State) -> dict[str, Tensor]:
    """FA by layers, KP, mirror: V is what the rule owns."""
    return dict(state["matrices"])


def signed(net: Network, state: State) -> dict[str, Tensor]:
    """uSF, frSF: V = M ∘ sign(W), M a number or a matrix."""
    return {name: m * net.get_parameter(name).sign() for name, m in state["matrices"].items()}


def signed_anew(net: Network, state: State) -> dict[str, Tensor]:
    """brSF: V = |M| ∘ sign(W), |M| uniform between 0 and √3·s: of 64 random bits, four numbers of 16."""
    rng, found = torch.Generator(), {}
    rng.set_state(state["rng"])
    for name, size in state["scale"]["matrices"].items():
        w = net.get_parameter(name)
        bits = torch.empty((w.numel() + 3) // 4, dtype=torch.int64).random_(generator=rng)
        sixteen = [float(number) for number in bits.view(torch.int16)[: w.numel()]]
        uniform = torch.tensor([abs(number) / 2**15 for number in sixteen], dtype=torch.float64)
        found[name] = math.sqrt(3) * size.double() * uniform.view(w.shape) * w.sign()
    return found


def back_through(sample: Sample, feedback: Mapping[str, Tensor]) -> list[Tensor]:
    """a_L = g_L, carried down through the blocks, V standing for W: y = W x goes up, its slope is V."""
    credits = [sample.gradients[-1]]
    for layer in reversed(range(len(sample.net.blocks))):
        block, h = sample.net.blocks[layer], sample.states[layer].clone().requires_grad_()
        handles = []
        for name, part in block.named_modules():
            v = feedback.get(f"blocks.{layer}.{name}.weight")
            if v is None:
                continue

            def slope(part: Any, inputs: tuple[Tensor], y: Tensor, v: Tensor = v) -> Tensor:
                other = moved_by(part, v.double(), inputs[0])
                return y.detach() + other - other.detach()

            handles.append(part.register_forward_hook(slope))
        try:
            f = block(h)
        finally:
            for handle in handles:
                handle.remove()
        (a,) = torch.autograd.grad(h + f if sample.net.residual else f, h, credits[0])
        credits.insert(0, a)
    return credits


def moved_by(part: Any, v: Tensor, x: Tensor) -> Tensor:
    """V x, as the part multiplies: a linear map or a convolution."""
    if isinstance(part, nn.Conv2d):
        return nn.functional.conv2d(x, v, None, part.stride, part.padding)
    return x @ v.T


def along_random_directions(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """Forward gradient: a_l = mean over directions of (Σ_k ⟨g_k, v_k⟩) v_l; v normal, drawn for the whole batch."""
    rng, samples = torch.Generator(), len(sample.batch)
    rng.set_state(state["rng"])
    credits = [torch.zeros_like(h) for h in sample.states]
    for _ in range(options["directions"]):
        v = [torch.randn(samples, *h.shape[1:], generator=rng)[sample.place][None].double() for h in sample.states]
        slope = sum(float((g * one).sum()) for g, one in zip(sample.gradients, v, strict=True))
        credits = [a + slope * one / options["directions"] for a, one in zip(credits, v, strict=True)]
    return credits


def slope_of_local_losses(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """predsim: N times the gradient of (1 − β)·mean loss of C_l h + β·mean of (S(P_l h) − S(y))² over all pairs."""
    net, beta, batch = state["net"], options["beta"], sample.batch
    labels = [centred(target(one)) for one in batch]
    credits = []
    for layer, own in enumerate(sample.states):
        h = own.clone().requires_grad_()
        read = [first_token(h if i == sample.place else one.states[layer]) for i, one in enumerate(batch)]
        output = read[sample.place] @ net[f"heads.{layer}.weight"].double().T + net[f"heads.{layer}.bias"].double()
        total = (1 - beta) * sample.sample_loss(output, sample.y).sum()
        rows = [centred(vector @ net[f"maps.{layer}.weight"].double().T) for vector in read]
        for i, row in enumerate(rows):  # a pair counts from both sides; itself once
            apart = (row * rows[sample.place]).sum() - (labels[i] * labels[sample.place]).sum()
            total = total + beta * apart**2 * (1 if i == sample.place else 2) / len(batch)
        (a,) = torch.autograd.grad(total, h)
        credits.append(a)
    return credits


def centred(row_1D: Tensor) -> Tensor:
    """Less its mean, of length 1."""
    row_1D = row_1D - row_1D.mean()
    return row_1D / (torch.sqrt((row_1D**2).sum()) + 1e-8)


def carried_by_inverses(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """DDTP: a_l = Q_l (step·g_L); a_L = step·g_L."""
    top = options["step"] * sample.gradients[-1]
    credits = []
    for learner, h in zip(state["learners"], sample.states, strict=False):
        credits.append(on_first_token(first_token(top) @ learner["net"]["weight"].double().T, h))
    return [*credits, top]


def through_predicted_end(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """State Bridge: a_l = ∇_{h_l} ℓ(readout(G(h_l, l/L, s)), y); a_L = g_L."""
    top = sample.gradients[-1]
    s_1S = sample.error
    if options["side"] == "top_gradient":
        s_1S = first_token(top)
    depth, credits = len(sample.states) - 1, []
    for layer, h in enumerate(sample.states[:-1]):
        h_1d = first_token(h).clone().requires_grad_()
        end_1d = bridge(state["net"], h_1d, layer / depth, s_1S, options, layer)
        top_h = sample.states[-1]
        output = sample.net.readout(end_1d[:, None] if top_h.ndim == 3 else end_1d.view(top_h.shape))
        (a_1d,) = torch.autograd.grad(sample.sample_loss(output, sample.y).sum(), h_1d)
        credits.append(on_first_token(a_1d, h))
    return [*credits, top]


def slope_of_value(sample: Sample, state: State, options: Options, steps: int) -> list[Tensor]:
    """Credit Bridge: a_l = ∇_h V(h_l, l/L, e); as long as it warms up, DFA's, or none.  Perturbed, a_L = g_L."""
    if state["steps"] < math.ceil(options["warmup"] * steps):
        if options.get("warmup_by", "dfa") == "nothing":
            return [torch.zeros_like(h) for h in sample.states]
        return sent_error(sample, state["feedback"], options, steps)
    e_1C = sample.error
    depth, credits = len(sample.states) - 1, []
    for layer, h in enumerate(sample.states):
        h_1d = first_token(h).clone().requires_grad_()
        value = bridge(state["value"]["net"], h_1d, layer / depth, e_1C, options)
        (a_1d,) = torch.autograd.grad(value.sum(), h_1d)
        credits.append(on_first_token(a_1d, h))
    if options.get("perturb", 0.0):
        credits[-1] = sample.gradients[-1]
    return credits


def bridge(
    weights: Mapping[str, Tensor], h_1d: Tensor, t: float, s_1S: Tensor, options: Options, layer: int = 0
) -> Tensor:
    """A bridge's network: linear maps with GELU between them, on the state (normalised or not), t = l/L and s.

    Where states have widths of their own, the first map is the layer's own.
    """
    if options["input_norm"] == "layer":
        centred = h_1d - h_1d.mean()
        h_1d = centred / torch.sqrt((centred**2).mean() + 1e-5)
    x = torch.cat([h_1d, torch.full((1, 1), t, dtype=torch.float64), s_1S], dim=-1)
    count = sum(name.startswith("layers.") and name.endswith(".weight") for name in weights)
    names = [f"layers.{place}" for place in range(count)]
    if f"entries.{layer}.weight" in weights:
        names.insert(0, f"entries.{layer}")
    for name in names:
        x = x @ weights[f"{name}.weight"].double().T + weights[f"{name}.bias"].double()
        if name != names[-1]:
            x = x * (1 + torch.erf(x / math.sqrt(2))) / 2
    return x


def on_first_token(a_1d: Tensor, h: Tensor) -> Tensor:
    """Credit in the shape of its state: tokens that were not read get none."""
    if h.ndim != 3:
        return a_1d.view(h.shape)
    a = torch.zeros_like(h)
    a[:, 0] = a_1d
    return a


CREDITS: dict[str, Credit] = {
    "bp": gradient,
    "fa": carried_down,
    "usf": through_layers,
    "frsf": through_layers,
    "brsf": through_layers,
    "kp": through_layers,
    "mirror": through_layers,
    "dfa": sent_error,
    "drtp": sent_target,
    "dkp": sent_error,
    "fdfa": sent_through_learned,
    "forward_gradient": along_random_directions,
    "predsim": slope_of_local_losses,
    "ddtp": carried_by_inverses,
    "state_bridge": through_predicted_end,
    "credit_bridge": slope_of_value,
    "frozen": gradient_at_the_embedding,
}
FEEDBACK: dict[str, Callable[[Network, State], dict[str, Tensor]]] = {
    "fa": own,
    "usf": signed,
    "frsf": signed,
    "brsf": signed_anew,
    "kp": own,
    "mirror": own,
}
"""V of the rules of layers, by the names of the weights."""
WITHOUT_STATE = ("bp", "frozen")  # what they send follows from the network alone
