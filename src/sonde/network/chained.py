"""A chain of units out of an ordinary module.

The module's own `forward` stays what runs.  While it does, the units named in it are watched: each is called with
what the state before it hands on, and with whatever else the module tells it (masks, positions); what it returns
beside the state goes where the module sends it.  So what runs before the first unit is the embedding, and what runs
after the last is the readout, whatever code that is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.generators import global_state, set_global_state
from sonde.network import (
    ForwardPass,
    HandOn,
    Network,
    as_it_is,
    tiled,
)
from sonde.network.calls import Call, Part, called, in_place_of_forward, with_state
from sonde.network.chain_check import check
from sonde.network.names import between
from sonde.network.pooling import ReaderName


class Reached(BaseException):
    """Ends a run at the state that was asked for; no module catches it by accident."""

    def __init__(self, h: Tensor) -> None:
        self.h = h


@final
class Chain(Network):
    """A module whose units are known.  Its parameters keep the names that the module gives them."""

    def __init__(
        self,
        module: nn.Module,
        spans: Sequence[tuple[str, str]],
        output_of: Callable[[Any], Tensor] | None,
        readout_begins: str | None,
        reader: ReaderName | None,
    ) -> None:
        """Units are given by the names of the first and the last of their submodules."""
        super().__init__(nn.Identity(), [], nn.Identity(), residual=False, reader=reader)
        self.module = module
        self.spans = list(spans)
        self.blocks = nn.ModuleList(nn.ModuleList(between(module, *span)) for span in spans)
        self.output_of = output_of
        self.readout_begins = readout_begins
        self.checked = False
        self.passes_more = False  # whether a unit returns more than the state

    def name_of(self, layer: int) -> str:
        first, last = self.spans[layer]
        return f"unit {first!r}" if first == last else f"unit {first!r} to {last!r}"

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        return self.module.named_buffers(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)

    def outside(self) -> list[nn.Parameter]:
        inside = {id(p) for p in self.blocks.parameters()}
        return [p for p in self.module.parameters() if id(p) not in inside]

    def run(self, x: Tensor, hand_on: HandOn = as_it_is) -> ForwardPass:
        states: list[Tensor] = []

        def visit(part: Part, call: Call) -> Any:
            if part.first:
                if not states and part.layer == 0:
                    states.append(call.state)
                self._follows(part.layer, states, call.state)
                h = hand_on(states)
                call = call.told(h, cut=states[-1].requires_grad and not h.requires_grad)
            out = part(call)
            if not part.last:
                return out
            states.append(self._state(part.layer, out))
            return with_state(out, hand_on(states)) if part.layer == self.depth - 1 else out

        output = self._run_module(x, visit)
        if len(states) <= self.depth:
            raise SondeError(f"{self.name_of(max(len(states) - 1, 0))} does not run when the module does")
        return ForwardPass(states, states[1:], output)

    def tail(self, h: Tensor, layer: int, x: Tensor | None = None, hand_on: HandOn = as_it_is) -> ForwardPass:
        """The module runs again on x, for what it tells units and readout beside the state; h_l takes over.

        Gradients and random numbers begin there, too.  Units below are left out, unless they return more than the
        state: then they run, for that.
        """
        batch = _batch(x, h)
        states, enabled = [h], torch.is_grad_enabled()
        begin = global_state(h.device) if self.draws else None

        def take_over() -> Tensor:
            torch.set_grad_enabled(enabled)
            if begin is not None:
                set_global_state(begin, h.device)
            return hand_on(states)

        def visit(part: Part, call: Call) -> Any:
            if part.layer < layer:
                out = part(call) if self.passes_more else h
                top = part.last and part.layer == self.depth - 1
                return with_state(out, take_over()) if top else out
            if part.first:
                call = call.told(take_over() if part.layer == layer else hand_on(states))
            out = part(call)
            if not part.last:
                return out
            states.append(self._state(part.layer, out))
            return with_state(out, hand_on(states)) if part.layer == self.depth - 1 else out

        with torch.no_grad():
            output = self._run_module(batch, visit)
        return ForwardPass(states, states[1:], output)

    def advance(self, h: Tensor, layer: int, x: Tensor | None = None) -> Tensor:
        def stop(states: list[Tensor]) -> Tensor:
            if len(states) == 2:
                raise Reached(states[-1])
            return states[-1]

        try:
            self.tail(h, layer, x, stop)
        except Reached as reached:
            return reached.h
        raise SondeError(f"{self.name_of(layer)} does not run when the module does")

    def _run_module(self, x: Tensor, visit: Callable[[Part, Call], Any]) -> Tensor:
        """The module's output on x, every part of a unit being left to `visit`."""
        parts: dict[nn.Module, list[Part]] = {}  # a module that stands in several places has a part in each
        for layer, unit in enumerate(self.blocks):
            assert isinstance(unit, nn.ModuleList)
            for place, module in enumerate(unit):
                part = Part(layer, place == 0, place == len(unit) - 1, module.forward)
                parts.setdefault(module, []).append(part)
        with ExitStack() as watching:
            for module, places in parts.items():
                watching.enter_context(in_place_of_forward(module, partial(called, visit, places, iter(places))))
            out = self.module(x)
            return self.output(out)

    def output(self, out: Any) -> Tensor:
        """The output in what the module returns."""
        found = self.output_of(out) if self.output_of is not None else getattr(out, "logits", out)
        found = found[0] if isinstance(found, tuple | list) and found else found
        if not isinstance(found, Tensor):
            raise SondeError(
                f"the module returns a {type(out).__name__}: say by readout=lambda out: … which tensor is its output"
            )
        return found

    def _state(self, layer: int, out: Any) -> Tensor:
        more = isinstance(out, tuple | list) and len(out) > 0
        state = out[0] if more else out
        if not isinstance(state, Tensor):
            raise SondeError(f"{self.name_of(layer)} returns a {type(state).__name__}, no tensor or tuple of them")
        self.passes_more = self.passes_more or more
        return state

    def _follows(self, layer: int, states: list[Tensor], state: Tensor) -> None:
        if layer != len(states) - 1:
            raise SondeError(
                f"{self.name_of(layer)} runs when {self.name_of(max(len(states) - 1, 0))} should: name the units in "
                f"the order in which they run, each of them once"
            )
        if state is not states[-1]:
            raise SondeError(
                f"the input of {self.name_of(layer)} is not the output of {self.name_of(layer - 1)}: what runs between "
                f"them must be part of a unit"
            )

    def check(self, x: Tensor) -> None:
        """Raise unless the units, one after the other, give the module's own output on a few samples."""
        if not self.checked:
            self.passes_more = check(self, x).passes_more
            self.checked = True


def _batch(x: Tensor | None, h: Tensor) -> Tensor:
    if x is None:
        raise SondeError("a chain needs the batch that a state comes from: give x")
    return tiled(x, len(h) // len(x))
