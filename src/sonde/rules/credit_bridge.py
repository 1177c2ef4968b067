"""Credit Bridge: learn to predict the loss from a state; credit is the gradient of the prediction.

N samples, d width, C outputs, K noisy copies, L blocks.
"""

import copy
import math
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.rules.bridge import HIDDEN_WIDTH, BridgeRows, InputNorm, build_bridge, normalised
from sonde.rules.dfa import direct_feedback, send
from sonde.rules.rule import CreditScale, Facts, LocalRule, Signal
from sonde.rules.states import Learner, Matrices, StoredState, normal_like, seeded

_ROWS = 1024  # in one pass of V̄, so that activations stay in the cache


class ValueState(StoredState):
    """V with its optimiser and moving average, the noise of its targets, and DFA's matrices for the warm-up."""

    parts: ClassVar = {
        "learner": "value",
        "average": "average",
        "noise": "noise",
        "feedback": "feedback",
        "steps": "steps",
    }

    def __init__(
        self, learner: Learner, average: nn.Module, noise: torch.Generator, feedback: Matrices, warmup: int
    ) -> None:
        self.learner, self.average, self.noise, self.feedback = learner, average, noise, feedback
        self.warmup = warmup  # steps driven by DFA
        self.steps = 0

    @property
    def warming_up(self) -> bool:
        return self.steps < self.warmup

    def catch_up(self, trained: "ValueState") -> None:
        self.steps = trained.steps


