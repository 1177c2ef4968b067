"""The credit of every rule by its equation, from the state that it stored; and that state drawn again, for the null.

T tokens, d width, C outputs, L blocks; `state` is what the rule owned, by name.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sonde.analysis.recompute.sample import Sample, advanced, continued, first_token, norm, squared_error
from sonde.network import Network

_State = Mapping[str, Any]
_Options = Mapping[str, Any]  # of the rule's configuration
_CreditOfRule = Callable[[Sample, _State, _Options, int], list[Tensor]]
"""Returns a_0 … a_L of one sample.  The last argument is the number of optimiser steps of the run."""


def _gradient(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """BP: a_l = g_l."""
    return sample.gradients


def _gradient_at_the_embedding(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """Frozen blocks: a_0 = g_0, and nothing above."""
    return [sample.gradients[0], *(torch.zeros_like(h) for h in sample.states[1:])]


def _carried_down(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """FA: a_L = g_L, a_l = a_{l+1} B_lᵀ, for each token.  With `level: layer`, V replaces every W."""
    if options.get("level", "block") == "layer":
        return _through_layers(sample, state, options, steps)
    credits = [sample.gradients[-1]]
    for b_dd in reversed(state["matrices"]):
        credits.insert(0, credits[0] @ b_dd.double().T)
    return credits


def _sent_error(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """DFA, DKP: a_l = e B_lᵀ; each of T tokens gets it divided by √T; a map's numbers, or its channels, have a row."""
    return _sent(sample.error, state["matrices"], sample)


def _sent(e_1C: Tensor, matrices: Iterable[Tensor], sample: Sample) -> list[Tensor]:
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


