"""A network as a chain of units, made from an ordinary module.

The module's own `forward` runs, while the `forward` of every unit is replaced.  Each unit gets the state that is handed
on, and everything else that the module passes to it (masks, positions); what it returns beside the state goes where the
module sends it.  So the code that runs before the first unit is the embedding, and the code that runs after the last is
the readout.  Nothing stays on the module between two runs.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, final

import torch
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.generators import global_state, preserve_rng, set_global_state
from sonde.network import (
    ForwardPass,
    HandOn,
    Network,
    PoolingName,
    as_it_is,
    first_samples,
    frozen_copy,
    leaf_at,
    tiled,
)
from sonde.network.units import (
    UnitCall,
    UnitPart,
    example_units,
    forward_replaced,
    group_sequential,
    matching_names,
    span_modules,
    submodule,
    visiting_forward,
    with_state,
)


class _Reached(BaseException):
    """Stops a forward pass at a state.  A BaseException, so that no module catches it by accident."""

    def __init__(self, h: Tensor) -> None:
        self.h = h


@final
class Chain(Network):
    """A module and its units, as `chain` makes it.  Parameters keep the names that the module gives them."""

    def __init__(
        self,
        module: nn.Module,
        spans: Sequence[tuple[str, str]],
        output_of: Callable[[Any], Tensor] | None,
        readout_begins: str | None,
        pooling: PoolingName | None,
    ) -> None:
        """`spans` has the names of the first and the last submodule of every unit."""
        super().__init__(nn.Identity(), [], nn.Identity(), residual=False, pooling=pooling)
        self.module = module
        self.spans = list(spans)
        self.blocks = nn.ModuleList(nn.ModuleList(span_modules(module, *span)) for span in spans)
        self.output_of = output_of
        self.readout_begins = readout_begins
        self.is_checked = False
        self.passes_more = False  # whether a unit returns more than the state

    def name_of(self, layer: int) -> str:
        first, last = self.spans[layer]
        return f"unit {first!r}" if first == last else f"unit {first!r} to {last!r}"

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters, by the names that the module gives them."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """The buffers, by the names that the module gives them."""
        return self.module.named_buffers(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)

    def outside(self) -> list[nn.Parameter]:
        inside = {id(p) for p in self.blocks.parameters()}
        return [p for p in self.module.parameters() if id(p) not in inside]

    def run(self, x: Tensor, hand_on: HandOn = as_it_is, *, raw: bool = False) -> ForwardPass:
        states: list[Tensor] = []

        def visit(part: UnitPart, call: UnitCall) -> Any:
            if part.first:
                if not states and part.layer == 0:
                    states.append(call.state)
                self._follows(part.layer, states, call.state)
                h = hand_on(states)
                cut = states[-1].requires_grad and h is not states[-1] and h.grad_fn is None
                call = call.with_input(self.read(h), cut=cut)
            return self._call(part, call, states, hand_on)

        output = self._run_module(self.entered(x, raw), visit)
        if len(states) <= self.depth:
            raise SondeError(f"{self.name_of(max(len(states) - 1, 0))} does not run when the module does")
        return ForwardPass(states, states[1:], output)

    def tail(self, h: Tensor, layer: int, x: Tensor | None = None, hand_on: HandOn = as_it_is) -> ForwardPass:
        """From h_l to the output: run the module on x again, and replace the state before unit l by h_l.

        The module gives units and readout what they take beside the state.  Gradients and random numbers begin at h_l.
        Units below l are skipped, unless they return more than the state.
        """
        if x is None:
            raise SondeError("a chain needs the batch that a state comes from: give x")
        batch = tiled(x, len(h) // len(x))
        states, enabled = [h], torch.is_grad_enabled()
        begin = global_state(h.device) if self.draws else None

        def take_over() -> Tensor:
            torch.set_grad_enabled(enabled)
            if begin is not None:
                set_global_state(begin, h.device)
            return self.read(hand_on(states))

        def visit(part: UnitPart, call: UnitCall) -> Any:
            if part.layer < layer:
                out = part(call) if self.passes_more else h
                top = part.last and part.layer == self.depth - 1
                return with_state(out, take_over()) if top else out
            if part.first:
                call = call.with_input(take_over() if part.layer == layer else self.read(hand_on(states)))
            return self._call(part, call, states, hand_on)

        with torch.no_grad():
            output = self._run_module(self.entered(batch), visit)
        return ForwardPass(states, states[1:], output)

    def advance(self, h: Tensor, layer: int, x: Tensor | None = None) -> Tensor:
        def stop(states: list[Tensor]) -> Tensor:
            if len(states) == 2:
                raise _Reached(states[-1])
            return states[-1]

        try:
            self.tail(h, layer, x, stop)
        except _Reached as reached:
            return reached.h
        raise SondeError(f"{self.name_of(layer)} does not run when the module does")

    def _call(self, part: UnitPart, call: UnitCall, states: list[Tensor], hand_on: HandOn) -> Any:
        """Run a part; append the state that its unit returns, and hand the last state on to the readout."""
        out = part(call)
        if not part.last:
            return out
        states.append(self._state(part.layer, out))
        return with_state(out, self.read(hand_on(states))) if part.layer == self.depth - 1 else out

    def _run_module(self, x: Tensor, visit: Callable[[UnitPart, UnitCall], Any]) -> Tensor:
        """The module's output on x; every submodule of a unit is called through `visit`."""
        parts: dict[nn.Module, list[UnitPart]] = {}  # a module that is used in several units has a part in each
        for layer, unit in enumerate(self.blocks):
            assert isinstance(unit, nn.ModuleList)
            for place, module in enumerate(unit):
                part = UnitPart(layer, place == 0, place == len(unit) - 1, module.forward)
                parts.setdefault(module, []).append(part)
        with ExitStack() as watching:
            for module, places in parts.items():
                watching.enter_context(forward_replaced(module, visiting_forward(visit, places)))
            return self.output(self.module(x))

    def output(self, out: Any) -> Tensor:
        """Take the output from what the module returns."""
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
        """Raise unless the units in sequence give the module's own output on a few samples; done once."""
        if not self.is_checked:
            self.passes_more = _checked_copy(self, x).passes_more
            self.is_checked = True


