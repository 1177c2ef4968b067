"""A learning rule applied to a network: its state, and the gradients that it assigns."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.metrics.probes import Redrawn, Snapshot
from sonde.network import Network, survey
from sonde.network.losses import CROSS_ENTROPY, Loss, LossFunction, as_loss
from sonde.rules import Facts, Nothing, Rule, RuleState
from sonde.rules.rule import Matrix
from sonde.training.autograd import check_replaceable
from sonde.training.step import Rerun, Step, credit_at, owns_prediction, rule_backward, signal_on


class CreditAssignment:
    """Use a learning rule in your own training loop:

        assignment = CreditAssignment(net, DirectFeedback(), sample=x)
        optimiser = torch.optim.AdamW(assignment.parameters())
        for x, y in loader:
            optimiser.zero_grad()
            assignment.backward(x, y)        # instead of loss.backward()
            optimiser.step()

    `assignment.parameters()` are those of the network, and those of the rule that the optimiser trains (`kp`).  `net`
    is the result of `sonde.chain`, or has `embed`, `blocks` and `readout`; with `residual = True` its blocks return
    what they add to the state, otherwise the next state.  `loss` is any function of (output, y), such as
    `nn.CrossEntropyLoss()`.  `steps` is the length of the training, which a rule with a warm-up needs.
    """

    def __init__(
        self,
        net: nn.Module,
        rule: Rule,
        *,
        sample: Tensor,
        loss: Loss | LossFunction = CROSS_ENTROPY,
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
            input_shape=tuple(sample.shape[1:]),
            real_inputs=sample.is_floating_point(),
            labels=self.loss.classifies or not isinstance(loss, Loss | _Loss),
            output_shape=seen.output_shape,
            steps=steps,
            device=weight.device,
            dtype=weight.dtype,
            pooling=seen.pooling,
            units=_copied(self.net.matrices()) if rule.route == "layer" else [],
            names=[self.net.name_of(layer) for layer in range(self.net.depth)],
        )
        _check_credit_at(rule, self.facts)
        prepare = getattr(rule, "prepare", None)  # a plugin rule need not define it
        if prepare is not None:
            prepare(self.net, self.facts)
        self.state = rule.init(self.facts, generator(seed, "rule"))
        if rule.route == "layer":
            check_replaceable(self.net, sample, rule.feedback(self.state, self.facts.units).keys())

    def parameters(self) -> list[nn.Parameter]:
        """What the optimiser trains: the parameters of the network, then those of the rule."""
        followers = getattr(self.rule, "followers", None)  # a plugin rule need not define it
        return [*self.net.parameters(), *(followers(self.state) if followers else [])]

    def backward(self, x: Tensor, y: Tensor) -> Step:
        """Fill the gradient of every parameter the rule trains; return the mean loss, the output and the logs."""
        return rule_backward(self.net, self.rule, self.state, x, y, self.loss)

    def predict(self, x: Tensor) -> Tensor:
        """The output that accuracy and loss are measured with: the network's, unless the rule has its own."""
        output: Tensor = self.rule.predict(self.net, x) if owns_prediction(self.rule) else self.net(x)
        return output

    @property
    def undefined_credit(self) -> str | None:
        """Why the rule's credit does not stand in for the gradient; None where it does."""
        return getattr(self.rule, "undefined_credit", None)

    def credits(self, snapshot: Snapshot) -> list[Tensor]:
        """a_0 … a_L of the probe batch in float64, from a copy of the state that trains the network."""
        return self._credits(self.rule, self.state, snapshot)

    def feedback(self, snapshot: Snapshot) -> Matrix:
        """The matrices that replace weights in the backward pass, in float64; empty for a rule that replaces none."""
        if self.rule.route != "layer":
            return {}
        units = [{name: p.detach() for name, p in unit.items()} for unit in snapshot.net.matrices()]
        return self.rule.feedback(self.state.double(snapshot.output_NC.device), units)

    @property
    def redrawn(self) -> Redrawn | None:
        """A function that computes the credits of the rule with newly drawn matrices or networks, at the same step.

        A rule may name another rule for this (`chance`).  None where nothing is drawn.
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
            Rerun(snapshot.net, snapshot.x),
            snapshot.states,
            snapshot.output_NC,
            snapshot.y,
            snapshot.loss,
            gradients=lambda: snapshot.gradients,
        )
        return rule.credits(state.double(snapshot.output_NC.device), signal)

    def state_dict(self) -> dict[str, Any]:
        """The state of the rule, to be stored beside the `state_dict` of the network."""
        return self.state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the rule."""
        self.state.load_state_dict(state)


def _copied(units: list[dict[str, nn.Parameter]]) -> list[Matrix]:
    return [{name: p.detach().clone() for name, p in unit.items()} for unit in units]


def _check_credit_at(rule: Rule, facts: Facts) -> None:
    """Raise for `credit_at=input` where the rule names no credits, or where a block changes the shape of the state."""
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


_STEPS = 10  # the mean over them is taken, because some rules vary from step to step


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of matrix products and convolutions that run inside, forward and backward."""

    total: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=out)
        return out


def count_operations(net: Network, rule: Rule, x: Tensor) -> int:
    """Operations of the matrix products and convolutions of one training step on x, without the optimiser."""
    assignment = CreditAssignment(copy.deepcopy(net), rule, sample=x)
    y = torch.zeros(len(x), dtype=torch.int64)
    counter: Any = OperationCounter()  # type: ignore[no-untyped-call]
    with counter:
        for _ in range(_STEPS):
            assignment.backward(x, y)
    return int(counter.total) // _STEPS