def _sent_target(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """DRTP: a_l = −y B_lᵀ."""
    return _sent(-_target(sample), state["matrices"], sample)


def _target(sample: Sample) -> Tensor:
    """The label as 0s and a 1, or the target itself, 1×C."""
    if sample.sample_loss is squared_error:
        return sample.y[None]
    y_1C = torch.zeros_like(sample.output)
    y_1C[0, int(sample.y)] = 1
    return y_1C


def _sent_through_learned(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """FDFA: a_l = e B_lᵀ."""
    return _sent(sample.error, [state["net"][str(l)] for l in range(len(sample.states))], sample)


def _through_layers(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """Rules of layers: V replaces every W on the way back."""
    return _back_through(sample, FEEDBACK[options["name"]](sample.net, state))


def _own(net: Network, state: _State) -> dict[str, Tensor]:
    """FA by layers, KP, mirror: V is the state of the rule."""
    return dict(state["matrices"])


def _signed(net: Network, state: _State) -> dict[str, Tensor]:
    """uSF, frSF: V = M ∘ sign(W), M a number or a matrix."""
    return {name: m * net.get_parameter(name).sign() for name, m in state["matrices"].items()}


def _signed_anew(net: Network, state: _State) -> dict[str, Tensor]:
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


def _back_through(sample: Sample, feedback: Mapping[str, Tensor]) -> list[Tensor]:
    """a_L = g_L, propagated back through the blocks with V in place of W: the forward pass uses W, its gradient V."""
    credits = [sample.gradients[-1]]
    for layer in reversed(range(len(sample.net.blocks))):
        block, h = sample.net.blocks[layer], sample.states[layer].clone().requires_grad_()
        handles = []
        for name, part in block.named_modules():
            v = feedback.get(f"blocks.{layer}.{name}.weight")
            if v is None:
                continue

            def slope(part: Any, inputs: tuple[Tensor], y: Tensor, v: Tensor = v) -> Tensor:
                other = _moved_by(part, v.double(), inputs[0])
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


def _moved_by(part: Any, v: Tensor, x: Tensor) -> Tensor:
    """V x, by a linear map or a convolution."""
    if isinstance(part, nn.Conv2d):
        return nn.functional.conv2d(x, v, None, part.stride, part.padding)
    return x @ v.T


def _along_random_directions(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """Forward gradient: a_l = mean over directions of (Σ_k ⟨g_k, v_k⟩) v_l; v normal, drawn for the whole batch."""
    rng, samples = torch.Generator(), len(sample.batch)
    rng.set_state(state["rng"])
    credits = [torch.zeros_like(h) for h in sample.states]
    for _ in range(options["directions"]):
        v = [torch.randn(samples, *h.shape[1:], generator=rng)[sample.place][None].double() for h in sample.states]
        slope = sum(float((g * one).sum()) for g, one in zip(sample.gradients, v, strict=True))
        credits = [a + slope * one / options["directions"] for a, one in zip(credits, v, strict=True)]
    return credits


def _slope_of_local_losses(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """predsim: N times the gradient of (1 − β)·mean loss of C_l h + β·mean of (S(P_l h) − S(y))² over all pairs."""
    net, beta, batch = state["net"], options["beta"], sample.batch
    labels = [_centred(_target(one)) for one in batch]
    credits = []
    for layer, own in enumerate(sample.states):
        h = own.clone().requires_grad_()
        read = [first_token(h if i == sample.place else one.states[layer]) for i, one in enumerate(batch)]
        output = read[sample.place] @ net[f"heads.{layer}.weight"].double().T + net[f"heads.{layer}.bias"].double()
        total = (1 - beta) * sample.sample_loss(output, sample.y).sum()
        rows = [_centred(vector @ net[f"maps.{layer}.weight"].double().T) for vector in read]
        for i, row in enumerate(rows):  # a pair counts from both sides; itself once
            apart = (row * rows[sample.place]).sum() - (labels[i] * labels[sample.place]).sum()
            total = total + beta * apart**2 * (1 if i == sample.place else 2) / len(batch)
        (a,) = torch.autograd.grad(total, h)
        credits.append(a)
    return credits


def _centred(row_1D: Tensor) -> Tensor:
    """Centred and normalised."""
    row_1D = row_1D - row_1D.mean()
    return row_1D / (torch.sqrt((row_1D**2).sum()) + 1e-8)


def _carried_by_inverses(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """DDTP: a_l = Q_l (step·g_L); a_L = step·g_L."""
    top = options["step"] * sample.gradients[-1]
    credits = []
    for learner, h in zip(state["learners"], sample.states, strict=False):
        credits.append(_on_first_token(first_token(top) @ learner["net"]["weight"].double().T, h))
    return [*credits, top]


def _through_predicted_end(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """State Bridge: a_l = ∇_{h_l} ℓ(readout(G(h_l, l/L, s)), y); a_L = g_L."""
    top = sample.gradients[-1]
    s_1S = sample.error
    if options["side"] == "top_gradient":
        s_1S = first_token(top)
    depth, credits = len(sample.states) - 1, []
    for layer, h in enumerate(sample.states[:-1]):
        h_1d = first_token(h).clone().requires_grad_()
        end_1d = _bridge(state["net"], h_1d, layer / depth, s_1S, options, layer)
        top_h = sample.states[-1]
        output = sample.net.readout(end_1d[:, None] if top_h.ndim == 3 else end_1d.view(top_h.shape))
        (a_1d,) = torch.autograd.grad(sample.sample_loss(output, sample.y).sum(), h_1d)
        credits.append(_on_first_token(a_1d, h))
    return [*credits, top]


def _slope_of_value(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """Credit Bridge: a_l = ∇_h V(h_l, l/L, e); during warm-up DFA's credit, or none.  With `perturb`, a_L = g_L."""
    if state["steps"] < math.ceil(options["warmup"] * steps):
        if options.get("warmup_by", "dfa") == "nothing":
            return [torch.zeros_like(h) for h in sample.states]
        return _sent_error(sample, state["feedback"], options, steps)
    e_1C = sample.error
    depth, credits = len(sample.states) - 1, []
    for layer, h in enumerate(sample.states):
        h_1d = first_token(h).clone().requires_grad_()
        value = _bridge(state["value"]["net"], h_1d, layer / depth, e_1C, options)
        (a_1d,) = torch.autograd.grad(value.sum(), h_1d)
        credits.append(_on_first_token(a_1d, h))
    if options.get("perturb", 0.0):
        credits[-1] = sample.gradients[-1]
    return credits


def _bridge(
    weights: Mapping[str, Tensor], h_1d: Tensor, t: float, s_1S: Tensor, options: _Options, layer: int = 0
) -> Tensor:
    """A bridge's network: linear maps with GELU between them, on the state (normalised or not), t = l/L and s.

    Where the widths of states differ, each layer has its own first map.
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


def _on_first_token(a_1d: Tensor, h: Tensor) -> Tensor:
    """Credit in the shape of its state; tokens that are not read get zero."""
    if h.ndim != 3:
        return a_1d.view(h.shape)
    a = torch.zeros_like(h)
    a[:, 0] = a_1d
    return a


# ── rules that compute states of their own ───────────────────────────────────────────────────────────
def _relaxed(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """PC: a_l = −ε_l where the energy has descended, a_0 = −J_0ᵀ ε_1; on arrival, rate^{L+1−l} g_l."""
    if options["learn_at"] == "arrival":
        top = len(sample.states)
        return [g * options["rate"] ** (top - l) for l, g in enumerate(sample.gradients)]
    return [-error for error in _errors(sample, 1.0, options)]


def _nudged(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """EP: a_l = (ε⁻_l − ε⁺_l)/2β; with one side, −ε⁺_l/β."""
    beta = options["beta"]
    above = _errors(sample, beta, options)
    if options["one_sided"]:
        return [-error / beta for error in above]
    below = _errors(sample, -beta, options)
    return [(minus - plus) / (2 * beta) for plus, minus in zip(above, below, strict=True)]


def _errors(sample: Sample, beta: float, options: _Options) -> list[Tensor]:
    """J_0ᵀ ε_1, then ε_1 … ε_L: E = Σ ½‖h_{l+1} − unit_l(h_l)‖² + βℓ has descended, all states at once."""
    net, h = sample.net, list(sample.states)
    for _ in range(options["steps"]):
        h = [h[0], *(one.detach().requires_grad_() for one in h[1:])]
        loss = sample.sample_loss(continued(net, h[-1], len(net.blocks)), sample.y).sum()
        energy = sum(((error**2).sum() / 2 for error in _ahead(net, h)), beta * loss)
        slopes = torch.autograd.grad(energy, h[1:])
        h = [h[0], *((one - options["rate"] * slope).detach() for one, slope in zip(h[1:], slopes, strict=True))]
    h[0] = h[0].clone().requires_grad_()
    errors = _ahead(net, h)
    (slope,) = torch.autograd.grad((errors[0] ** 2).sum() / 2, h[0])
    return [-slope, *(error.detach() for error in errors)]


def _ahead(net: Network, h: list[Tensor]) -> list[Tensor]:
    """h_{l+1} − unit_l(h_l)."""
    return [above - advanced(net, block, below)[0] for block, below, above in zip(net.blocks, h, h[1:], strict=False)]


def _apart(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """Dual propagation: a_L = ∂ℓ/∂h_L, a_l = J_l(h̄_l)ᵀ a_{l+1}; then h̄_l = unit(h̄_{l−1}) − (2α − 1)β a_l."""
    net, mean = sample.net, [h.clone() for h in sample.states]
    shift = (2 * options["alpha"] - 1) * options["beta"]
    for _ in range(options["passes"]):
        at = [h.detach().requires_grad_() for h in mean]
        top = sample.sample_loss(continued(net, at[-1], len(net.blocks)), sample.y).sum()
        credits = list(torch.autograd.grad(top, at[-1]))
        for block, h in reversed(list(zip(net.blocks, at, strict=False))):
            credits[:0] = torch.autograd.grad(advanced(net, block, h)[0], h, credits[0])
        for l, block in enumerate(net.blocks):
            mean[l + 1] = advanced(net, block, mean[l])[0].detach() - shift * credits[l + 1]
    return credits


def _pushed_by_the_input(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """PEPITA: a_l = h_l − h^err_l, the states on x + F e."""
    (f_iC,) = state["matrices"]
    h = sample.net.embed(sample.x + (sample.error @ f_iC.double().T).view(sample.x.shape))
    credits = [sample.states[0] - h]
    for block, own in zip(sample.net.blocks, sample.states[1:], strict=True):
        h, _ = advanced(sample.net, block, h)
        credits.append(own - h)
    return credits


def _drawn_input_matrix(
    state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]
) -> tuple[dict[str, Any], _State]:
    """PEPITA: F ~ N(0, σ²), σ = scale·2√(6/d_in)."""
    (f_iC,) = state["matrices"]
    drawn = torch.randn(f_iC.shape, generator=rng) * (state["options"]["scale"] * 2 * math.sqrt(6 / len(f_iC)))
    return {}, {"matrices": [drawn]}


def _no_credit(sample: Sample, state: _State, options: _Options, steps: int) -> list[Tensor]:
    """Forward-Forward: its credit does not stand in for the gradient, so nothing is defined of it."""
    return [torch.full_like(h, math.nan) for h in sample.states]


CREDITS: dict[str, _CreditOfRule] = {
    "bp": _gradient,
    "fa": _carried_down,
    "usf": _through_layers,
    "frsf": _through_layers,
    "brsf": _through_layers,
    "kp": _through_layers,
    "mirror": _through_layers,
    "dfa": _sent_error,
    "drtp": _sent_target,
    "dkp": _sent_error,
    "fdfa": _sent_through_learned,
    "forward_gradient": _along_random_directions,
    "predsim": _slope_of_local_losses,
    "ddtp": _carried_by_inverses,
    "state_bridge": _through_predicted_end,
    "credit_bridge": _slope_of_value,
    "pc": _relaxed,
    "ep": _nudged,
    "dualprop": _apart,
    "pepita": _pushed_by_the_input,
    "ff": _no_credit,
    "frozen": _gradient_at_the_embedding,
}
FEEDBACK: dict[str, Callable[[Network, _State], dict[str, Tensor]]] = {
    "fa": _own,
    "usf": _signed,
    "frsf": _signed,
    "brsf": _signed_anew,
    "kp": _own,
    "mirror": _own,
}
"""V of the rules of layers, by the names of the weights."""
WITHOUT_STATE = ("bp", "frozen", "pc", "ep", "dualprop", "ff")  # their credit follows from the network alone


_Redrawn = tuple[dict[str, Any], _State]
"""Options of the rule whose equation applies, where they differ from the rule's own; and its new state."""
_Redraw = Callable[[_State, torch.Generator, Mapping[str, Tensor]], _Redrawn]
"""Arguments: the state at the end, with the rule's options as "options"; a generator; and the matrices of the blocks at
initialisation, in order."""


def _between_states(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _Redrawn:
    """FA: B_l ~ N(0, 1/d), d the width above; by layers, V with the size of W's initial entries."""
    if isinstance(state["matrices"], Mapping):
        return _between_layers(state, rng, initial)
    return {}, {"matrices": [torch.randn(b.shape, generator=rng) / b.shape[1] ** 0.5 for b in state["matrices"]]}


def _between_layers(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _Redrawn:
    """Rules of layers: random matrices, independent of W, as FA draws them."""
    matrices = {}
    for name, w in initial.items():
        size = norm(w.double().flatten().tolist()) / w.numel() ** 0.5
        matrices[name] = torch.randn(w.shape, generator=rng) * size
    return {"name": "fa", "level": "layer"}, {"matrices": matrices}


def _from_the_output(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _Redrawn:
    """DFA and DRTP: B_l ~ N(0, 1/C)."""
    return {}, {"matrices": _drawn_feedback([b.shape for b in state["matrices"]], rng)}


def _blind_from_the_output(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _Redrawn:
    """Rules that learn DFA's matrices: DFA with fixed matrices."""
    matrices = state["matrices"] if "matrices" in state else state["net"].values()
    return {"name": "dfa"}, {"matrices": _drawn_feedback([b.shape for b in matrices], rng)}


def _drawn_feedback(shapes: list[torch.Size], rng: torch.Generator) -> list[Tensor]:
    return [torch.randn(shape, generator=rng) * shape[1] ** -0.5 for shape in shapes]


def _local_heads(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _Redrawn:
    """predsim: other heads, then other maps."""
    net = state["net"]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
        fresh: dict[str, Tensor] = {}
        for kind, bias in (("heads", True), ("maps", False)):
            for layer in range(sum(name.startswith(f"{kind}.") and name.endswith("weight") for name in net)):
                outputs, inputs = net[f"{kind}.{layer}.weight"].shape
                for name, value in nn.Linear(inputs, outputs, bias=bias).state_dict().items():
                    fresh[f"{kind}.{layer}.{name}"] = value
    return {}, {"net": fresh}


def _inverses(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _Redrawn:
    """DDTP: Q_l ~ N(0, 1/D), D numbers of the last state."""
    shapes = [learner["net"]["weight"].shape for learner in state["learners"]]
    drawn = [torch.empty(shape).normal_(std=shape[1] ** -0.5, generator=rng) for shape in shapes]
    return {}, {"learners": [{"net": {"weight": q}} for q in drawn]}


def _predictor(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _Redrawn:
    """State Bridge: another network."""
    return {}, {"net": _default_weights(state["net"], rng)}


def _value(state: _State, rng: torch.Generator, initial: Mapping[str, Tensor]) -> _Redrawn:
    """Credit Bridge at the same step: another network, a seed for its noise, other matrices for the warm-up."""
    net = _default_weights(state["value"]["net"], rng)
    torch.randint(2**62, (1,), generator=rng)
    matrices = _drawn_feedback([b.shape for b in state["feedback"]["matrices"]], rng)
    return {}, {"value": {"net": net}, "feedback": {"matrices": matrices}, "steps": state["steps"]}


def _default_weights(like: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
    """PyTorch's default weights of linear layers of these sizes, from a seed that is drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
        fresh: dict[str, Tensor] = {}
        for name in sorted({name.rpartition(".")[0] for name in like}, key=_place):
            outputs, inputs = like[f"{name}.weight"].shape
            layer = nn.Linear(inputs, outputs)
            fresh |= {f"{name}.weight": layer.weight.detach(), f"{name}.bias": layer.bias.detach()}
    return fresh


def _place(name: str) -> tuple[str, int]:
    """The sort key of a layer in the order of construction: entries before layers, each by number."""
    kind, number = name.split(".")
    return kind, int(number)


REDRAWN: dict[str, _Redraw] = {
    "fa": _between_states,
    **dict.fromkeys(("usf", "frsf", "brsf", "kp", "mirror"), _between_layers),
    "dfa": _from_the_output,
    "drtp": _from_the_output,
    "dkp": _blind_from_the_output,
    "fdfa": _blind_from_the_output,
    "predsim": _local_heads,
    "ddtp": _inverses,
    "pepita": _drawn_input_matrix,
    "state_bridge": _predictor,
    "credit_bridge": _value,
}
