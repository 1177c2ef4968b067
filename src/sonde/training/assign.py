"""A rule at work on a network: the state it owns, and the gradients it assigns."""

from typing import Any

import torch
from torch import Tensor, nn

from sonde.generators import generator
from sonde.losses import CROSS_ENTROPY, Loss
from sonde.network import Network
from sonde.probes import Redrawn, Snapshot
from sonde.rules import Facts, Nothing, Rule, RuleState, Signal
from sonde.training.step import Step, backward


class CreditAssignment:
    """Use a learning rule in a loop of one's own:

        assignment = CreditAssignment(net, DirectFeedback(), sample=x)
        for x, y in loader:
            optimiser.zero_grad()
            assignment.backward(x, y)        # instead of loss.backward()
            optimiser.step()

    `net` has `embed`, `blocks` and `readout`; where it also says `residual = True`, blocks return what they add to
    the state, otherwise they return the next state.  `steps` is the length of the training, which a rule with a
    warm-up needs to know.
    """

    def __init__(
        self,
        net: nn.Module,
        rule: Rule,
        *,
        sample: Tensor,
        loss: Loss = CROSS_ENTROPY,
        steps: int = 1,
        seed: int = 0,
    ) -> None:
        self.net = net if isinstance(net, Network) else Network.of(net)
        self.rule, self.loss = rule, loss
        with torch.no_grad():
            states, output_NC = self.net.states(sample[:1])
        self.facts = Facts(
            shapes=[tuple(h.shape[1:]) for h in states],
            outputs=output_NC.shape[-1],
            steps=steps,
            device=output_NC.device,
            dtype=output_NC.dtype,
        )
        self.state = rule.init(self.facts, generator(seed, "rule"))

    def backward(self, x: Tensor, y: Tensor) -> Step:
        """Fill the gradient of every parameter the rule trains; return the mean loss, the output and the logs."""
        return backward(self.net, self.rule, self.state, x, y, self.loss)

    def credits(self, snapshot: Snapshot) -> list[Tensor]:
        """a_0 … a_L of the probe batch in float64, from a copy of the state that trains the network."""
        return self._credits(self.state, snapshot)

    @property
    def redrawn(self) -> Redrawn | None:
        """The credits of the same rule at the same step, had it drawn its matrices or networks anew.

        None for a rule that owns nothing: there is nothing to draw.
        """
        if isinstance(self.state, Nothing):
            return None

        def credits(snapshot: Snapshot, rng: torch.Generator) -> list[Tensor]:
            fresh = self.rule.init(self.facts, rng)
            fresh.catch_up(self.state)
            return self._credits(fresh, snapshot)

        return credits

    def _credits(self, state: RuleState, snapshot: Snapshot) -> list[Tensor]:
        signal = Signal(
            states=snapshot.states,
            output_NC=snapshot.output_NC,
            y=snapshot.y,
            loss=snapshot.loss,
            readout=snapshot.net.readout,
            gradients=lambda: snapshot.gradients,
        )
        return self.rule.credits(state.double(snapshot.output_NC.device), signal)

    def state_dict(self) -> dict[str, Any]:
        return self.state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.load_state_dict(state)
