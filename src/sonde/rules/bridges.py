"""State Bridge and Credit Bridge, and the small network of both; it reads (h_l, t_l, s).

State Bridge predicts the last state from each state and differentiates the loss of the prediction.
Credit Bridge learns to predict the loss from a state; credit is the gradient of the prediction.

N rows or samples, d width, C outputs, S side information, K noisy copies, L blocks.
"""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.network import Pooling
from sonde.rules.dfa import direct_feedback, send
from sonde.rules.rule import CreditScale, Facts, LocalRule, Signal
from sonde.rules.states import Learner, Matrices, StoredState, default_weights, normal_like, seeded

InputNorm = Literal["layer", "none"]
HIDDEN_WIDTH = 256


class BridgeNet(nn.Module):
    """An MLP with GELU on the concatenation of a state, its depth t = l/L and the side information s.

    States of one width share all layers.  If widths differ, each state has a separate first layer.
    """

    def __init__(self, widths: Sequence[int], more: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        shared = [widths[0] + more] if _alike(widths) else []
        self.entries = nn.ModuleList(nn.Linear(d + more, hidden[0]) for d in widths if not shared)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise([*shared, *hidden, outputs]))

    def forward(self, h: Tensor | Sequence[Tensor], t_lN1: Tensor, s_lNS: Tensor) -> Tensor:
        """Take the states of layers 0, 1, … stacked in one tensor, or as a sequence if their widths differ."""
        if isinstance(h, Tensor):
            x = torch.cat([h, t_lN1, s_lNS], dim=-1)
        else:
            parts = [torch.cat(part, dim=-1) for part in zip(h, t_lN1, s_lNS, strict=True)]
            first = zip(self.entries, parts, strict=False)
            x = F.gelu(torch.stack([entry(part) for entry, part in first]))
        in_place = not torch.is_grad_enabled()  # no backward pass follows
        gelu = torch.ops.aten.gelu_ if in_place else F.gelu
        for layer in self.layers[:-1]:
            x = gelu(layer(x))
        out: Tensor = self.layers[-1](x)
        return out


def _alike(widths: Sequence[int]) -> bool:
    return len(set(widths)) == 1


def build_bridge(
    widths: Sequence[int], more: int, hidden: Sequence[int], outputs: int, facts: Facts, rng: torch.Generator
) -> nn.Module:
    """A bridge with PyTorch's default weights, drawn from the rule's own generator."""
    return default_weights(BridgeNet, widths, more, hidden, outputs, rng=rng).to(facts.device, facts.dtype)


def widths_of(facts: Facts) -> list[int]:
    """How many numbers the bridge reads of each state."""
    return [facts.pooling.width(shape) for shape in facts.shapes]


def _normalised(h_Nd: Tensor, input_norm: InputNorm) -> Tensor:
    return F.layer_norm(h_Nd, h_Nd.shape[-1:]) if input_norm == "layer" else h_Nd


class BridgeRows:
    """The input of the bridge: what is read of layers 0, 1, …, with t = l/L and the side information.

    States of one width are stacked, so that their gradient is one tensor.
    """

    def __init__(
        self, states: Sequence[Tensor], depth: int, s_NS: Tensor, pooling: Pooling, input_norm: InputNorm
    ) -> None:
        self.states, self.pooling, self.input_norm = states, pooling, input_norm
        read = [pooling.read(h).detach() for h in states]
        self.together = _alike([h.shape[-1] for h in read])
        self.leaves = [torch.stack(read)] if self.together else read
        layers, samples = len(read), len(read[0])
        t_l = torch.arange(layers, device=s_NS.device, dtype=s_NS.dtype) / depth
        self.t_lN1 = t_l.view(-1, 1, 1).expand(layers, samples, 1)
        self.s_lNS = s_NS.expand(layers, *s_NS.shape)

    def through(self, net: nn.Module) -> Tensor:
        """The network's output for each row, layers first."""
        seen = [_normalised(h.requires_grad_(), self.input_norm) for h in self.leaves]
        out: Tensor = net(seen[0] if self.together else seen, self.t_lN1, self.s_lNS)
        return out

    def credit(self, total: Tensor, *, keep: bool = False) -> list[Tensor]:
        """The gradient of `total` at every state, in the state's shape."""
        found = torch.autograd.grad(total, self.leaves, retain_graph=keep)
        by_layer = found[0] if self.together else found
        return [self.pooling.spread(a_Nd, h) for a_Nd, h in zip(by_layer, self.states, strict=True)]


class Predictor(StoredState):
    """G with its optimiser and the number of steps; between `credits` and `update` also the prediction."""

    parts: ClassVar = {"learner": "", "steps": "steps"}

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.prediction_lNd: Tensor | None = None
        self.steps = 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({"steps": 0, **state})  # states of 0.1.0 have no steps


