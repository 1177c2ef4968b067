"""One training step for every rule: forward with cuts, credits, one call of the autograd engine.

N samples, C outputs, L blocks.  Unit l produces h_l: the embedding for l = 0, block l−1 otherwise.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sonde.core.generators import global_state
from sonde.network import Network, untraced, vector_axis
from sonde.network.losses import Loss
from sonde.network.pooling import FLAT
from sonde.rules import Rule, RuleState, Signal
from sonde.rules.rule import CreditAt, CreditScale, Matrix
from sonde.training.swap import swapped
from sonde.training.tangents import tangent_of_output


class Step(NamedTuple):
    """What a step leaves to be read, all of it still on the device."""

    loss: Tensor  # mean over the batch, without the penalty
    output_NC: Tensor
    logs: dict[str, Tensor]


def backward(net: Network, rule: Rule, state: RuleState, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """Fill the gradient of every parameter the rule trains."""
    match rule.route:
        case "global":
            return _global(net, rule, x, y, loss)
        case "frozen":
            return _frozen(net, rule, x, y, loss)
        case "layer":
            return _layer(net, rule, state, x, y, loss)
        case "local":
            return _local(net, rule, state, x, y, loss)


def _global(net: Network, rule: Rule, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """Ordinary automatic differentiation across the blocks."""
    passed = net.run(x)
    value = loss.mean(passed.output, y)
    _goal(value, rule, passed.branches, net.lead).backward()  # type: ignore[no-untyped-call]
    return Step(value.detach(), passed.output.detach(), {})


def _frozen(net: Network, rule: Rule, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """The gradient crosses the blocks to the embedding and leaves them as they are."""
    samples = x.shape[net.lead]

    def hand_on(states: list[Tensor]) -> Tensor:
        h = states[-1]
        if len(states) == 1 and rule.credit_scale == "rms" and h.requires_grad:
            h.register_hook(lambda g: scaled(g * samples, "rms", samples, net.lead))  # type: ignore[no-untyped-call]
        return h

    output_NC = net.run(x, hand_on).output
    value = loss.mean(output_NC, y)
    trained = net.outside()
    if trained:
        torch.autograd.backward(value.sum(), inputs=trained)
    return Step(value.detach(), output_NC.detach(), {})


def _layer(net: Network, rule: Rule, state: RuleState, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """Automatic differentiation across the blocks, whose matrices are others on the way back; credit is normalised
    at every state."""
    units = net.matrices()
    feedback = rule.feedback(state, _to_be_read(units))
    samples, again = x.shape[net.lead], Again(net, x)
    with ExitStack() as swapping:

        def hand_on(states: list[Tensor]) -> Tensor:
            again.remember()
            h = rescaled(states[-1], rule.credit_scale, samples, net.lead)
            if len(states) == 1:
                swapping.enter_context(swapped(every(units), feedback))
            if len(states) == net.depth + 1:
                swapping.close()
            return h

        passed = net.run(x, hand_on)
    value = loss.mean(passed.output, y)
    _goal(value, rule, passed.branches, net.lead).backward()  # type: ignore[no-untyped-call]
    states = [h.detach() for h in passed.states]
    signal = signal_on(again, states, passed.output.detach(), y, loss)
    return Step(value.detach(), passed.output.detach(), rule.update(state, signal))


def _local(net: Network, rule: Rule, state: RuleState, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """No gradient crosses a cut; each unit gets the gradient of ⟨its output, â⟩/N, â as `delivered` says."""
    samples, again = x.shape[net.lead], Again(net, x)

    def signal_of(top_gradient: Tensor | None) -> Signal:
        return signal_on(again, states, output_NC.detach(), y, loss, top_gradient)

    seen: list[Signal] = []

    def answer(mean_gradient: Tensor) -> list[Tensor]:
        seen.append(signal_of(mean_gradient * samples))
        return delivered(rule, rule.credits(state, seen[0]), samples, net.lead)

    def hand_on(units: list[Tensor]) -> Tensor:
        again.remember()
        if rule.reads_top_gradient and len(units) == net.depth + 1:
            return Deliver.apply(answer, *units)  # type: ignore[no-any-return, no-untyped-call]
        return units[-1].detach()

    units, branches, output_NC = net.run(x, hand_on)
    states = [unit.detach() for unit in units]
    value = loss.mean(output_NC, y)
    goal = _goal(value, rule, branches, net.lead)
    if rule.reads_top_gradient:
        goal.backward()  # type: ignore[no-untyped-call]
        signal = seen[0]
    else:
        signal = signal_of(None)
        told = delivered(rule, rule.credits(state, signal), samples, net.lead)
        goals = [(goal, None), *zip(units, told, strict=True)]
        goals = [(goal, a) for goal, a in goals if goal.requires_grad]
        torch.autograd.backward([goal for goal, _ in goals], [a for _, a in goals])
    return Step(value.detach(), output_NC.detach(), rule.update(state, signal))


def _goal(value: Tensor, rule: Rule, branches: list[Tensor], lead: int) -> Tensor:
    """The loss plus λ Σ_l mean_i ‖f_l(h_l)‖², a token or position counting as a sample; summed over replicas."""
    if rule.penalty:
        penalties = [f.square().sum(vector_axis(f, lead)).flatten(lead).mean(-1) for f in branches]
        value = value + rule.penalty * torch.stack(penalties).sum(0)
    return value.sum() if lead else value


def delivered(rule: Rule, credits: Sequence[Tensor], samples: int, lead: int) -> list[Tensor]:
    """What each unit learns from, embedding first: the credit at its output or at its input, normalised, over N."""
    told = [credits[0], *credits[:-1]] if credit_at(rule) == "input" else credits
    return [scaled(a, rule.credit_scale, samples, lead) for a in told]


def credit_at(rule: Rule) -> CreditAt:
    """A rule from elsewhere need not say."""
    return getattr(rule, "credit_at", "output")


def scaled(a: Tensor, credit_scale: CreditScale, samples: int = 1, lead: int = 0) -> Tensor:
    """â/N with â = a / (RMS(a) + 1e-6), RMS over all of a replica; or a/N.  Never the same memory as a."""
    return a / samples if credit_scale == "none" else a / _size(a, samples, lead).add_(1e-6 * samples)


def _size(a: Tensor, samples: int, lead: int) -> Tensor:
    """RMS(a)·N, of every replica."""
    norm: Tensor = torch.linalg.vector_norm(a, dim=tuple(range(lead, a.ndim)), keepdim=True)
    return norm.mul_(samples / math.sqrt(math.prod(a.shape[lead:])))


class Again:
    """The units of a network run again on the same batch, leaving no trace; with the same random numbers as before."""

    def __init__(self, net: Network, x: Tensor) -> None:
        self.net, self.x = net, x
        self.drawn: list[Tensor] = []  # the generator before each unit, and before the readout

    def remember(self) -> None:
        """Called when a state is handed on."""
        if self.net.draws:
            self.drawn.append(global_state(self.x.device))

    def __call__(self, layer: int) -> AbstractContextManager[None]:
        """What runs inside starts with unit l."""
        if not self.net.traces:
            return nullcontext()
        return untraced(self.net, self.drawn[layer] if self.drawn else None, self.x.device)


def signal_on(
    again: Again,
    states: list[Tensor],
    output_NC: Tensor,
    y: Tensor,
    loss: Loss,
    top_gradient: Tensor | None = None,
    gradients: Callable[[], Sequence[Tensor]] | None = None,
) -> Signal:
    """What a rule may look at in a batch that went through a network."""
    net, x, top = again.net, again.x, len(states) - 1

    def readout(h: Tensor) -> Tensor:
        with again(top):
            return net.tail(h, top, x).output

    def exact() -> list[Tensor]:
        with again(0):
            return exact_gradients(net, states, y, loss, x)

    return Signal(
        states=states,
        output_NC=output_NC,
        y=y,
        loss=loss,
        readout=readout,
        gradients=gradients or exact,
        vjp=partial(_vjp, again, states),
        jvp=partial(_jvp, again, states),
        top_from=partial(_top_from, again),
        units=lambda: _to_be_read(net.matrices()),
        gradients_of_units=lambda: _gradients(net.matrices()),
        reader=net.reader or FLAT,
        top_gradient=top_gradient,
    )


def exact_gradients(
    net: Network, states: Sequence[Tensor], y: Tensor, loss: Loss, x: Tensor | None = None
) -> list[Tensor]:
    """g_0 … g_L per sample, by running the blocks again from h_0."""
    with torch.enable_grad():
        passed = net.tail(states[0].detach().requires_grad_(), 0, x)
        return list(torch.autograd.grad(loss.per_sample(passed.output, y).sum(), passed.states))


def _vjp(again: Again, states: Sequence[Tensor], layer: int, a: Tensor, weights: Matrix) -> Tensor:
    """aᵀ ∂h_{l+1}/∂h_l of unit l, `weights` standing in for its matrices on the way back."""
    net = again.net
    unit = net.matrices()[layer] if weights else {}
    used = {name: v for name, v in weights.items() if name in unit}
    with again(layer), torch.enable_grad():
        h = states[layer].detach().requires_grad_()
        with swapped(unit, used):
            above = net.advance(h, layer, again.x)
        (below,) = torch.autograd.grad(above, h, a, materialize_grads=True)
    return below


def _jvp(again: Again, states: Sequence[Tensor], directions: Sequence[Tensor]) -> Tensor:
    """Σ_l (∂z/∂h_l) v_l, by running the blocks again from h_0."""
    with again(0):
        return tangent_of_output(lambda join: again.net.tail(states[0], 0, again.x, join).output, directions)


def _top_from(again: Again, layer: int, h: Tensor) -> Tensor:
    """h_L from another h_l."""
    with again(layer), torch.no_grad():
        return again.net.tail(h, layer, again.x).states[-1]


def every(units: list[dict[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    return {name: p for unit in units for name, p in unit.items()}


def _to_be_read(units: list[dict[str, nn.Parameter]]) -> list[Matrix]:
    return [{name: p.detach() for name, p in unit.items()} for unit in units]


def _gradients(units: list[dict[str, nn.Parameter]]) -> list[Matrix]:
    return [{name: p.grad for name, p in unit.items() if p.grad is not None} for unit in units]


class Deliver(torch.autograd.Function):
    """Hands h_L to the readout; when the gradient comes back, hands every unit the credit the rule names.

    The rule is called inside autograd's backward because that is the one moment at which g_L is known and the blocks
    have not been gone through: so one call of the engine serves readout and all blocks.  Without this node g_L would
    take a call of its own, and the graph of the readout would have to be kept for a second one.
    """

    @staticmethod
    def forward(ctx: Any, answer: Callable[[Tensor], list[Tensor]], *units: Tensor) -> Tensor:
        ctx.answer = answer
        return units[-1].view_as(units[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_gradient: Tensor) -> tuple[Any, ...]:
        answer, ctx.answer = ctx.answer, None  # the answer knows the output, and the output's graph this node
        return None, *answer(mean_gradient)


def rescaled(h: Tensor, credit_scale: CreditScale, samples: int, lead: int) -> Tensor:
    """h, at which credit coming back is normalised.  A hook costs less than a node of the graph."""
    if credit_scale == "rms" and h.requires_grad:
        h.register_hook(lambda g: g / _size(g, samples, lead).add_(1e-6))  # type: ignore[no-untyped-call]
    return h
