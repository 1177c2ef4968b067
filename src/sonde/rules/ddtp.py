"""Direct difference target propagation, linear.  N samples, D numbers read of a state."""

from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Facts, LocalRule, Signal
from sonde.rules.states import Learner, StoredState, seeded


class Inverses(StoredState):
    """Q_l with their optimisers, the generator of the noise, and the number of steps."""

    parts: ClassVar = {"learners": "learners", "rng": "rng", "steps": "steps"}

    def __init__(self, learners: list[Learner], rng: torch.Generator) -> None:
        self.learners, self.rng, self.steps = learners, rng, 0

    def catch_up(self, trained: "Inverses") -> None:
        self.steps = trained.steps


@final
@validated
class DirectTargets(LocalRule):
    """Propagate a target of the last state to every other state by learned inverse mappings.

    Meulemans et al. (2020), arXiv:2006.14331, DDTP-linear:  the target of h_L is ĥ_L = h_L − `step`·g_L, that of h_l
    is h_l + Q_l(ĥ_L − h_L);  a_l = h_l − target.  Q_l learns to invert f, the map from h_l to h_L: Adam 1e-3 on
    ‖Q_l (f(h_l + σε) − f(h_l)) − σε‖² with σ = `noise` times the size of h_l and ε normal.  One Q_l is trained at each
    step, in turn.  For tokens and maps, Q_l maps what the network's pooling reads.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).  The target is set at h_L, not at the
    output.  Q_l is not trained before the network, and the last block learns from the exact gradient.
    Exact limit: on an invertible linear network, Q_l is the inverse of the map from h_l to h_L.
    """

    step: Annotated[float, Gt(0)] = 0.1
    noise: Annotated[float, Gt(0)] = 0.01
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "DDTP"
    needs: ClassVar[str] = "the top gradient; a matrix for each state that learns to invert; noise through the blocks"

    def init(self, facts: Facts, rng: torch.Generator) -> Inverses:
        widths = [facts.pooling.width(shape) for shape in facts.shapes]
        return Inverses([Learner(_linear(widths[-1], d, facts, rng)) for d in widths[:-1]], seeded(rng))

    def credits(self, state: Inverses, signal: Signal) -> list[Tensor]:
        pooling, below = signal.pooling, signal.states[:-1]
        with torch.no_grad():
            move_ND = self.step * pooling.credit(signal.top_gradient)
            credits = [
                pooling.spread(learner.net(move_ND), h) for learner, h in zip(state.learners, below, strict=True)
            ]
        return [*credits, self.step * signal.top_gradient]

    def update(self, state: Inverses, signal: Signal) -> dict[str, Tensor]:
        if not state.learners:
            return {}
        layer = state.steps % len(state.learners)
        state.steps += 1
        pooling, h, top = signal.pooling, signal.states[layer], signal.states[-1]
        read_ND = pooling.read(h)
        size = self.noise * read_ND.square().mean().sqrt()
        noise_ND = torch.randn(read_ND.shape, generator=state.rng).to(read_ND) * size
        moved = signal.top_from(layer, pooling.moved(h, noise_ND[None])[0])
        change_ND = pooling.read(moved) - pooling.read(top)
        undone_ND = state.learners[layer].net(change_ND / size.clamp_min(torch.finfo(size.dtype).tiny))
        error = (undone_ND - noise_ND / size.clamp_min(torch.finfo(size.dtype).tiny)).square().mean()
        state.learners[layer].descend(error)
        return {"ddtp_inverse_error": error.detach()}


def _linear(inputs: int, outputs: int, facts: Facts, rng: torch.Generator) -> nn.Linear:
    """Q_l, N(0, 1/inputs) at the start."""
    with torch.random.fork_rng(devices=[]):
        linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(linear.weight, std=inputs**-0.5, generator=rng)
    return linear.to(facts.device, facts.dtype)
