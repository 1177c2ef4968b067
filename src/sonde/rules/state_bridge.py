"""State Bridge: predict the last state from each state, and differentiate the loss of the prediction.

N samples, d width, C outputs, S side information, L blocks.
"""

import math
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor

from sonde.core.validated import validated
from sonde.rules.bridge import HIDDEN_WIDTH, BridgeRows, InputNorm, build_bridge, normalised, widths_of
from sonde.rules.rule import CreditScale, Facts, LocalRule, Signal
from sonde.rules.states import Learner, StoredState


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
        below, top, reader = signal.states[:-1], signal.states[-1], signal.reader
        with torch.enable_grad():
            rows = BridgeRows(below, len(below), self._side(signal), reader, self.input_norm)
            state.prediction_lNd = rows.through(state.learner.net)
            output = signal.readout(reader.replaced(top, state.prediction_lNd).flatten(0, 1))
            y = signal.y.repeat(len(below), *[1] * (signal.y.ndim - 1))
            credits = rows.credit(signal.loss.per_sample(output, y).sum(), keep=True)
        return [*credits, signal.top_gradient]

    def update(self, state: Predictor, signal: Signal) -> dict[str, Tensor]:
        target_Nd = normalised(signal.reader.read(signal.states[-1]), self.input_norm)
        scale_N = target_Nd.square().sum(-1).clamp_min(torch.finfo(target_Nd.dtype).tiny)
        assert state.prediction_lNd is not None, "credits comes before update"
        error = ((state.prediction_lNd - target_Nd).square().sum(-1) / scale_N).mean()
        if state.steps % self.every == 0:
            state.learner.descend(error)
        state.steps += 1
        state.prediction_lNd = None
        return {"state_pred_error": error.detach()}

    def _side(self, signal: Signal) -> Tensor:
        return signal.error_NC if self.side == "error" else signal.reader.credit(signal.top_gradient)
