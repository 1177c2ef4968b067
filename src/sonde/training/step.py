"""One training step for every rule: a forward pass with cuts, credits, and one call of the autograd engine.

N samples, C outputs, L blocks.  Unit l computes h_l: the embedding for l = 0, block l−1 otherwise.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sonde.core.generators import global_state
from sonde.network import FLAT, Network, vector_axis, without_side_effects
from sonde.network.losses import Loss
from sonde.rules import Rule, RuleState, Signal
from sonde.rules.rule import CreditAt, CreditScale, Evaluation, Matrix, summed
from sonde.training.autograd import output_tangent, weights_in_backward


class Step(NamedTuple):
    """The results of a step, still on the device."""

    loss: Tensor  # the mean over the batch, without the penalty
    output_NC: Tensor
    logs: dict[str, Tensor]


def rule_backward(net: Network, rule: Rule, state: RuleState, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """Fill the gradient of every parameter that the rule trains."""
    match rule.route:
        case "global":
            return _global(net, rule, x, y, loss)
        case "frozen":
            return _frozen(net, rule, x, y, loss)
        case "layer":
            return _layer(net, rule, state, x, y, loss)
        case "local":
            return _local(net, rule, state, x, y, loss)
        case "states":
            return _states(net, rule, state, x, y, loss)


def _global(net: Network, rule: Rule, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """Ordinary autograd through the blocks."""
    passed = net.run(x)
    value = loss.mean(passed.output, y)
    _objective(value, rule, passed.branches, net.lead).backward()  # type: ignore[no-untyped-call]
    return Step(value.detach(), passed.output.detach(), {})


def _frozen(net: Network, rule: Rule, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """Autograd through the blocks; only embedding and readout get gradients."""
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
    """Autograd through the blocks, with other matrices in the backward pass; credit is normalised at every state."""
    samples, rerun = x.shape[net.lead], Rerun(net, x)
    feedback = rule.feedback(state, _detached(rerun.matrices))
    with ExitStack() as substitution:

        def hand_on(states: list[Tensor]) -> Tensor:
            rerun.record()
            h = _normalise_gradient_at(states[-1], rule.credit_scale, samples, net.lead)
            if len(states) == 1:
                matrices = {name: p for unit in rerun.matrices for name, p in unit.items()}
                substitution.enter_context(weights_in_backward(matrices, feedback))
            if len(states) == net.depth + 1:
                substitution.close()
            return h

        passed = net.run(x, hand_on)
    value = loss.mean(passed.output, y)
    _objective(value, rule, passed.branches, net.lead).backward()  # type: ignore[no-untyped-call]
    states = [h.detach() for h in passed.states]
    signal = signal_on(rerun, states, passed.output.detach(), y, loss)
    return Step(value.detach(), passed.output.detach(), rule.update(state, signal))


def _local(net: Network, rule: Rule, state: RuleState, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """The graph is cut between units; each unit gets the gradient of ⟨its output, â⟩/N, with â from `delivered`."""
    samples, rerun = x.shape[net.lead], Rerun(net, x)

    def signal_of(top_gradient: Tensor | None) -> Signal:
        return signal_on(rerun, states, output_NC.detach(), y, loss, top_gradient)

    signals: list[Signal] = []

    def credits_of(mean_gradient: Tensor) -> list[Tensor]:
        signals.append(signal_of(mean_gradient * samples))
        return delivered(rule, rule.credits(state, signals[0]), samples, net.lead)

    def hand_on(units: list[Tensor]) -> Tensor:
        rerun.record()
        if rule.reads_top_gradient and len(units) == net.depth + 1:
            return DeliverCredit.apply(credits_of, *units)  # type: ignore[no-any-return, no-untyped-call]
        return units[-1].detach()

    units, branches, output_NC = net.run(x, hand_on)
    states = [unit.detach() for unit in units]
    value = loss.mean(output_NC, y)
    objective = _objective(value, rule, branches, net.lead)
    if rule.reads_top_gradient:
        objective.backward()  # type: ignore[no-untyped-call]
        signal = signals[0]
    else:
        signal = signal_of(None)
        credits = delivered(rule, rule.credits(state, signal), samples, net.lead)
        roots = [(objective, None), *zip(units, credits, strict=True)]
        roots = [(root, a) for root, a in roots if root.requires_grad]
        torch.autograd.backward([root for root, _ in roots], [a for _, a in roots])
    return Step(value.detach(), output_NC.detach(), rule.update(state, signal))


def _states(net: Network, rule: Rule, state: RuleState, x: Tensor, y: Tensor, loss: Loss) -> Step:
    """The graph is cut between units; each unit gets the gradient of ⟨its output at h̃, â⟩/N for pairs (h̃, a).

    The pairs of a unit share one divisor: with `credit_scale: rms` that of the sum of their credits.  A pair of the
    readout is divided by N; without any, the readout gets the exact gradient of the loss at h_L.
    """
    samples, rerun = len(x), Rerun(net, x)
    rerun.start = global_state(x.device) if net.draws else None
    leaves: list[Tensor] = []
    passed = net.run(x, partial(_cut, leaves, rerun))
    value = loss.mean(passed.output, y)
    top = None
    if rule.reads_top_gradient:
        (mean_gradient,) = torch.autograd.grad(value, leaves[-1], retain_graph=True)
        top = mean_gradient * samples
    states = [unit.detach() for unit in passed.states]
    units = _evaluations(passed.states, [x, *leaves[:-1]])
    signal = signal_on(rerun, states, passed.output.detach(), y, loss, top, passed=units)
    pairs = rule.pairs(state, signal)
    divisors = [*(_divisor(a, rule.credit_scale, samples) for a in summed(pairs, states)), samples]
    learned = value if all(unit.layer <= net.depth for unit, _ in pairs) else torch.zeros_like(value)
    objective = _objective(learned, rule, passed.branches, net.lead)
    given = [(unit.node, a / divisors[unit.layer]) for unit, a in pairs]
    roots = [(root, a) for root, a in [(objective, None), *given] if root.requires_grad]
    trained = [p for p in net.parameters() if p.requires_grad]
    torch.autograd.backward([root for root, _ in roots], [a for _, a in roots], inputs=trained)
    logs, output = rule.update(state, signal), passed.output.detach()
    if owns_prediction(rule):
        with rerun.whole(), torch.no_grad():
            output = rule.predict(net, x)
            value = loss.mean(output, y)
    return Step(value.detach(), output, logs)


def owns_prediction(rule: Rule) -> bool:
    """Whether the rule predicts in place of the network; a plugin rule need not say."""
    return getattr(rule, "owns_prediction", False)


def _cut(leaves: list[Tensor], rerun: "Rerun | None", states: list[Tensor]) -> Tensor:
    """Hand on a leaf in place of the state, so that the units are cut from each other but each has its derivative."""
    if rerun is not None:
        rerun.record()
    leaves.append(states[-1].detach().requires_grad_())
    return leaves[-1]


def _evaluations(nodes: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Evaluation]:
    return [Evaluation(layer, node, leaf) for layer, (node, leaf) in enumerate(zip(nodes, leaves, strict=True))]


def _objective(value: Tensor, rule: Rule, branches: list[Tensor], lead: int) -> Tensor:
    """The loss plus λ Σ_l mean_i ‖f_l(h_l)‖², summed over replicas; each token or position counts as a sample."""
    if rule.penalty:
        penalties = [f.square().sum(vector_axis(f, lead)).flatten(lead).mean(-1) for f in branches]
        value = value + rule.penalty * torch.stack(penalties).sum(0)
    return value.sum() if lead else value


def delivered(rule: Rule, credits: Sequence[Tensor], samples: int, lead: int) -> list[Tensor]:
    """The credit for each unit, embedding first: at its output or at its input, normalised, divided by N."""
    chosen = [credits[0], *credits[:-1]] if credit_at(rule) == "input" else credits
    return [scaled(a, rule.credit_scale, samples, lead) for a in chosen]


def credit_at(rule: Rule) -> CreditAt:
    """The rule's `credit_at`; a plugin rule need not define it."""
    return getattr(rule, "credit_at", "output")