@final
@validated
class CreditBridge(LocalRule):
    """A network V predicts the loss from each state; credit is its gradient: a_l = ∇_h V(h_l, t_l, e).

    V minimises three terms, each logged:  consistency  V(h_l) ≈ −λ log mean_K exp(−V̄(h_{l+1} + σ·noise)/λ), with V̄
    the moving average of V;  terminal value  V(h_L) ≈ ℓ_i;  terminal gradient  ∇_h V(h_L) ≈ g_L, relative to RMS(g_L).
    V has three hidden layers of 256.  In the first `warmup` of the steps, while V learns, DFA trains the blocks, or,
    with `warmup_by: nothing`, they get no credit (weight decay still acts).  With `input_norm: layer` V reads
    LayerNorm(h), and the noise is added after it.

    With default settings the rule collapses (docs/credit-bridge.md).  V can compute the loss from e alone, so below
    h_L no term trains its gradient.  `perturb` = σ > 0 trains it: in place of consistency,
    V(h_l + δ) − V(h_l) ≈ ℓ(h_l + δ) − ℓ(h_l).  δ is normal with σ times the root mean square of h_l; ℓ(h_l + δ) comes
    from a forward pass through the blocks above; errors are relative to the size of these differences at each layer.
    Then a_L = g_L.
    """

    input_norm: InputNorm = "layer"
    copies: Annotated[int, Ge(1)] = 8
    temperature: Annotated[float, Gt(0)] = 0.1
    noise: Annotated[float, Ge(0)] = 0.1
    average: Annotated[float, Ge(0), Lt(1)] = 0.995
    warmup: Annotated[float, Ge(0), Le(1)] = 0.2
    warmup_by: Literal["dfa", "nothing"] = "dfa"
    perturb: Annotated[float, Ge(0)] = 0.0
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "Credit Bridge"
    needs: ClassVar[str] = "the output error, the loss and the top gradient; a network that predicts the loss"

    def init(self, facts: Facts, rng: torch.Generator) -> ValueState:
        net = build_bridge([_width(facts)], 1 + math.prod(facts.output_shape), [HIDDEN_WIDTH] * 3, 1, facts, rng)
        noise = seeded(rng)
        feedback = direct_feedback(facts, rng)
        average = copy.deepcopy(net).requires_grad_(False)
        return ValueState(Learner(net), average, noise, feedback, math.ceil(self.warmup * facts.steps))

    def credits(self, state: ValueState, signal: Signal) -> list[Tensor]:
        if state.warming_up and self.warmup_by == "nothing":
            return [torch.zeros_like(h) for h in signal.states]
        if state.warming_up:
            return send(signal.error, state.feedback.matrices, signal.states)
        with torch.enable_grad():
            rows = self._rows(signal)
            credits = rows.credit(rows.through(state.learner.net).sum())
        return [*credits[:-1], signal.top_gradient] if self.perturb else credits

    def update(self, state: ValueState, signal: Signal) -> dict[str, Tensor]:
        rows = self._rows(signal)
        (h_lNd,), t_lN1, s_lNC = rows.leaves, rows.t_lN1, rows.s_lNS
        g_Nd = signal.reader.credit(signal.top_gradient)
        below_lNd, top_1Nd = normalised(h_lNd[:-1], self.input_norm), h_lNd[-1:].requires_grad_()
        net = state.learner.net
        terminal_1N1 = net(normalised(top_1Nd, self.input_norm), t_lN1[-1:], s_lNC[-1:])
        (slope_1Nd,) = torch.autograd.grad(terminal_1N1.sum(), top_1Nd, create_graph=True)
        scale = g_Nd.square().mean().sqrt().clamp_min(torch.finfo(g_Nd.dtype).tiny)
        losses_N = signal.loss.per_sample(signal.output_NC, signal.y)
        value_lN1 = net(below_lNd, t_lN1[:-1], s_lNC[:-1])
        if self.perturb:
            moved_lNd, change_lN1 = self._perturbed(state, signal, losses_N)
            moved_lN1 = net(moved_lNd, t_lN1[:-1], s_lNC[:-1])
            size_l11 = change_lN1.square().mean((1, 2), keepdim=True).sqrt()
            size_l11 = size_l11.clamp_min(torch.finfo(g_Nd.dtype).tiny ** 0.5)
            below = {"credit_change": ((moved_lN1 - value_lN1 - change_lN1) / size_l11).square().mean()}
        else:
            ahead_lN1 = self._ahead(state, h_lNd, t_lN1, s_lNC)
            below = {"credit_consistency": (value_lN1 - ahead_lN1).square().mean()}
        terms = {
            **below,
            "credit_terminal_value": (terminal_1N1[0, :, 0] - losses_N).square().mean(),
            "credit_terminal_gradient": ((slope_1Nd[0] - g_Nd) / scale).square().mean(),
        }
        state.learner.descend(torch.stack(list(terms.values())).sum())
        with torch.no_grad():
            torch._foreach_lerp_(list(state.average.parameters()), list(net.parameters()), 1 - self.average)
        state.steps += 1
        return {name: term.detach() for name, term in terms.items()}

    def _rows(self, signal: Signal) -> BridgeRows:
        depth = len(signal.states) - 1
        return BridgeRows(signal.states, depth, signal.error_NC, signal.reader, self.input_norm)

    @torch.no_grad()
    def _perturbed(self, state: ValueState, signal: Signal, losses_N: Tensor) -> tuple[Tensor, Tensor]:
        """Move every state below the top at random; return what V reads there and the change of the loss."""
        rows, changes = [], []
        for layer, noise in enumerate(normal_like(signal.states[:-1], state.noise)):
            h = signal.states[layer]
            size = h.flatten(1).square().mean(-1).sqrt().view(-1, *[1] * (h.ndim - 1))
            moved = h + self.perturb * size * noise
            output = signal.readout(signal.top_from(layer, moved))
            changes.append(signal.loss.per_sample(output, signal.y) - losses_N)
            rows.append(normalised(signal.reader.read(moved), self.input_norm))
        return torch.stack(rows), torch.stack(changes)[..., None]

    @torch.no_grad()
    def _ahead(self, state: ValueState, h_lNd: Tensor, t_lN1: Tensor, s_lNC: Tensor) -> Tensor:
        """Soft-min over noisy copies of the averaged value one block ahead."""
        next_lNd = normalised(h_lNd[1:].detach(), self.input_norm)
        noise = torch.randn(self.copies, *next_lNd.shape, generator=state.noise, dtype=torch.float32)
        copies_KlNd = noise.to(next_lNd.device, next_lNd.dtype).mul_(self.noise).add_(next_lNd)
        parts = torch.split(copies_KlNd, max(1, _ROWS // t_lN1[1:].numel()))
        value_KlN1 = torch.cat(
            [
                state.average(part, *(more[1:].expand(len(part), -1, -1, -1) for more in (t_lN1, s_lNC)))
                for part in parts
            ]
        )
        mean = torch.logsumexp(-value_KlN1 / self.temperature, 0) - math.log(self.copies)
        return -self.temperature * mean


def _width(facts: Facts) -> int:
    """The width of what V reads; all states must have one shape, because one V reads them all."""
    for name, below, above in facts.transitions:
        if below != above:
            before, after = ("×".join(map(str, shape)) for shape in (below, above))
            raise SondeError(
                f"credit_bridge needs states of one shape, but {name} makes {after} of {before}: use state_bridge, dfa "
                f"or a rule of layers"
            )
    return facts.reader.width(facts.shapes[0])