def chain(
    module: nn.Module,
    units: Sequence[str] | None = None,
    *,
    readout: str | Callable[[Any], Tensor] | None = None,
    sample: Tensor | None = None,
    pooling: PoolingName | None = None,
    reader: PoolingName | None = None,
) -> Chain:
    """Make a module a chain for rules and probes: h_0 = embed(x), h_{l+1} = unit_l(h_l), output = readout(h_L).

        net = sonde.chain(gpt, units=["transformer.h.*"], sample=tokens)

    `units` names submodules in the order in which they run; `*` stands for any name between two dots.  The units of an
    `nn.Sequential` need no names: one begins at every child that has a weight matrix.  The first of them is the
    embedding and the last the readout; of two, the first is the unit.  `readout` names the submodule with which the
    readout begins, or is a function from what the module returns to the output.  `pooling` chooses the vector of a
    sample that is measured; by default the first samples decide.  `reader` is the deprecated name of `pooling`.

    The units are checked on `sample`, or on the first batch: they must be a chain and give the module's own output.  A
    copy is run for it, so the module, its mode, its statistics and all generators stay unchanged.

    A unit that returns a tuple returns the state first.  Where a rule cuts the graph between units, the other inputs
    of a unit are detached as well.
    """
    if reader is not None:
        warnings.warn("sonde.chain: reader is deprecated, use pooling", DeprecationWarning, stacklevel=2)
        pooling = pooling or reader
    begins = readout if isinstance(readout, str) else None
    if units is not None:
        spans = [(name, name) for name in matching_names(module, units)]
    elif isinstance(module, nn.Sequential):
        spans = group_sequential(module, begins)
    else:
        raise SondeError(
            f"{type(module).__name__} is no nn.Sequential: name the units, such as units=[{example_units(module)!r}]"
        )
    made = Chain(module, spans, None if isinstance(readout, str) else readout, begins, pooling)
    if sample is not None:
        made.check(sample)
    return made


_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the output, relative to its largest number
_COARSE = 1e-2  # for other types


def _checked_copy(net: Chain, x: Tensor) -> Chain:
    """Raise unless the units in sequence give the module's own output; return the copy that was run."""
    x, twin = first_samples(x, 3), frozen_copy(net)
    with preserve_rng(x.device), torch.no_grad():
        own = twin.output(twin.module(x))
        states = _run_until_readout(twin, x)
        for layer in reversed(range(twin.depth + 1)):
            _check_same(twin, layer, own, twin.tail(states[layer], layer, x).output)
        h = states[0]
        for layer in range(twin.depth):
            h = twin.advance(h, layer, x)
        _check_same(twin, 0, own, twin.tail(h, twin.depth, x).output)
        _check_no_bypass(twin, x)
        twin.train().run(x)  # a module between units may act in training only, as dropout does
    return twin


def _run_until_readout(twin: Chain, x: Tensor) -> list[Tensor]:
    """All states; raise where the named beginning of the readout runs before the last unit."""
    handed = 0

    def count(states: list[Tensor]) -> Tensor:
        nonlocal handed
        handed = len(states)
        return states[-1]

    def begins(*_: Any) -> None:
        if handed <= twin.depth:
            raise SondeError(f"readout {twin.readout_begins!r} runs before the last unit has run: name a later one")

    if twin.readout_begins is None:
        return twin.run(x).states
    watch = submodule(twin.module, twin.readout_begins).register_forward_pre_hook(begins)
    try:
        return twin.run(x, count).states
    finally:
        watch.remove()


def _check_same(twin: Chain, layer: int, own: Tensor, composed: Tensor) -> None:
    error = (own - composed).abs().max() if own.shape == composed.shape else torch.tensor(torch.inf)
    if not bool(error <= _TOLERANCE.get(own.dtype, _COARSE) * own.abs().max()):
        above = twin.name_of(layer) if layer < twin.depth else "the readout"
        raise SondeError(
            f"given the input of {above} alone, the output is off by {float(error / own.abs().max()):.1e}: what runs "
            f"from there on also uses something from before it, so these units are no chain"
        )


def _check_no_bypass(twin: Chain, x: Tensor) -> None:
    """Raise unless the whole gradient at h_0 comes through the units."""
    twin.requires_grad_(True)
    x = x.clone().requires_grad_() if x.is_floating_point() else x
    gradients = []
    for hand_on in (as_it_is, leaf_at(0)):
        with torch.enable_grad():
            states, _, output = twin.run(x, hand_on)
            weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype, device=output.device)
            goal = (output.flatten() * weight).sum()
            (g,) = torch.autograd.grad(goal, states[0], materialize_grads=True)
        gradients.append(g)
    twin.requires_grad_(False)
    through, around = gradients[1], gradients[0] - gradients[1]
    if around.abs().max() > 100 * _TOLERANCE.get(through.dtype, _COARSE) * through.abs().max():
        raise SondeError(
            f"the output depends on the input of {twin.name_of(0)} by a way around the units: they are no chain"
        )