def scaled(a: Tensor, credit_scale: CreditScale, samples: int = 1, lead: int = 0) -> Tensor:
    """â/N with â = a / (RMS(a) + 1e-6), RMS over a whole replica; or a/N.  Always a new tensor."""
    return a / _divisor(a, credit_scale, samples, lead)


def _divisor(a: Tensor, credit_scale: CreditScale, samples: int, lead: int = 0) -> Tensor | int:
    """N·(RMS(a) + 1e-6), or N."""
    return samples if credit_scale == "none" else _scaled_rms(a, samples, lead).add_(1e-6 * samples)


def _scaled_rms(a: Tensor, samples: int, lead: int) -> Tensor:
    """RMS(a)·N of every replica."""
    norm: Tensor = torch.linalg.vector_norm(a, dim=tuple(range(lead, a.ndim)), keepdim=True)
    return norm.mul_(samples / math.sqrt(math.prod(a.shape[lead:])))


class Rerun:
    """Runs units of a network again on the same batch, with the same random numbers and without side effects."""

    def __init__(self, net: Network, x: Tensor) -> None:
        self.net, self.x = net, x
        self.rng_states: list[Tensor] = []  # before each unit, and before the readout
        self.start: Tensor | None = None  # before the embedding

    @cached_property
    def matrices(self) -> list[dict[str, nn.Parameter]]:
        """The weight matrices of every unit; finding them takes 40 µs."""
        return self.net.matrices()

    def record(self) -> None:
        """Record the state of the generator; called when a state is handed on."""
        if self.net.draws:
            self.rng_states.append(global_state(self.x.device))

    def __call__(self, layer: int) -> AbstractContextManager[None]:
        """A context in which unit l runs as it did the first time."""
        if not self.net.traces:
            return nullcontext()
        return without_side_effects(self.net, self.rng_states[layer] if self.rng_states else None, self.x.device)

    def whole(self) -> AbstractContextManager[None]:
        """A context in which the whole network runs with the random numbers of the first time."""
        return without_side_effects(self.net, self.start, self.x.device) if self.net.traces else nullcontext()


