"""The credit of every rule as its equation reads, from the stored state; and how the state of its null is drawn.

A new rule has its line in `CREDITS`.  If it draws matrices or networks, it also has a line in `REDRAWN`; if it replaces
weight matrices in the backward pass, one in `FEEDBACK`; if it owns nothing, its name is in `WITHOUT_STATE`.

T tokens, d width, C outputs, L blocks; `state` is what the rule owned, by name.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sonde.analysis.recompute.numbers import norm
from sonde.analysis.recompute.sample import Sample, first_token, squared_error
from sonde.network import Network

_State = Mapping[str, Any]
_Options = Mapping[str, Any]  # of the rule's configuration
CreditDefinition = Callable[[Sample, _State, _Options, int], list[Tensor]]
"""a_0 … a_L of one sample; the number is that of the optimiser steps of the whole run."""
_NullState = tuple[dict[str, Any], _State]
"""The options that differ from the rule's own, for the equation that computes the null; and the new state."""
Redraw = Callable[[_State, torch.Generator, Mapping[str, Tensor]], _NullState]
"""From the state at the end, a generator, and the blocks' matrices at initialisation, in their order."""


def exact_gradient(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """BP: a_l = g_l."""
    return sample.gradients


def gradient_at_the_embedding(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """Frozen blocks: a_0 = g_0, and nothing above."""
    return [sample.gradients[0], *(torch.zeros_like(h) for h in sample.states[1:])]


def carried_down(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """FA: a_L = g_L, a_l = a_{l+1} B_lᵀ; of tokens, each by itself.  By layers: V in the place of every W."""
    if options.get("level", "block") == "layer":
        return through_layers(sample, state, options, steps)
    credits = [sample.gradients[-1]]
    for b_dd in reversed(state["matrices"]):
        credits.insert(0, credits[0] @ b_dd.double().T)
    return credits


def sent_error(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
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


def sent_target(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """DRTP: a_l = −y B_lᵀ."""
    return sent(-target(sample), state["matrices"], sample)


def target(sample: Sample) -> Tensor:
    """The label as 0s and a 1, or the target itself, 1×C."""
    if sample.sample_loss is squared_error:
        return sample.y[None]
    y_1C = torch.zeros_like(sample.output)
    y_1C[0, int(sample.y)] = 1
    return y_1C


def sent_through_learned(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """FDFA: a_l = e B_lᵀ."""
    return sent(sample.error, [state["net"][str(l)] for l in range(len(sample.states))], sample)


def through_layers(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """A rule of layers: V in the place of every W."""
    return back_through(sample, FEEDBACK[options["name"]](sample.net, state))


def stored_matrices(net: Network, state: _State) -> dict[str, Tensor]:
    """FA by layers, KP, mirror: V is what the rule owns."""
    return dict(state["matrices"])


def signs_of_weights(net: Network, state: _State) -> dict[str, Tensor]:
    """uSF, frSF: V = M ∘ sign(W), M a number or a matrix."""
    return {name: m * net.get_parameter(name).sign() for name, m in state["matrices"].items()}


def signs_with_new_magnitudes(net: Network, state: _State) -> dict[str, Tensor]:
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
    """a_L = g_L, propagated back through the blocks with V in place of W: y = W x forward, slope V backward."""
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


def along_random_directions(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """Forward gradient: a_l = mean over directions of (Σ_k ⟨g_k, v_k⟩) v_l; v normal, drawn for the whole batch."""
    rng, samples = torch.Generator(), len(sample.batch)
    rng.set_state(state["rng"])
    credits = [torch.zeros_like(h) for h in sample.states]
    for _ in range(options["directions"]):
        v = [torch.randn(samples, *h.shape[1:], generator=rng)[sample.place][None].double() for h in sample.states]
        slope = sum(float((g * one).sum()) for g, one in zip(sample.gradients, v, strict=True))
        credits = [a + slope * one / options["directions"] for a, one in zip(credits, v, strict=True)]
    return credits


def slope_of_local_losses(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
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


def carried_by_inverses(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """DDTP: a_l = Q_l (step·g_L); a_L = step·g_L."""
    top = options["step"] * sample.gradients[-1]
    credits = []
    for learner, h in zip(state["learners"], sample.states, strict=False):
        credits.append(on_first_token(first_token(top) @ learner["net"]["weight"].double().T, h))
    return [*credits, top]


def through_predicted_end(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """_State Bridge: a_l = ∇_{h_l} ℓ(readout(G(h_l, l/L, s)), y); a_L = g_L."""
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


def slope_of_value(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
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
    weights: Mapping[str, Tensor], h_1d: Tensor, t: float, s_1S: Tensor, options: _Options, layer: int = 0
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


def between_states(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _NullState:
    """FA: B_l ~ N(0, 1/d), d the width above; by layers, V with the size of W's initial entries."""
    if isinstance(state["matrices"], Mapping):
        return between_layers(state, rng, initial)
    return {}, {"matrices": [torch.randn(b.shape, generator=rng) / b.shape[1] ** 0.5 for b in state["matrices"]]}


def between_layers(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _NullState:
    """A rule of layers: matrices that know nothing of W, as FA draws them."""
    matrices = {}
    for name, w in initial.items():
        size = norm(w.double().flatten().tolist()) / w.numel() ** 0.5
        matrices[name] = torch.randn(w.shape, generator=rng) * size
    return {"name": "fa", "level": "layer"}, {"matrices": matrices}


def from_the_output(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _NullState:
    """DFA and DRTP: B_l ~ N(0, 1/C)."""
    return {}, {"matrices": _feedback([b.shape for b in state["matrices"]], rng)}


def blind_from_the_output(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _NullState:
    """Rules that learn DFA's matrices: DFA, whose matrices stay."""
    matrices = state["matrices"] if "matrices" in state else state["net"].values()
    return {"name": "dfa"}, {"matrices": _feedback([b.shape for b in matrices], rng)}


def _feedback(shapes: list[torch.Size], rng: torch.Generator) -> list[Tensor]:
    return [torch.randn(shape, generator=rng) * shape[1] ** -0.5 for shape in shapes]


def new_inverses(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _NullState:
    """DDTP: Q_l ~ N(0, 1/D), D numbers of the last state."""
    shapes = [learner["net"]["weight"].shape for learner in state["learners"]]
    drawn = [torch.empty(shape).normal_(std=shape[1] ** -0.5, generator=rng) for shape in shapes]
    return {}, {"learners": [{"net": {"weight": q}} for q in drawn]}


def new_network(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _NullState:
    """_State Bridge, predsim: another network; heads before maps."""
    return {}, {"net": _default_weights(state["net"], rng)}


def new_value_network(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _NullState:
    """Credit Bridge at the same step: another network, a seed for its noise, other matrices for the warm-up."""
    net = _default_weights(state["value"]["net"], rng)
    torch.randint(2**62, (1,), generator=rng)
    matrices = _feedback([b.shape for b in state["feedback"]["matrices"]], rng)
    return {}, {"value": {"net": net}, "feedback": {"matrices": matrices}, "steps": state["steps"]}


def _default_weights(like: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
    """PyTorch's default weights of linear maps of these sizes, from a seed that is drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
        fresh: dict[str, Tensor] = {}
        for name in sorted({name.rpartition(".")[0] for name in like}, key=_place):
            outputs, inputs = like[f"{name}.weight"].shape
            layer = nn.Linear(inputs, outputs, bias=f"{name}.bias" in like)
            fresh |= {f"{name}.{key}": value for key, value in layer.state_dict().items()}
    return fresh


def _place(name: str) -> tuple[str, int]:
    """Where a layer stands among those that were built: entries before layers, each by its number."""
    kind, number = name.split(".")
    return kind, int(number)


CREDITS: dict[str, CreditDefinition] = {
    "bp": exact_gradient,
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
FEEDBACK: dict[str, Callable[[Network, _State], dict[str, Tensor]]] = {
    "fa": stored_matrices,
    "usf": signs_of_weights,
    "frsf": signs_of_weights,
    "brsf": signs_with_new_magnitudes,
    "kp": stored_matrices,
    "mirror": stored_matrices,
}
"""V of the rules of layers, by the names of the weights."""
WITHOUT_STATE = ("bp", "frozen")
"""Rules whose credit follows from the network alone."""
REDRAWN: dict[str, Redraw] = {
    "fa": between_states,
    **dict.fromkeys(("usf", "frsf", "brsf", "kp", "mirror"), between_layers),
    "dfa": from_the_output,
    "drtp": from_the_output,
    "dkp": blind_from_the_output,
    "fdfa": blind_from_the_output,
    "predsim": new_network,
    "ddtp": new_inverses,
    "state_bridge": new_network,
    "credit_bridge": new_value_network,
}
"""How the state of each rule's null is drawn.  A rule without a line has random vectors as its null."""
