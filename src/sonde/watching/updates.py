"""Optimisers around their steps: weights, gradients, how far each parameter moved, and the scale of the loss."""

import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sonde.watching.measure import readable
from sonde.watching.parameters import Parameters, Watched, lengths


class Updates:
    """What the optimisers did in the step under way; without any, what is known of the parameters."""

    def __init__(
        self,
        names: Mapping[int, str],
        parameters: Sequence["weakref.ref[nn.Parameter]"],
        optimisers: Sequence[torch.optim.Optimizer],
        scaler: Any,
    ) -> None:
        self.scaler = scaler
        self._names, self._parameters = names, parameters
        self._optimisers = [weakref.ref(optimiser) for optimiser in optimisers]
        self._awaited = set(range(len(optimisers)))
        self.start()

    def start(self) -> None:
        """A new step."""
        self.scale: Tensor | None = None
        self._stepped: set[int] = set()
        self._held: dict[int, tuple[Watched, Parameters]] = {}
        self._rest: Parameters | None = None
        self._accumulated: dict[str, Tensor] = {}

    @property
    def optimisers(self) -> list[torch.optim.Optimizer]:
        return [optimiser for optimiser in (known() for known in self._optimisers) if optimiser is not None]

    def held(self) -> set[int]:
        """The parameters that an optimiser holds."""
        return {
            id(p)
            for optimiser in self.optimisers
            for group in optimiser.param_groups
            for p in group["params"]
        }

    def stepping(self, index: int, optimiser: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """An optimiser is about to step.  With a closure, gradients come during the step."""
        if not self._held:
            self.weigh_rest()
        members = (p for group in optimiser.param_groups for p in group["params"] if id(p) in self._names)
        watched = Watched([(self._names[id(parameter)], parameter) for parameter in members])
        found = watched.before(keep=True)
        own = getattr(optimiser, "grad_scale", None)
        found.scaled = isinstance(own, Tensor)
        scale = scale_of(self.scaler if self.scaler is not None else _calling_scaler())
        self.scale = own.detach().clone() if scale is None and isinstance(own, Tensor) else scale
        if not has_closure:
            watched.gradients(found)
        self._held[index] = watched, found

    def stepped(self, index: int, *, has_closure: bool) -> bool:
        """An optimiser has stepped; whether it had any gradient to step by."""
        if index not in self._held:
            return True
        watched, found = self._held[index]
        if has_closure:
            watched.gradients(found)
        watched.after(found)
        return found.gradients is not None or bool(watched.unreadable)

    def ends(self, index: int) -> bool:
        """Whether this optimiser's step ends the step: it does when each has stepped that is not left behind.

        One that steps twice while another waits leaves the other behind, until that one steps again.
        """
        if len(self._optimisers) == 1:
            return True
        again = index in self._stepped
        self._stepped.add(index)
        self._awaited.add(index)
        if again:
            self._awaited &= self._stepped
        return self._awaited <= self._stepped

    def weigh_rest(self) -> None:
        """Parameters that no optimiser holds."""
        held = self.held()
        present = (
            parameter for parameter in (known() for known in self._parameters) if parameter is not None
        )
        rest = [(self._names[id(p)], p) for p in present if id(p) not in held and id(p) in self._names]
        if rest:
            watched = Watched(rest)
            self._rest = watched.before(keep=False)
            if self._optimisers:
                watched.gradients(self._rest)

    def heard_backward(self) -> None:
        """The first gradient of the step comes back: the scale is now what it was for the loss."""
        if self.scale is None:
            self.scale = scale_of(self.scaler)
        if not self._optimisers and self._rest is None:
            self.weigh_rest()

    def accumulated(self, name: str, parameter: Tensor) -> None:
        """A gradient is complete, where no optimiser is there to tell when it is needed."""
        if parameter.grad is not None and readable(parameter.grad) is None:
            self._accumulated[name] = lengths([parameter.grad.detach()])[0]

    def collect(self) -> list[Parameters]:
        if self._rest is not None and self._accumulated:
            self._rest.with_gradient = list(self._accumulated)
            self._rest.gradients = torch.stack(list(self._accumulated.values()))
            self._rest.scaled = True
        found = [known for _, known in self._held.values()]
        return found if self._rest is None else [*found, self._rest]


def scale_of(scaler: Any) -> Tensor | None:
    """The scale of a GradScaler as it is now; None without one, or where it is switched off."""
    if scaler is None or not getattr(scaler, "is_enabled", lambda: True)():
        return None
    kept = getattr(scaler, "_scale", None)
    return kept.detach().clone() if isinstance(kept, Tensor) else torch.tensor(float(scaler.get_scale()))


def _calling_scaler() -> Any:
    """The GradScaler that makes the optimiser step, seen in the stack of calls."""
    frame: Any = sys._getframe(2)
    for _ in range(12):
        if frame is None:
            return None
        if frame.f_code.co_filename.endswith("grad_scaler.py"):
            found = frame.f_locals.get("self")
            return found if hasattr(found, "get_scale") else None
        frame = frame.f_back
    return None