def signal_on(
    rerun: Rerun,
    states: list[Tensor],
    output_NC: Tensor,
    y: Tensor,
    loss: Loss,
    top_gradient: Tensor | None = None,
    gradients: Callable[[], Sequence[Tensor]] | None = None,
    passed: Sequence[Evaluation] = (),
) -> Signal:
    """The signal that a rule sees of a batch: states, output, loss, and functions of the network."""
    net, x, top = rerun.net, rerun.x, len(states) - 1

    def readout(h: Tensor) -> Tensor:
        with rerun(top):
            return net.tail(h, top, x).output

    def exact() -> list[Tensor]:
        with rerun(0):
            return exact_gradients(net, states, y, loss, x)

    return Signal(
        states=states,
        output_NC=output_NC,
        y=y,
        loss=loss,
        readout=readout,
        gradients=gradients or exact,
        vjp=partial(_vjp, rerun, states),
        jvp=partial(_jvp, rerun, states),
        top_from=partial(_top_from, rerun),
        units=lambda: _detached(rerun.matrices),
        gradients_of_units=lambda: _gradients(rerun.matrices),
        pooling=net.pooling or FLAT,
        top_gradient=top_gradient,
        x=x,
        passed=passed,
        unit=partial(_unit_at, rerun),
        run=partial(_run_on, rerun),
    )


def exact_gradients(
    net: Network, states: Sequence[Tensor], y: Tensor, loss: Loss, x: Tensor | None = None
) -> list[Tensor]:
    """g_0 … g_L per sample; runs the blocks again from h_0."""
    with torch.enable_grad():
        passed = net.tail(states[0].detach().requires_grad_(), 0, x)
        return list(torch.autograd.grad(loss.per_sample(passed.output, y).sum(), passed.states))


