"""A training step with a hand-written backward pass: it records no graph and keeps its buffers between steps.

R replicas, N samples, d width, L blocks.  With g the gradient at the output y of a layer:

    y = x W + b        ∂W = xᵀ g,  ∂b = Σ_N g,  ∂x = g Wᵀ
    y = max(x, 0)      ∂x = g · [y > 0]
    y = x Φ(x)         ∂x = g · (Φ(x) + x Φ′(x))
    y = γ x̂ + β        ∂γ = Σ_N g x̂,  ∂β = Σ_N g,  ∂x = (ĝ − mean_d ĝ − x̂ mean_d(ĝ x̂)) / σ  with ĝ = γ g
    h′ = h + f(h)      ∂h = g + f's ∂x

It calls the same kernels in the same order as autograd, so the bits are the same.  It saves the cost of graph nodes and
of memory that is new, and cold, at every step.  Buffers are valid for one step; blocks share the buffers that are used
only within a block.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sonde.config import RunConfig
from sonde.core.validated import Optimiser
from sonde.models import PlainMLP, ResidualMLP, ResMLP
from sonde.models.mlps import LinearLayer, PreNormBlock, ReluLayer
from sonde.models.model import Embedding, Readout
from sonde.network import Network
from sonde.network.losses import Loss
from sonde.rules import (
    Backprop,
    CreditBridge,
    DirectFeedback,
    FeedbackAlignment,
    Rule,
    RuleState,
    StateBridge,
)
from sonde.training.kernels import StackedLayerNorm, StackedLinear, faster_product
from sonde.training.step import Rerun, Step, delivered, rule_backward, signal_on

_MODELS = (PlainMLP, ResMLP, ResidualMLP)
_RULES = (Backprop, FeedbackAlignment, DirectFeedback, StateBridge, CreditBridge)
_RELU_BACKWARD: Callable[..., Tensor] = torch.ops.aten.threshold_backward.grad_input


def by_hand(config: RunConfig) -> bool:
    """Whether a run of this configuration uses the hand-written step; all others use autograd.

    Excluded are: backprop with normalised credit, which runs the blocks twice; a penalty, which enters between the
    blocks; subclasses, which may compute something else; plugin optimisers, which may keep gradients; blocks that are
    not trained.
    """
    rule = config.rule
    return (
        type(config.model) in _MODELS
        and not has_fixed_blocks(config)
        and type(rule) in _RULES
        and isinstance(config.optimiser, Optimiser)
        and (rule.route == "global" or (rule.route == "local" and not isinstance(rule, Backprop)))
        and not rule.penalty
        and config.precision != "bf16"
    )


def has_fixed_blocks(config: RunConfig) -> bool:
    """Whether some blocks of the network keep their initial weights."""
    return isinstance(config.model, ResidualMLP) and config.model.trained_blocks is not None


def step_of(config: RunConfig, net: Network, state: RuleState, loss: Loss) -> Callable[[Tensor, Tensor], Step]:
    """A function of a batch that fills the gradients of a run's network, overwriting old ones."""
    if by_hand(config):
        return StepByHand(net, config.rule, state, loss)
    parameters = list(net.parameters())

    def by_autograd(x: Tensor, y: Tensor) -> Step:
        for p in parameters:
            p.grad = None
        return rule_backward(net, config.rule, state, x, y, loss)

    return by_autograd


