"""Credit Bridge: learn the value of a state, and send its gradient.

N samples, d width, C outputs, K noisy copies, L blocks.
"""

import copy
import math
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.rules.bridge import HIDDEN, InputNorm, Rows, build, normalised
from sonde.rules.dfa import direct_feedback, send
from sonde.rules.learner import Learner
from sonde.rules.rule import CreditScale, Facts, LocalRule, Matrices, Route, Signal, normal_like

ROWS = 1024  # that V̄ reads together: what its layers hand on stays in the cache


class Value:
    """V with its optimiser and its moving average, the noise of its targets, and DFA's matrices for the warm-up."""

    def __init__(
        self, learner: Learner, average: nn.Module, noise: torch.Generator, feedback: Matrices, warmup: int
    ) -> None:
        self.learner, self.average, self.noise, self.feedback = learner, average, noise, feedback
        self.warmup = warmup  # steps driven by DFA
        self.steps = 0

    @property
    def warming_up(self) -> bool:
        return self.steps < self.warmup

    def state_dict(self) -> dict[str, Any]:
        return {
            "value": self.learner.state_dict(),
            "average": self.average.state_dict(),
            "noise": self.noise.get_state(),
            "feedback": self.feedback.state_dict(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["value"])
        self.average.load_state_dict(state["average"])
        self.noise.set_state(state["noise"])
        self.feedback.load_state_dict(state["feedback"])
        self.steps = state["steps"]

    def double(self, device: torch.device) -> "Value":
        average = copy.deepcopy(self.average).to(device).double()
        noise, feedback = self.noise.clone_state(), self.feedback.double(device)
        twin = Value(self.learner.double(device), average, noise, feedback, self.warmup)
        twin.steps = self.steps
        return twin

    def catch_up(self, trained: "Value") -> None:
        self.steps = trained.steps


@final
@validated
class CreditBridge(LocalRule):
    """V(h_l, t_l, e) learns the loss a state leads to;  a_l = ∇_h V(h_l, t_l, e).

    Three terms, each logged:  consistency  V(h_l) ≈ −λ log mean_K exp(−V̄(h_{l+1} + σ·noise)/λ),  V̄ the moving
    average of V;  terminal value  V(h_L) ≈ ℓ_i;  terminal gradient  ∇_h V(h_L) ≈ g_L, relative to RMS(g_L).
    V has three hidden layers of 256.  For the first `warmup` of the steps the blocks are driven by DFA while V
    learns, or, with `warmup_by: nothing`, get no credit (weight decay still acts).  With `input_norm: layer` V reads
    LayerNorm(h), and the noise is added after it.

    e tells the loss, so values along the way say nothing of how they change with h: below h_L the gradient of V is
    what V makes of states it was never asked about, and with these three terms the rule collapses
    (docs/credit-bridge.md).  With `perturb` = σ > 0 it is asked: in place of consistency,
    V(h_l + δ) − V(h_l) ≈ ℓ(h_l + δ) − ℓ(h_l),  δ normal with σ times the root mean square of h_l, ℓ(h_l + δ) from a
    forward pass through the blocks above; relative to the size of these differences at each layer.  Then a_L = g_L.
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
    route: ClassVar[Route] = "local"
    reads_top_gradient: ClassVar[bool] = True

    def init(self, facts: Facts, rng: torch.Generator) -> Value:
        net = build([width_of(facts)], 1 + math.prod(facts.output_shape), [HIDDEN] * 3, 1, facts, rng)
        noise = torch.Generator().manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
        feedback = direct_feedback(facts, rng)
        average = copy.deepcopy(net).requires_grad_(False)
        return Value(Learner(net), average, noise, feedback, math.ceil(self.warmup * facts.steps))

    def credits(self, state: Value, signal: Signal) -> list[Tensor]:
        if state.warming_up and self.warmup_by == "nothing":
            return [torch.zeros_like(h) for h in signal.states]
        if state.warming_up:
            return send(signal.error, state.feedback.matrices, signal.states)
        with torch.enable_grad():
            rows = self._rows(signal)
            credits = rows.credit(rows.through(state.learner.net).sum())
        return [*credits[:-1], signal.top_gradient] if self.perturb else credits

    def update(self, state: Value, signal: Signal) -> dict[str, Tensor]:
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

    def _rows(self, signal: Signal) -> Rows:
        depth = len(signal.states) - 1
        return Rows(signal.states, depth, signal.error_NC, signal.reader, self.input_norm)

    @torch.no_grad()
    def _perturbed(self, state: Value, signal: Signal, losses_N: Tensor) -> tuple[Tensor, Tensor]:
        """What V reads of every state below the top, moved at random; and by how much that changes the loss."""
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
    def _ahead(self, state: Value, h_lNd: Tensor, t_lN1: Tensor, s_lNC: Tensor) -> Tensor:
        """Soft-min over noisy copies of the averaged value one block ahead."""
        next_lNd = normalised(h_lNd[1:].detach(), self.input_norm)
        noise = torch.randn(self.copies, *next_lNd.shape, generator=state.noise, dtype=torch.float32)
        copies_KlNd = noise.to(next_lNd.device, next_lNd.dtype).mul_(self.noise).add_(next_lNd)
        parts = torch.split(copies_KlNd, max(1, ROWS // t_lN1[1:].numel()))
        value_KlN1 = torch.cat(
            [
                state.average(part, *(more[1:].expand(len(part), -1, -1, -1) for more in (t_lN1, s_lNC)))
                for part in parts
            ]
        )
        mean = torch.logsumexp(-value_KlN1 / self.temperature, 0) - math.log(self.copies)
        return -self.temperature * mean


def width_of(facts: Facts) -> int:
    """The one width of what is read of all states: the value ahead is that of the same network."""
    for name, below, above in facts.transitions:
        if below != above:
            before, after = ("×".join(map(str, shape)) for shape in (below, above))
            raise SondeError(
                f"credit_bridge needs states of one shape, but {name} makes {after} of {before}: use state_bridge, dfa "
                f"or a rule of layers"
            )
    return facts.reader.width(facts.shapes[0])
