"""One training step for every rule: forward with cuts, credits, one call of the autograd engine.

N samples, C outputs, L blocks.  Unit l produces h_l: the embedding for l = 0, block l−1 otherwise.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sonde.losses import Loss
from sonde.network import Network
from sonde.rules import Rule, RuleState, Signal
from sonde.rules.rule import CreditScale


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
        case "local":
            return _local(net, rule, state, x, y, loss)


def _global(net: Network, rule: Rule, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """Ordinary automatic differentiation across the blocks."""
    h, branches = _run_blocks(net, net.embed(x))
    output_NC = net.readout(h)
    value = loss.mean(output_NC, y)
    _goal(value, rule, branches, net.lead).backward()  # type: ignore[no-untyped-call]
    return Step(value.detach(), output_NC.detach(), {})


def _frozen(net: Network, rule: Rule, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """The gradient crosses the blocks to the embedding and leaves them as they are."""
    samples = x.shape[net.lead]
    h = Rescale.apply(net.embed(x), rule.credit_scale, samples, net.lead)  # type: ignore[no-untyped-call]
    h, _ = _run_blocks(net, h)
    output_NC = net.readout(h)
    value = loss.mean(output_NC, y)
    trained = [*net.embed.parameters(), *net.readout.parameters()]
    if trained:
        torch.autograd.backward(value.sum(), inputs=trained)
    return Step(value.detach(), output_NC.detach(), {})


def _run_blocks(net: Network, h: Tensor) -> tuple[Tensor, list[Tensor]]:
    branches = []
    for block in net.blocks:
        branches.append(block(h))
        h = h + branches[-1] if net.residual else branches[-1]
    return h, branches


def _local(net: Network, rule: Rule, state: RuleState, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """No gradient crosses a cut; each unit gets the gradient of ⟨its output, â_l⟩/N."""
    units, branches = [net.embed(x)], []
    for block in net.blocks:
        h = units[-1].detach()
        branches.append(block(h))
        units.append(h + branches[-1] if net.residual else branches[-1])
    states = [unit.detach() for unit in units]
    samples = x.shape[net.lead]

    def signal_of(top_gradient: Tensor | None) -> Signal:
        return Signal(
            states=states,
            output_NC=output_NC.detach(),
            y=y,
            loss=loss,
            readout=net.readout,
            gradients=lambda: exact_gradients(net, states, y, loss),
            top_gradient=top_gradient,
        )

    def delivered(signal: Signal) -> list[Tensor]:
        return [scaled(a, rule.credit_scale, samples, net.lead) for a in rule.credits(state, signal)]

    if rule.reads_top_gradient:
        seen: list[Signal] = []

        def answer(mean_gradient: Tensor) -> list[Tensor]:
            seen.append(signal_of(mean_gradient * samples))
            return delivered(seen[0])

        output_NC = net.readout(Deliver.apply(answer, *units))  # type: ignore[no-untyped-call]
        value = loss.mean(output_NC, y)
        _goal(value, rule, branches, net.lead).backward()  # type: ignore[no-untyped-call]
        signal = seen[0]
    else:
        output_NC = net.readout(states[-1])
        value = loss.mean(output_NC, y)
        signal = signal_of(None)
        goals = [(_goal(value, rule, branches, net.lead), None), *zip(units, delivered(signal), strict=True)]
        goals = [(goal, a) for goal, a in goals if goal.requires_grad]
        torch.autograd.backward([goal for goal, _ in goals], [a for _, a in goals])
    return Step(value.detach(), output_NC.detach(), rule.update(state, signal))


def _goal(value: Tensor, rule: Rule, branches: list[Tensor], lead: int) -> Tensor:
    """The loss plus λ Σ_l mean_i ‖f_l(h_l)‖², a token counting as a sample; summed over replicas."""
    if rule.penalty:
        penalties = [f.square().sum(-1).flatten(lead).mean(-1) for f in branches]
        value = value + rule.penalty * torch.stack(penalties).sum(0)
    return value.sum() if lead else value


def scaled(a: Tensor, credit_scale: CreditScale, samples: int = 1, lead: int = 0) -> Tensor:
    """â/N with â = a / (RMS(a) + 1e-6), RMS over all of a replica; or a/N.  Never the same memory as a."""
    if credit_scale == "none":
        return a / samples
    axes = tuple(range(lead, a.ndim))
    norm: Tensor = torch.linalg.vector_norm(a, dim=axes, keepdim=True)
    size = math.prod(a.shape[lead:])
    return a / norm.mul_(samples / math.sqrt(size)).add_(1e-6 * samples)


def exact_gradients(net: Network, states: list[Tensor], y: Tensor, loss: Loss) -> list[Tensor]:
    """g_0 … g_L per sample, by running the blocks again from h_0."""
    with torch.enable_grad():
        h = states[0].detach().requires_grad_()
        again = [h]
        for block in net.blocks:
            h = h + block(h) if net.residual else block(h)
            again.append(h)
        return list(torch.autograd.grad(loss.per_sample(net.readout(h), y).sum(), again))


class Deliver(torch.autograd.Function):
    """Hands h_L to the readout; when the gradient comes back, hands every unit the credit the rule names."""

    @staticmethod
    def forward(ctx: Any, answer: Callable[[Tensor], list[Tensor]], *units: Tensor) -> Tensor:
        ctx.answer = answer
        return units[-1].view_as(units[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_gradient: Tensor) -> tuple[Any, ...]:
        answer, ctx.answer = ctx.answer, None  # the answer knows the output, and the output's graph this node
        return None, *answer(mean_gradient)


class Rescale(torch.autograd.Function):
    """The identity going up; credit coming back is normalised."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, credit_scale: CreditScale, samples: int, lead: int) -> Tensor:
        ctx.credit_scale, ctx.samples, ctx.lead = credit_scale, samples, lead
        return h.view_as(h)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_gradient: Tensor) -> tuple[Any, ...]:
        if ctx.credit_scale == "none":
            return mean_gradient, None, None, None
        return scaled(mean_gradient * ctx.samples, "rms", ctx.samples, ctx.lead), None, None, None
