"""A rule at work on a network: the state it owns, and the gradients it assigns."""

from typing import Any

import torch
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.metrics.probes import Redrawn, Snapshot
from sonde.network import Network, survey
from sonde.network.loss_adapter import Criterion, as_loss
from sonde.network.losses import CROSS_ENTROPY, Loss
from sonde.rules import Facts, Nothing, Rule, RuleState
from sonde.rules.rule import Matrix
from sonde.training.step import Again, Step, backward, credit_at, signal_on
from sonde.training.swap import check_products


class CreditAssignment:
    """Use a learning rule in a loop of one's own:

        assignment = CreditAssignment(net, DirectFeedback(), sample=x)
        optimiser = torch.optim.AdamW(assignment.parameters())
        for x, y in loader:
            optimiser.zero_grad()
            assignment.backward(x, y)        # instead of loss.backward()
            optimiser.step()

    Make the optimiser with `assignment.parameters()`: the network's own, and what else the rule has it change (`kp`).
    `net` is what `sonde.chain` makes of a module, or has `embed`, `blocks` and `readout` itself; where it also says
    `residual = True`, blocks return what they add to the state, otherwise they return the next state.  `loss` is any
    function of (output, y), such as `nn.CrossEntropyLoss()`.  `steps` is the length of the training, which a rule with
    a warm-up needs to know.
    """

    def __init__(
        self,
        net: nn.Module,
        rule: Rule,
        *,
        sample: Tensor,
        loss: Loss | Criterion = CROSS_ENTROPY,
        steps: int = 1,
        seed: int = 0,
    ) -> None:
        self.net = Network.of(net)
        seen = survey(self.net, sample)
        seen.remember(self.net)
        self.rule, self.loss = rule, as_loss(loss, seen.output_shape)
        weight = next((p for p in self.net.parameters() if p.is_floating_point()), sample)
        self.facts = Facts(
            shapes=seen.shapes,
            output_shape=seen.output_shape,
            steps=steps,
            device=weight.device,
            dtype=weight.dtype,
            reader=seen.reader,
            units=_copied(self.net.matrices()) if rule.route == "layer" else [],
            names=[self.net.name_of(layer) for layer in range(self.net.depth)],
        )
        _check_credit_at(rule, self.facts)
        self.state = rule.init(self.facts, generator(seed, "rule"))
        if rule.route == "layer":
            check_products(self.net, sample, rule.feedback(self.state, self.facts.units).keys())

    def parameters(self) -> list[nn.Parameter]:
        """What the optimiser changes: the network's parameters, then those of the rule that take its steps."""
        followers = getattr(self.rule, "followers", None)  # a rule from elsewhere need not have any
        return [*self.net.parameters(), *(followers(self.state) if followers else [])]

    def backward(self, x: Tensor, y: Tensor) -> Step:
        """Fill the gradient of every parameter the rule trains; return the mean loss, the output and the logs."""
        return backward(self.net, self.rule, self.state, x, y, self.loss)

    def credits(self, snapshot: Snapshot) -> list[Tensor]:
        """a_0 … a_L of the probe batch in float64, from a copy of the state that trains the network."""
        return self._credits(self.rule, self.state, snapshot)

    def feedback(self, snapshot: Snapshot) -> Matrix:
        """The matrices that stand for the weights on the way back, in float64; none of a rule that replaces none."""
        if self.rule.route != "layer":
            return {}
        units = [{name: p.detach() for name, p in unit.items()} for unit in snapshot.net.matrices()]
        return self.rule.feedback(self.state.double(snapshot.output_NC.device), units)

    @property
    def redrawn(self) -> Redrawn | None:
        """The credits of the same rule at the same step, had it drawn its matrices or networks anew.

        Another rule may stand for chance in its place; where none does, there is nothing to draw.
        """
        chance = getattr(self.rule, "chance", self.rule)
        if chance is None or isinstance(self.state, Nothing):
            return None

        def credits(snapshot: Snapshot, rng: torch.Generator) -> list[Tensor]:
            fresh = chance.init(self.facts, rng)
            if chance is self.rule:
                fresh.catch_up(self.state)
            return self._credits(chance, fresh, snapshot)

        return credits

    def _credits(self, rule: Rule, state: RuleState, snapshot: Snapshot) -> list[Tensor]:
        signal = signal_on(
            Again(snapshot.net, snapshot.x),
            snapshot.states,
            snapshot.output_NC,
            snapshot.y,
            snapshot.loss,
            gradients=lambda: snapshot.gradients,
        )
        return rule.credits(state.double(snapshot.output_NC.device), signal)

    def state_dict(self) -> dict[str, Any]:
        """What the rule owns, to be stored beside the network's own `state_dict`."""
        return self.state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the rule go on from what `state_dict` gave."""
        self.state.load_state_dict(state)


def _copied(units: list[dict[str, nn.Parameter]]) -> list[Matrix]:
    return [{name: p.detach().clone() for name, p in unit.items()} for unit in units]


def _check_credit_at(rule: Rule, facts: Facts) -> None:
    """Refuse credit of a block's input where there is none for the block, or where it has another shape."""
    if credit_at(rule) == "output":
        return
    if rule.route != "local":
        raise SondeError(
            "rule.credit_at=input is for rules that name a credit at every state; this one carries it through every "
            "layer: leave it at output"
        )
    for name, below, above in facts.transitions:
        if below != above:
            before, after = ("×".join(map(str, shape)) for shape in (below, above))
            raise SondeError(
                f"rule.credit_at=input: {name} makes states of {after} out of {before}, so the credit of its input "
                "does not fit its output: leave it at output"
            )
