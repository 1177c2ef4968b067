"""Direct feedback: every state gets the output error, or the target, through its own matrix.

N samples, T tokens, C outputs, d width.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Facts, LocalRule, Rule, Signal
from sonde.rules.states import Learner, Matrices, StoredState, normal_like, seeded

LARGE_FEEDBACK = 2**30  # bytes of feedback matrices above which a warning is given


def direct_feedback(facts: Facts, rng: torch.Generator, *, per_channel: bool = False) -> Matrices:
    """Draw B_l ∈ R^{d×C} for every state, entries N(0, 1/C); for maps, d counts all numbers, or the channels."""
    scale = facts.outputs**-0.5
    widths = [_width(shape, per_channel) for shape in facts.shapes]
    size = sum(widths) * facts.outputs * torch.finfo(facts.dtype).bits // 8
    if size >= LARGE_FEEDBACK:
        warnings.warn(
            f"the feedback matrices of dfa take {size / 2**30:.1f} GiB; of maps, per_channel=True takes less",
            stacklevel=2,
        )
    return Matrices(
        [(torch.randn(d, facts.outputs, generator=rng) * scale).to(facts.device, facts.dtype) for d in widths]
    )


def _width(shape: tuple[int, ...], per_channel: bool) -> int:
    if len(shape) == 3:
        return shape[0] if per_channel else math.prod(shape)
    return shape[-1]


def send(e: Tensor, matrices: Sequence[Tensor], states: Sequence[Tensor]) -> list[Tensor]:
    """Compute e B_lᵀ for every state; e has the shape of the output.

    All T tokens of a sample get the same credit, divided by √T; if every token has its own output, it gets its own.
    For a map, B_l has a row for every number, or one for every channel, whose positions share it, divided by
    √(number of positions).
    """
    credits = []
    for b_dC, h in zip(matrices, states, strict=True):
        b_dC = b_dC.to(e.dtype)
        a = _seen_from(e, b_dC, h) @ b_dC.mT
        if a.ndim == h.ndim:
            credits.append(a)
        elif h.ndim == 3:
            credits.append((a / h.shape[1] ** 0.5)[:, None].expand_as(h))
        elif len(b_dC) == h[0].numel():
            credits.append(a.view_as(h))
        else:
            credits.append((a / h[0, 0].numel() ** 0.5)[..., None, None].expand_as(h))
    return credits


def feedback_gradients(
    e: Tensor, matrices: Sequence[Tensor], vectors: Sequence[Tensor], *, over_tokens: bool = False
) -> list[Tensor]:
    """Compute mean_i v_l ⊗ e in the shape of B_l, the gradient of mean_i ⟨e B_lᵀ, v_l⟩; v_l has the shape of a state.

    If every token has an output, the products of a sample's tokens are summed, or averaged with `over_tokens`.
    """
    found = []
    for b_dC, v in zip(matrices, vectors, strict=True):
        seen, count = _seen_from(e, b_dC, v), len(e)
        if seen.ndim == v.ndim:
            v, seen = v.flatten(0, -2), seen.flatten(0, -2)
            count = len(v) if over_tokens else count
        elif v.ndim == 3:
            v = v.sum(1) / v.shape[1] ** 0.5
        elif len(b_dC) == v[0].numel():
            v = v.flatten(1)
        else:
            v = v.sum((2, 3)) / v[0, 0].numel() ** 0.5
        found.append((v.mT @ seen / count).to(b_dC.dtype))
    return found


def _seen_from(e: Tensor, b_dC: Tensor, h: Tensor) -> Tensor:
    """The error as h gets it: token by token if both have the same tokens, else flattened."""
    alike = e.shape[:-1] == h.shape[:-1] and e.shape[-1] == b_dC.shape[-1]
    return e if e.ndim == 2 or alike else e.flatten(1)


@final
@validated
class DirectFeedback(LocalRule):
    """Send the output error to every state through a fixed random matrix.

    Nøkland (2016), arXiv:1609.01596:  a_l = e B_lᵀ.  With `per_channel` the positions of a map share the credit of
    their channel, and B_l is smaller by their number.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: with one hidden layer and B equal to the head's weight it is backprop.
    """

    per_channel: bool = False
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "DFA"
    needs: ClassVar[str] = "the output error; a fixed matrix for each state"
    reads_top_gradient: ClassVar[bool] = False

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        return direct_feedback(facts, rng, per_channel=self.per_channel)

    def credits(self, state: Matrices, signal: Signal) -> list[Tensor]:
        return send(signal.error, state.matrices, signal.states)


@final
@validated
class TargetProjection(LocalRule):
    """Send the target instead of the error to every state, so blocks can learn before the output is known.

    Direct random target projection: Frenkel, Lefebvre & Bol (2021), arXiv:1909.01311:  a_l = −y B_lᵀ,
    B_l ~ N(0, 1/C); y is the one-hot label, or the target itself.  The sign is that of the error e = p − y of a class
    that is not predicted yet.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: if every output is zero it is DFA under the squared error, times C/2.
    """

    per_channel: bool = False
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "DRTP"
    needs: ClassVar[str] = "the label, before the output is known; a fixed matrix for each state"
    reads_top_gradient: ClassVar[bool] = False

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        return direct_feedback(facts, rng, per_channel=self.per_channel)

    def credits(self, state: Matrices, signal: Signal) -> list[Tensor]:
        return send(-signal.targets, state.matrices, signal.states)


@final
@validated
class DirectKolenPollack(LocalRule):
    """DFA whose matrices are trained like a linear head on their state.

    Webster, Choi & Ahn (2021), openreview.net/forum?id=zgGmAx9ZcY:  a_l = e B_lᵀ,
    B_l ← (1 − ηλ)B_l − η·mean_i h_l ⊗ e,  with η = `lr` and ηλ = `decay`.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).  B_l takes plain gradient steps, while
    the studies train the head with AdamW, so B_l need not converge to the head.
    Exact limit: at a state that a linear head reads, with the head's rate and decay, B − W_headᵀ shrinks by 1 − ηλ
    at every step.
    """

    lr: Annotated[float, Gt(0)] = 1e-2
    decay: Annotated[float, Ge(0), Le(1)] = 1e-3
    per_channel: bool = False
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "DKP"
    needs: ClassVar[str] = "the output error; a matrix for each state, trained like a head"
    reads_top_gradient: ClassVar[bool] = False

    @property
    def chance(self) -> Rule:
        return DirectFeedback(per_channel=self.per_channel)

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        return direct_feedback(facts, rng, per_channel=self.per_channel)

    def credits(self, state: Matrices, signal: Signal) -> list[Tensor]:
        return send(signal.error, state.matrices, signal.states)

    def update(self, state: Matrices, signal: Signal) -> dict[str, Tensor]:
        steps = feedback_gradients(signal.error, state.matrices, signal.states)
        torch._foreach_mul_(state.matrices, 1 - self.decay)
        torch._foreach_add_(state.matrices, steps, alpha=-self.lr)
        return {}


class Estimates(StoredState):
    """B with its optimiser, and the generator of the random directions."""

    parts: ClassVar = {"learner": "", "rng": "rng"}

    def __init__(self, learner: Learner, rng: torch.Generator) -> None:
        self.learner, self.rng = learner, rng

    @property
    def matrices(self) -> list[Tensor]:
        """B_l of every state."""
        return [p.detach() for p in self.learner.net.parameters()]


@final
@validated
class ForwardDirectFeedback(LocalRule):
    """DFA whose matrices learn the mean Jacobian of the output, from one forward-mode pass at each step.

    Bacho & Chu (2024), arXiv:2212.07282:  v_l ~ N(0, 1) at every state changes the output by d = Σ_l (∂z/∂h_l) v_l.
    B_l starts at zero and descends, with Adam, along B_l − mean_i v_l ⊗ d.  The credit is a_l = e B_lᵀ.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: on a linear network the expectation of B_l is (∂z/∂h_l)ᵀ, and with this B_l it is backprop.
    """

    lr: Annotated[float, Gt(0)] = 1e-4
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "FDFA"
    needs: ClassVar[str] = "the output error; a matrix for each state; a forward-mode pass"
    reads_top_gradient: ClassVar[bool] = False
    chance: ClassVar[Rule] = DirectFeedback()

    def init(self, facts: Facts, rng: torch.Generator) -> Estimates:
        matrices = direct_feedback(facts, rng).matrices
        net = nn.ParameterList([nn.Parameter(torch.zeros_like(b)) for b in matrices])
        return Estimates(Learner(net, self.lr), seeded(rng))

    def credits(self, state: Estimates, signal: Signal) -> list[Tensor]:
        return send(signal.error, state.matrices, signal.states)

    def update(self, state: Estimates, signal: Signal) -> dict[str, Tensor]:
        directions = normal_like(signal.states, state.rng)
        seen = feedback_gradients(signal.jvp(directions), state.matrices, directions, over_tokens=True)
        state.learner.follow(torch._foreach_sub(state.matrices, seen))
        return {}