def _unit_at(rerun: Rerun, layer: int, h: Tensor) -> Evaluation:
    """Unit l at another state."""
    leaf = h.detach().requires_grad_()
    with rerun(layer), torch.enable_grad():
        return Evaluation(layer + 1, rerun.net.advance(leaf, layer, rerun.x), leaf)


def _run_on(rerun: Rerun, x: Tensor, linear: bool) -> list[Evaluation]:
    """Embedding, units and readout on other inputs; with `linear`, up to the linear map of each."""
    leaves: list[Tensor] = []
    with rerun.whole(), torch.enable_grad(), _linear_outputs(rerun.net, linear) as maps:
        passed = rerun.net.run(x, partial(_cut, leaves, None), raw=True)
    return _evaluations([maps.get(layer, h) for layer, h in enumerate(passed.states)] + [passed.output], [x, *leaves])


@contextmanager
def _linear_outputs(net: Network, wanted: bool) -> Iterator[dict[int, Tensor]]:
    """What the only linear map of the embedding and of each block returns, by the number of the state."""
    found: dict[int, Tensor] = {}
    handles = []
    for layer, unit in enumerate([net.embed, *net.blocks] if wanted else []):

        def keep(_module: nn.Module, _inputs: object, out: Tensor, layer: int = layer) -> None:
            found[layer] = out

        for module in unit.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                handles.append(module.register_forward_hook(keep))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _vjp(rerun: Rerun, states: Sequence[Tensor], layer: int, a: Tensor, weights: Matrix) -> Tensor:
    """aᵀ ∂h_{l+1}/∂h_l of unit l, with `weights` in place of its matrices."""
    net = rerun.net
    unit = rerun.matrices[layer] if weights else {}
    used = {name: v for name, v in weights.items() if name in unit}
    with rerun(layer), torch.enable_grad():
        h = states[layer].detach().requires_grad_()
        with weights_in_backward(unit, used):
            above = net.advance(h, layer, rerun.x)
        (below,) = torch.autograd.grad(above, h, a, materialize_grads=True)
    return below


def _jvp(rerun: Rerun, states: Sequence[Tensor], directions: Sequence[Tensor]) -> Tensor:
    """Σ_l (∂z/∂h_l) v_l; runs the blocks again from h_0."""
    with rerun(0):
        return output_tangent(lambda join: rerun.net.tail(states[0], 0, rerun.x, join).output, directions)


def _top_from(rerun: Rerun, layer: int, h: Tensor) -> Tensor:
    """h_L computed from another h_l."""
    with rerun(layer), torch.no_grad():
        return rerun.net.tail(h, layer, rerun.x).states[-1]


def _detached(units: list[dict[str, nn.Parameter]]) -> list[Matrix]:
    return [{name: p.detach() for name, p in unit.items()} for unit in units]


def _gradients(units: list[dict[str, nn.Parameter]]) -> list[Matrix]:
    return [{name: p.grad for name, p in unit.items() if p.grad is not None} for unit in units]


class DeliverCredit(torch.autograd.Function):
    """Passes h_L to the readout; in the backward pass, gives every unit the credit that the rule names.

    The rule is called inside autograd's backward, where g_L is known and the blocks are still to come.  So one call of
    the engine serves readout and blocks.  Without this node g_L would take a call of its own, and the graph of the
    readout would have to be kept for a second one.
    """

    @staticmethod
    def forward(ctx: Any, credits_of: Callable[[Tensor], list[Tensor]], *units: Tensor) -> Tensor:
        ctx.credits_of = credits_of
        return units[-1].view_as(units[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_gradient: Tensor) -> tuple[Any, ...]:
        credits_of, ctx.credits_of = ctx.credits_of, None  # breaks the cycle closure → output → graph → this node
        return None, *credits_of(mean_gradient)


def _normalise_gradient_at(h: Tensor, credit_scale: CreditScale, samples: int, lead: int) -> Tensor:
    """Normalise the gradient that comes back at h; return h.  A hook costs less than a node of the graph."""
    if credit_scale == "rms" and h.requires_grad:
        h.register_hook(lambda g: g / _scaled_rms(g, samples, lead).add_(1e-6))  # type: ignore[no-untyped-call]
    return h
