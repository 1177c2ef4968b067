"""What the first step of a watch shows: inputs and targets, mode, how parameters begin, what the graph is made of."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from sonde.observe import autograd_graph, facts
from sonde.observe.step_record import Call
from sonde.observe.updates import Updates
from sonde.observe.watched_modules import Spot, contents, inside, mode_matters


class FirstStep:
    """Noted as it happens, told once; whether modules are in evaluation mode is noted in every watched step."""

    def __init__(self, names: Mapping[int, str], updates: Updates) -> None:
        self.calls: list[Call] | None = None
        self.start: facts.Start | None = None
        self.graph: dict[str, Any] = {}
        self.in_eval: tuple[float, int] | None = None
        self._names, self._updates = names, updates
        self._glances: dict[str, list[facts.Glance]] = {}
        self._mode: dict[str, Any] = {}
        self._modal: list[weakref.ref[nn.Module]] | None = None  # modules for which the mode matters
        self._output_made = -1  # autograd's number of the operation that made the latest output

    def see_inputs(self, given: Any) -> None:
        """The arguments of the model, by place or, if there are none, by name."""
        if not self._glances.get("inputs"):
            self._glances["inputs"] = facts.glances(given)

    def see_targets(self, given: Any) -> None:
        if "targets" not in self._glances:
            self._glances["targets"] = facts.glances(given)

    def see_mode(self, model: nn.Module, spots: Sequence[Spot]) -> None:
        """Before a watched pass."""
        if not self._mode:
            self._mode = _mode(model, spots)
        if self.start is None:
            self.start = facts.Start(contents(inside(model)))
            self._modal = [weakref.ref(module) for module in mode_matters(model)]
        flags = [module.training for module in (known() for known in self._modal or []) if module is not None]
        if flags:
            self.in_eval = 1 - sum(flags) / len(flags), len(flags)

    def see_output(self, out: Tensor, given: Any) -> None:
        """What the model returned, of a watched pass, and what it was given."""
        self._output_made = autograd_graph.sequence(out) or -1
        if "output_op" not in self.graph:
            self.graph = {
                "output_op": autograd_graph.last_operation(out),
                "output_shape": list(out.shape),
                "bare_pairs": autograd_graph.bare_pairs(out, self._names),
                "bends": autograd_graph.bends(out),
                "unregistered": autograd_graph.unregistered(
                    out,
                    (tensor for _, tensor in facts.tensors(given)),
                    {*self._names, *self._updates.held()},
                ),
            }

    def see_loss(self, loss: Tensor) -> bool:
        """Note the operations that make the loss of the latest output; whether that was news."""
        if self._output_made < 0 or "loss_ops" in self.graph:
            return False
        self.graph["loss_ops"] = autograd_graph.operations_since(loss, self._output_made)
        self.graph["loss_shape"] = autograd_graph.largest_shape(loss, self._output_made)
        return True

    def tell(
        self,
        spots: Sequence[Spot],
        model: nn.Module | None,
        shared: Any,
    ) -> dict[str, Any] | None:
        """All of it as facts, as soon as the step is over."""
        if self.calls is None:
            return None
        calls, self.calls = self.calls, []
        optimisers = self._updates.optimisers
        held = self._updates.held() if optimisers else None
        return {
            "modules": facts.modules(spots, calls),
            "parameters": [] if model is None else facts.parameters(self._names, model, held, self.start),
            "shared": shared,
            "optimisers": [facts.optimiser(optimiser) for optimiser in optimisers],
            "inputs": [glance.read() for glance in self._glances.get("inputs", [])],
            "targets": [glance.read() for glance in self._glances.get("targets", [])],
            **self._mode,
            **self.graph,
        }


def _mode(model: nn.Module, spots: Sequence[Spot]) -> dict[str, Any]:
    """Training or evaluation, and the modules that are in the other one."""
    known = [(spot.name, spot.module()) for spot in spots]
    other = [name for name, module in known if module is not None and module.training != model.training]
    return {"training": model.training, "in_the_other_mode": other}
