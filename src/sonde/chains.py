"""A chain of units out of an ordinary module.

The module's own `forward` stays what runs.  While it does, the units named in it are watched: each is called with
what the state before it hands on, and with whatever else the module tells it (masks, positions); what it returns
beside the state goes where the module sends it.  So what runs before the first unit is the embedding, and what runs
after the last is the readout, whatever code that is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from sonde.errors import SondeError, nearest
from sonde.network import (
    ForwardPass,
    HandOn,
    Network,
    as_it_is,
    generator_state,
    leaf_at,
    quiet_twin,
    samples,
    set_generator_state,
    tiled,
)
from sonde.readers import ReaderName

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the output, relative to its largest number
COARSE = 1e-2  # of shorter numbers


def chain(
    module: nn.Module,
    units: Sequence[str] | None = None,
    *,
    readout: str | Callable[[Any], Tensor] | None = None,
    sample: Tensor | None = None,
    reader: ReaderName | None = None,
) -> "Chain":
    """Let rules and probes see a module as h_0 = embed(x), h_{l+1} = unit_l(h_l), output = readout(h_L).

        net = sonde.chain(gpt, units=["transformer.h.*"], sample=tokens)

    `units` names submodules in the order in which they run; `*` stands for any name between two dots.  Those of an
    `nn.Sequential` need not be named: one begins at every child that has a weight matrix, the first of them is the
    embedding and the last the readout (of two, the first is the unit).  `readout` may name the submodule with which
    the readout begins, or be a function from what the module returns to the output.  `reader` says which vector of a
    sample is read; by default it is found out on the first samples.

    It is checked on the sample batch, or on the first that is seen, that the units are a chain and give the module's
    own output.  A copy is run for it: the module, its mode, its statistics and all generators stay as they are.

    A unit that returns a tuple returns the state first.  Where a rule cuts the graph between units, what a unit is
    told beside the state is cut as well.
    """
    begins = readout if isinstance(readout, str) else None
    if units is not None:
        spans = [(name, name) for name in _named(module, units)]
    elif isinstance(module, nn.Sequential):
        spans = _grouped(module, begins)
    else:
        raise SondeError(
            f"{type(module).__name__} is no nn.Sequential: name the units, such as units=[{_example(module)!r}]"
        )
    made = Chain(module, spans, None if isinstance(readout, str) else readout, begins, reader)
    if sample is not None:
        made.check(sample)
    return made


@dataclass(frozen=True)
class Call:
    """What a unit is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def slot(self) -> int | str:
        """Where the state is: the first tensor."""
        for place, value in (*enumerate(self.args), *self.kwargs.items()):
            if isinstance(value, Tensor):
                return place  # type: ignore[return-value]
        raise SondeError("a unit is called without a tensor: a unit takes the state first")

    @property
    def state(self) -> Tensor:
        slot = self.slot
        state: Tensor = self.args[slot] if isinstance(slot, int) else self.kwargs[slot]
        return state

    def told(self, h: Tensor, *, cut: bool = False) -> "Call":
        """The same with another state."""
        args, kwargs, slot = self.args, self.kwargs, self.slot
        if cut:
            args, kwargs = tuple(map(_detached, args)), {key: _detached(v) for key, v in kwargs.items()}
        if isinstance(slot, int):
            return replace(self, args=(*args[:slot], h, *args[slot + 1 :]), kwargs=kwargs)
        return replace(self, args=args, kwargs={**kwargs, slot: h})


@dataclass(frozen=True)
class Part:
    """A submodule that is watched: all of unit l, or one of several that follow each other in it."""

    layer: int
    first: bool
    last: bool
    forward: Callable[..., Any]

    def __call__(self, call: Call) -> Any:
        return self.forward(*call.args, **call.kwargs)


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
        self.blocks = nn.ModuleList(nn.ModuleList(_between(module, *span)) for span in spans)
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
            return _with_state(out, hand_on(states)) if part.layer == self.depth - 1 else out

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
        begin = generator_state(h.device) if self.draws else None

        def take_over() -> Tensor:
            torch.set_grad_enabled(enabled)
            if begin is not None:
                set_generator_state(begin, h.device)
            return hand_on(states)

        def visit(part: Part, call: Call) -> Any:
            if part.layer < layer:
                out = part(call) if self.passes_more else h
                top = part.last and part.layer == self.depth - 1
                return _with_state(out, take_over()) if top else out
            if part.first:
                call = call.told(take_over() if part.layer == layer else hand_on(states))
            out = part(call)
            if not part.last:
                return out
            states.append(self._state(part.layer, out))
            return _with_state(out, hand_on(states)) if part.layer == self.depth - 1 else out

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
                watching.enter_context(
                    _in_place_of_forward(module, partial(_called, visit, places, iter(places)))
                )
            out = self.module(x)
            return self._output(out)

    def _output(self, out: Any) -> Tensor:
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
            raise SondeError(
                f"{self.name_of(layer)} returns a {type(state).__name__}, no tensor or tuple of them"
            )
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
        if self.checked:
            return
        x, twin = samples(x, 3), quiet_twin(self)
        with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []), torch.no_grad():
            own = twin._output(twin.module(x))
            handed = 0

            def count(states: list[Tensor]) -> Tensor:
                nonlocal handed
                handed = len(states)
                return states[-1]

            def begins(*_: Any) -> None:
                if handed <= self.depth:
                    raise SondeError(f"readout {self.readout_begins!r} runs before the last unit has run")

            if self.readout_begins is not None:
                _submodule(twin.module, self.readout_begins).register_forward_pre_hook(begins)
            states = twin.run(x, count).states
            for layer in reversed(range(self.depth + 1)):
                self._same(own, twin.tail(states[layer], layer, x).output, layer)
            h = states[0]
            for layer in range(self.depth):
                h = twin.advance(h, layer, x)
            self._same(own, twin.tail(h, self.depth, x).output, 0)
            self._no_way_around(twin, x)
            twin.train().run(x)
        self.checked, self.passes_more = True, twin.passes_more

    def _no_way_around(self, twin: "Chain", x: Tensor) -> None:
        """The gradient at h_0 itself is that of the way through the units."""
        twin.requires_grad_(True)
        x = x.clone().requires_grad_() if x.is_floating_point() else x
        gradients = []
        for hand_on in (as_it_is, leaf_at(0)):
            with torch.enable_grad():
                states, _, output = twin.run(x, hand_on)
                weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype, device=output.device)
                (g,) = torch.autograd.grad(
                    (output.flatten() * weight).sum(), states[0], materialize_grads=True
                )
            gradients.append(g)
        twin.requires_grad_(False)
        through, around = gradients[1], gradients[0] - gradients[1]
        if around.abs().max() > 100 * TOLERANCE.get(through.dtype, COARSE) * through.abs().max():
            raise SondeError(
                f"the output depends on the input of {self.name_of(0)} by a way around the units: they are no chain"
            )

    def _same(self, own: Tensor, composed: Tensor, layer: int) -> None:
        error = (own - composed).abs().max() if own.shape == composed.shape else torch.tensor(torch.inf)
        if not bool(error <= TOLERANCE.get(own.dtype, COARSE) * own.abs().max()):
            above = self.name_of(layer) if layer < self.depth else "the readout"
            raise SondeError(
                f"given the input of {above} alone, the output is off by {float(error / own.abs().max()):.1e}: what "
                f"runs from there on also uses something from before it, so these units are no chain"
            )