class Scratch:
    """Buffers by name and shape, shared by layers that do not need them at the same time."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.Size], Tensor] = {}

    def __call__(self, name: str, like: Tensor) -> Tensor:
        key = name, like.shape
        if key not in self._kept:
            self._kept[key] = torch.empty_like(like, memory_format=torch.contiguous_format)
        return self._kept[key]


class Layer(Protocol):
    """A layer and its derivative, for batches of one shape.  `y` is its output buffer."""

    y: Tensor

    def forward(self, x: Tensor) -> Tensor: ...

    def backward(self, g: Tensor, below: bool) -> Tensor | None:
        """Fill the gradients of its parameters; return that of its input where `below` asks for it."""


class LinearByHand:
    """`nn.Linear`."""

    def __init__(self, module: nn.Linear, x: Tensor, scratch: Scratch) -> None:
        self.weight, self.bias = module.weight, module.bias
        self.y = x.new_empty(len(x), module.out_features)
        self.gradients = torch.empty_like(self.weight), torch.empty_like(self.bias)
        self.below = scratch("below", x)
        self.product = faster_product(len(x), module.out_features, module.in_features, like=x)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return torch.addmm(self.bias, x, self.weight.T, out=self.y)

    def backward(self, g: Tensor, below: bool) -> Tensor | None:
        self.weight.grad = self.product(g, self.x, self.gradients[0])
        self.bias.grad = torch.sum(g, 0, out=self.gradients[1])
        return torch.mm(g, self.weight, out=self.below) if below else None


class StackedLinearByHand:
    """`StackedLinear`."""

    def __init__(self, module: StackedLinear, x: Tensor, scratch: Scratch) -> None:
        assert module.weight is not None
        assert module.bias is not None
        self.weight, self.bias = module.weight, module.bias
        self.whole = x.new_empty(*x.shape[:-1], self.weight.shape[-1])
        self.y = self.whole[..., : module.outputs]
        self.padded = torch.zeros_like(self.whole) if self.y.shape != self.whole.shape else None
        self.weight_back = self.weight.detach().mT  # the memory of the stack, which never moves
        self.gradients = torch.empty_like(self.weight), torch.empty_like(self.bias)
        self.below = scratch("below", x)
        self.x, self.x_back = x, x.mT

    def forward(self, x: Tensor) -> Tensor:
        if x is not self.x:  # for a block it is the same buffer at every step
            self.x, self.x_back = x, x.mT
        torch.baddbmm(self.bias, x, self.weight, out=self.whole)
        return self.y

    def backward(self, g: Tensor, below: bool) -> Tensor | None:
        if self.padded is not None:
            self.padded[..., : g.shape[-1]] = g
            g = self.padded
        self.weight.grad = torch.bmm(self.x_back, g, out=self.gradients[0])
        self.bias.grad = torch.sum(g, 1, keepdim=True, out=self.gradients[1])
        return torch.bmm(g, self.weight_back, out=self.below) if below else None


class ReluByHand:
    """ReLU in place: its input is not needed again."""

    def __init__(self, x: Tensor, scratch: Scratch) -> None:
        self.y, self.delta = x, scratch("delta", x)

    def forward(self, x: Tensor) -> Tensor:
        return x.relu_()

    def backward(self, g: Tensor, below: bool) -> Tensor:
        return _RELU_BACKWARD(g, self.y, 0, grad_input=self.delta)


class GeluByHand:
    """Exact GELU."""

    def __init__(self, x: Tensor, scratch: Scratch) -> None:
        self.y, self.delta = torch.empty_like(x), scratch("delta", x)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return torch.ops.aten.gelu.out(x, out=self.y)  # type: ignore[no-any-return]

    def backward(self, g: Tensor, below: bool) -> Tensor:
        return torch.ops.aten.gelu_backward.grad_input(g, self.x, grad_input=self.delta)  # type: ignore[no-any-return]


class LayerNormByHand:
    """`nn.LayerNorm`."""

    def __init__(self, module: nn.LayerNorm, x: Tensor) -> None:
        self.weight, self.bias = module.weight, module.bias
        self.shape, self.eps = list(module.normalized_shape), module.eps
        self.y = torch.empty_like(x)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        y, self.mean, self.rstd = torch.native_layer_norm(x, self.shape, self.weight, self.bias, self.eps)
        return y

    def backward(self, g: Tensor, below: bool) -> Tensor | None:
        found = torch.ops.aten.native_layer_norm_backward(
            g, self.x, self.shape, self.mean, self.rstd, self.weight, self.bias, [below, True, True]
        )
        gradient: Tensor | None
        gradient, self.weight.grad, self.bias.grad = found
        return gradient


class StackedLayerNormByHand:
    """`StackedLayerNorm`."""

    def __init__(self, module: StackedLayerNorm, x: Tensor) -> None:
        assert module.weight is not None
        assert module.bias is not None
        self.weight, self.bias = module.weight, module.bias
        self.shape, self.eps = module.shape, module.eps
        self.y = torch.empty_like(x)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        self.unit, self.mean, self.rstd = torch.native_layer_norm(x, self.shape, None, None, self.eps)
        return torch.addcmul(self.bias, self.unit, self.weight, out=self.y)

    def backward(self, g: Tensor, below: bool) -> Tensor | None:
        self.weight.grad = (g * self.unit).sum(1, keepdim=True)
        self.bias.grad = g.sum(1, keepdim=True)
        if not below:
            return None
        gradient: Tensor = torch.ops.aten.native_layer_norm_backward(
            g * self.weight, self.x, self.shape, self.mean, self.rstd, None, None, [True, False, False]
        )[0]
        return gradient


_SUPPORTED = (
    *(nn.Identity, nn.Linear, StackedLinear, nn.LayerNorm, StackedLayerNorm),
    *(Embedding, LinearLayer, ReluLayer, PreNormBlock, Readout),
)


def _layers(module: nn.Module, x: Tensor, scratch: Scratch) -> list[Layer]:
    """The layers of a module, in the order in which they run."""
    if type(module) not in _SUPPORTED:
        raise TypeError(f"the derivative of a {type(module).__name__} is not written out")
    match module:
        case nn.Identity():
            return []
        case nn.Linear():
            return [LinearByHand(module, x, scratch)]
        case StackedLinear():
            return [StackedLinearByHand(module, x, scratch)]
        case nn.LayerNorm():
            return [LayerNormByHand(module, x)]
        case StackedLayerNorm():
            return [StackedLayerNormByHand(module, x)]
        case Embedding() | LinearLayer():
            return _layers(module.linear, x, scratch)
        case ReluLayer():
            (linear,) = _layers(module.linear, x, scratch)
            return [linear, ReluByHand(linear.y, scratch)]
        case PreNormBlock():
            (ln,) = _layers(module.ln, x, scratch)
            (w1,) = _layers(module.w1, ln.y, scratch)
            gelu = GeluByHand(w1.y, scratch)
            return [ln, w1, gelu, *_layers(module.w2, gelu.y, scratch)]
        case Readout():
            return [*_layers(module.out_ln, x, scratch), *_layers(module.out_head, x, scratch)]
    raise AssertionError(f"{type(module).__name__} has no case")


class Unit:
    """Layers in sequence; with `residual` their output is added to the input."""

    def __init__(self, module: nn.Module, x: Tensor, scratch: Scratch, *, residual: bool) -> None:
        self.layers = _layers(module, x, scratch)
        self.back = [(layer, index > 0) for index, layer in enumerate(self.layers)][::-1]
        self.h = torch.empty_like(x) if residual else self.layers[-1].y if self.layers else x
        self.stream = scratch("stream", x) if residual else None

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self.layers:
            h = layer.forward(h)
        return h if self.stream is None else torch.add(x, h, out=self.h)

    def backward(self, g: Tensor, below: bool) -> Tensor | None:
        """As `Layer.backward`."""
        through: Tensor | None = g
        for layer, inside in self.back:
            assert through is not None
            through = layer.backward(through, below or inside)
        return through if self.stream is None or through is None else torch.add(g, through, out=self.stream)


class ReluBlocks:
    """All ReLU blocks of a stack as one unit, for backprop.

    All buffers are fixed, so the forward and the backward pass are lists of calls that every step repeats.  States lie
    side by side, and so do gradients: one batched product gives ∂W of all blocks, one sum gives ∂b.
    """

    def __init__(self, blocks: Sequence[nn.Module], x: Tensor, *, residual: bool) -> None:
        depth = len(blocks)
        linears: list[Any] = [block.linear for block in blocks]
        states = x.new_empty(depth + 1, *x.shape)  # h_0 … h_L
        outputs = x.new_empty(depth, *x.shape) if residual else states[1:]
        deltas = x.new_empty(depth, *x.shape)  # the gradients at W h + b
        weights, biases = (x.new_empty(depth, *getattr(linears[0], name).shape) for name in ("weight", "bias"))
        self.owned = [(linear.weight, weights[layer]) for layer, linear in enumerate(linears)]
        self.owned += [(linear.bias, biases[layer]) for layer, linear in enumerate(linears)]
        self.first, self.h = states[0], states[-1]
        self.g, below = torch.empty_like(x), torch.empty_like(x)
        self.below = self.g if residual else below
        self.calls: list[Callable[[], object]] = []
        self.back: list[Callable[[], object]] = []
        for layer, (block, linear) in enumerate(zip(blocks, linears, strict=True)):
            y = outputs[layer]
            self.calls.append(partial(torch.baddbmm, linear.bias, states[layer], linear.weight, out=y))
            if isinstance(block, ReluLayer):
                self.calls.append(y.relu_)
            if residual:
                self.calls.append(partial(torch.add, states[layer], y, out=states[layer + 1]))
        for layer in reversed(range(depth)):
            g, delta = self.g if residual or layer == depth - 1 else below, deltas[layer]
            if isinstance(blocks[layer], ReluLayer):
                self.back.append(partial(_RELU_BACKWARD, g, outputs[layer], 0, grad_input=delta))
            else:
                self.back.append(partial(delta.copy_, g))
            self.back.append(partial(torch.bmm, delta, linears[layer].weight.detach().mT, out=below))
            if residual:
                self.back.append(partial(self.g.add_, below))
        x_all, g_all = states[:-1].flatten(0, 1).mT, deltas.flatten(0, 1)
        self.gradients: list[Callable[[], object]] = [
            partial(torch.bmm, x_all, g_all, out=weights.flatten(0, 1)),
            partial(torch.sum, g_all, 1, keepdim=True, out=biases.flatten(0, 1)),
        ]
        self.unused = 2 if residual else 1  # the last calls of `back`, which make the gradient at h_0

    @staticmethod
    def fit(blocks: Sequence[nn.Module]) -> bool:
        """Whether all blocks are ReLU or linear layers of a stack."""
        return all(type(b) in (ReluLayer, LinearLayer) and isinstance(b.linear, StackedLinear) for b in blocks)

    def forward(self, x: Tensor) -> Tensor:
        self.first.copy_(x)
        for call in self.calls:
            call()
        return self.h

    def backward(self, g: Tensor, below: bool) -> Tensor | None:
        """As `Layer.backward`."""
        self.g.copy_(g)
        for call in self.back if below else self.back[: -self.unused]:
            call()
        for call in self.gradients:
            call()
        if self.owned[0][0].grad is not self.owned[0][1]:
            for parameter, gradient in self.owned:
                parameter.grad = gradient
        return self.below if below else None


class StepByHand:
    """Training steps of a network whose parameters stay in place.  Gradients are valid until the next step."""

    def __init__(self, net: Network, rule: Rule, state: RuleState, loss: Loss) -> None:
        self.net, self.rule, self.state, self.loss = net, rule, state, loss
        self.batch: torch.Size | None = None

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor) -> Step:
        """Fill the gradient of every parameter that the rule trains."""
        flat = x.flatten(self.net.lead + 1)
        if flat.shape != self.batch:
            self._allocate(flat)
        states = [self.embed.forward(flat)]
        for block in self.blocks:
            states.append(block.forward(states[-1]))
        output = self.readout.forward(states[-1]).clone()  # the caller keeps it beyond the step
        value, g = self.loss.mean_and_slope(output, y)
        step = Step(value, output, {})
        if self.rule.route == "global":
            self._backpropagate(g)
            return step
        return step._replace(logs=self._deliver(g, x, y, states, step.output_NC))

    def _allocate(self, x: Tensor) -> None:
        """Make layers and buffers for batches of this shape."""
        self.batch = x.shape
        self.embed = Unit(self.net.embed, x, Scratch(), residual=False)
        self.blocks: list[Unit | ReluBlocks] = []
        h, scratch, blocks = self.embed.h, Scratch(), list(self.net.blocks)
        if self.rule.route == "global" and ReluBlocks.fit(blocks):
            self.blocks = [ReluBlocks(blocks, h, residual=self.net.residual)]
        else:
            for block in blocks:
                self.blocks.append(Unit(block, h, scratch, residual=self.net.residual))
                h = self.blocks[-1].h
        self.readout = Unit(self.net.readout, self.blocks[-1].h, Scratch(), residual=False)
        units = [self.embed, *self.blocks, self.readout]
        first = 0 if self.embed.layers else 1  # the first unit that has parameters
        self.back = [(unit, index > first) for index, unit in enumerate(units)][first:][::-1]

    def _backpropagate(self, g: Tensor) -> None:
        """Carry the gradient from the output to the first unit that has parameters."""
        credit: Tensor | None = g
        for unit, below in self.back:
            assert credit is not None
            credit = unit.backward(credit, below)

    def _deliver(self, g: Tensor, x: Tensor, y: Tensor, states: list[Tensor], output: Tensor) -> dict[str, Tensor]:
        """Give every unit the credit that the rule names; return the logs of the rule."""
        net, rule, samples = self.net, self.rule, x.shape[self.net.lead]
        top = self.readout.backward(g, rule.reads_top_gradient)
        top = None if top is None else top * samples
        signal = signal_on(Rerun(net, x), states, output, y, self.loss, top)
        credits = delivered(rule, rule.credits(self.state, signal), samples, net.lead)
        for unit, a in zip([self.embed, *self.blocks], credits, strict=True):
            unit.backward(a, below=False)
        with torch.enable_grad():  # networks of a rule learn by autograd
            return rule.update(self.state, signal)
