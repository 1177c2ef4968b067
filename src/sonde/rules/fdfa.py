"""Forward direct feedback alignment.  N samples, C outputs, d width."""

from typing import Annotated, Any, ClassVar, final

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from sonde.core.validated import validated
from sonde.rules.dfa import DirectFeedback, direct_feedback, gather, send
from sonde.rules.learner import Learner
from sonde.rules.rule import CreditScale, Facts, LocalRule, Route, Rule, Signal, normal_like, seeded


class Estimates:
    """B, its optimiser, and the directions."""

    def __init__(self, learner: Learner, rng: torch.Generator) -> None:
        self.learner, self.rng = learner, rng

    @property
    def matrices(self) -> list[Tensor]:
        return [p.detach() for p in self.learner.net.parameters()]

    def state_dict(self) -> dict[str, Any]:
        return {**self.learner.state_dict(), "rng": self.rng.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.rng.set_state(state["rng"])

    def double(self, device: torch.device) -> "Estimates":
        return Estimates(self.learner.double(device), self.rng.clone_state())

    def catch_up(self, trained: "Estimates") -> None:
        pass


@final
@validated
class ForwardDirectFeedback(LocalRule):
    """DFA whose matrices learn the mean Jacobian of the output, from one forward-mode pass a step.

    Bacho & Chu (2024), arXiv:2212.07282:  v_l ~ N(0, 1) at every state changes the output by d = Σ_l (∂z/∂h_l) v_l;
    B_l descends, with Adam, along B_l − mean_i v_l ⊗ d, and starts at zero;  a_l = e B_lᵀ.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: on a linear network B_l is (∂z/∂h_l)ᵀ in expectation, and with that it is backprop.
    """

    lr: Annotated[float, Gt(0)] = 1e-4
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "FDFA"
    route: ClassVar[Route] = "local"
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
        seen = gather(signal.jvp(directions), state.matrices, directions, over_tokens=True)
        state.learner.follow(torch._foreach_sub(state.matrices, seen))
        return {}