def _called(
    visit: Callable[[Part, Call], Any], places: list[Part], left: Iterator[Part], *args: Any, **kwargs: Any
) -> Any:
    return visit(next(left, places[-1]), Call(args, kwargs))


@contextmanager
def _in_place_of_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if before is not None:
            module.__dict__["forward"] = before


def _with_state(out: Any, h: Tensor) -> Any:
    """What a unit returned, with another state."""
    if isinstance(out, tuple) and hasattr(out, "_replace"):
        return out._replace(**{out._fields[0]: h})  # type: ignore[attr-defined]
    return type(out)((h, *out[1:])) if isinstance(out, tuple | list) else h


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple | list) and not hasattr(value, "_replace"):
        return type(value)(map(_detached, value))
    return value


def _batch(x: Tensor | None, h: Tensor) -> Tensor:
    if x is None:
        raise SondeError("a chain needs the batch that a state comes from: give x")
    return tiled(x, len(h) // len(x))


def _submodule(module: nn.Module, name: str) -> nn.Module:
    names: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
    if not name or name not in names:
        raise SondeError(f"{type(module).__name__} has no submodule {name!r}: {nearest(name, names)}")
    return names[name]


def _between(module: nn.Module, first: str, last: str) -> list[nn.Module]:
    """The submodules of a unit; several are children of an `nn.Sequential`."""
    if first == last:
        return [_submodule(module, first)]
    names = list(module._modules)
    return [_submodule(module, name) for name in names[names.index(first) : names.index(last) + 1]]


def _named(module: nn.Module, globs: Sequence[str]) -> list[str]:
    """The submodules that patterns name, in their order."""
    names = [name for name, _ in module.named_modules(remove_duplicate=False) if name]
    found: list[str] = []
    for glob in [globs] if isinstance(globs, str) else globs:
        matching = [name for name in names if _matches(name, glob)]
        if not matching:
            raise SondeError(f"{type(module).__name__} has no submodule {glob!r}: {nearest(glob, names)}")
        found += [name for name in matching if name not in found]
    for outer in found:
        for inner in found:
            if inner.startswith(f"{outer}."):
                raise SondeError(f"unit {inner!r} is a part of unit {outer!r}: name one of them")
    if not found:
        raise SondeError("a chain needs at least one unit: name it in units")
    return found


def _matches(name: str, glob: str) -> bool:
    parts, patterns = name.split("."), glob.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _grouped(module: nn.Sequential, readout: str | None) -> list[tuple[str, str]]:
    """The first and last child of every unit of a sequence; one begins wherever there is a weight matrix."""
    names = list(module._modules)
    if readout is not None:
        _submodule(module, readout)
        if readout not in names:
            raise SondeError(
                f"readout {readout!r} is no child of the nn.Sequential: {nearest(readout, names)}"
            )
    groups: list[list[str]] = []
    for name in names[: names.index(readout)] if readout is not None else names:
        if not groups or (_has_matrix(module, name) and any(_has_matrix(module, n) for n in groups[-1])):
            groups.append([])
        groups[-1].append(name)
    groups = groups if readout is not None else groups[:-1]
    units = groups[1:] or groups
    if not units:
        raise SondeError(
            "a chain needs a unit and a readout: this nn.Sequential has fewer than two weight matrices"
        )
    return [(group[0], group[-1]) for group in units]


def _has_matrix(module: nn.Sequential, name: str) -> bool:
    return any(p.ndim > 1 for p in _submodule(module, name).parameters())


def _example(module: nn.Module) -> str:
    """What the name of its units may be: its longest list of submodules."""
    lists = {
        name: len(m) for name, m in module.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential)
    }
    return f"{max(lists, key=lambda name: lists[name])}.*" if lists else next(iter(module._modules), "layer")


__all__ = ["Chain", "chain"]