@final
@validated
class StateBridge(LocalRule):
    """A network G predicts the last state; credit is the gradient of the loss of its prediction.

    a_l = ∇_{h_l} ℓ(readout(G(h_l, t_l, s)), y),  a_L = g_L;  t_l = l/L, and s is the output error e, or g_L.
    G has `hidden_layers` hidden layers of width `hidden`.  Every `every` steps it is trained on the states of the
    batch, with the loss ‖G − h_L‖²/‖h_L‖² averaged over samples and layers, logged as `state_pred_error`.  States of
    different widths have separate first layers.
    With `input_norm: layer` G reads LayerNorm(h_l) and predicts LayerNorm(h_L).  For tokens and maps G reads and
    predicts what the network's pooling reads; the rest of h_L stays as it is.
    Exact limit: on a linear network, with G the map from h_l to h_L, it is backprop.
    """

    input_norm: InputNorm = "layer"
    side: Literal["error", "top_gradient"] = "error"
    hidden: Annotated[int, Ge(1)] = HIDDEN_WIDTH
    hidden_layers: Annotated[int, Ge(1)] = 2
    every: Annotated[int, Ge(1)] = 1
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "State Bridge"
    needs: ClassVar[str] = "the output error and the readout; a network that predicts h_L"

    def init(self, facts: Facts, rng: torch.Generator) -> Predictor:
        widths = widths_of(facts)
        more = 1 + (math.prod(facts.output_shape) if self.side == "error" else widths[-1])
        return Predictor(
            Learner(build_bridge(widths[:-1], more, [self.hidden] * self.hidden_layers, widths[-1], facts, rng))
        )

    def credits(self, state: Predictor, signal: Signal) -> list[Tensor]:
        below, top, pooling = signal.states[:-1], signal.states[-1], signal.pooling
        with torch.enable_grad():
            rows = BridgeRows(below, len(below), self._side(signal), pooling, self.input_norm)
            state.prediction_lNd = rows.through(state.learner.net)
            output = signal.readout(pooling.replaced(top, state.prediction_lNd).flatten(0, 1))
            y = signal.y.repeat(len(below), *[1] * (signal.y.ndim - 1))
            credits = rows.credit(signal.loss.per_sample(output, y).sum(), keep=True)
        return [*credits, signal.top_gradient]

    def update(self, state: Predictor, signal: Signal) -> dict[str, Tensor]:
        target_Nd = _normalised(signal.pooling.read(signal.states[-1]), self.input_norm)
        scale_N = target_Nd.square().sum(-1).clamp_min(torch.finfo(target_Nd.dtype).tiny)
        assert state.prediction_lNd is not None, "credits comes before update"
        error = ((state.prediction_lNd - target_Nd).square().sum(-1) / scale_N).mean()
        if state.steps % self.every == 0:
            state.learner.descend(error)
        state.steps += 1
        state.prediction_lNd = None
        return {"state_pred_error": error.detach()}

    def _side(self, signal: Signal) -> Tensor:
        return signal.error_NC if self.side == "error" else signal.pooling.credit(signal.top_gradient)


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
        """Whether DFA's matrices still give the credit."""
        return self.steps < self.warmup

    def catch_up(self, trained: "ValueState") -> None:
        self.steps = trained.steps


@final
@validated
class CreditBridge(LocalRule):
    """A network V predicts the loss from each state; credit is its gradient: a_l = ∇_h V(h_l, t_l, e).

    V minimises three terms, each logged.  Consistency:  V(h_l) ≈ −λ log mean_K exp(−V̄(h_{l+1} + σ·noise)/λ), where
    V̄ is the moving average of V's weights.  Terminal value:  V(h_L) ≈ ℓ_i.  Terminal gradient:  ∇_h V(h_L) ≈ g_L,
    relative to RMS(g_L).
    V has three hidden layers of 256.  In the first `warmup` of the steps, while V learns, DFA trains the blocks, or,
    with `warmup_by: nothing`, they get no credit (weight decay still acts).  With `input_norm: layer` V reads
    LayerNorm(h), and the noise is added after it.

    With default settings the rule collapses (docs/credit-bridge.md).  V can compute the loss from e alone, so below
    h_L no term trains its gradient.  `perturb` = σ > 0 trains it: in place of consistency,
    V(h_l + δ) − V(h_l) ≈ ℓ(h_l + δ) − ℓ(h_l).  δ is normal with σ times the root mean square of h_l.  ℓ(h_l + δ) comes
    from a forward pass through the blocks above.  Errors are relative to the size of these differences at each layer.
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
        g_Nd = signal.pooling.credit(signal.top_gradient)
        below_lNd, top_1Nd = _normalised(h_lNd[:-1], self.input_norm), h_lNd[-1:].requires_grad_()
        net = state.learner.net
        terminal_1N1 = net(_normalised(top_1Nd, self.input_norm), t_lN1[-1:], s_lNC[-1:])
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
        return BridgeRows(signal.states, depth, signal.error_NC, signal.pooling, self.input_norm)

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
            rows.append(_normalised(signal.pooling.read(moved), self.input_norm))
        return torch.stack(rows), torch.stack(changes)[..., None]

    @torch.no_grad()
    def _ahead(self, state: ValueState, h_lNd: Tensor, t_lN1: Tensor, s_lNC: Tensor) -> Tensor:
        """Soft-min over noisy copies of the averaged value one block ahead."""
        next_lNd = _normalised(h_lNd[1:].detach(), self.input_norm)
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
    return facts.pooling.width(facts.shapes[0])
