"""A submodule that is called while it is watched: with what, and what it returns."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from sonde.core.errors import SondeError


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


def called(
    visit: Callable[[Part, Call], Any], places: list[Part], left: Iterator[Part], *args: Any, **kwargs: Any
) -> Any:
    return visit(next(left, places[-1]), Call(args, kwargs))


@contextmanager
def in_place_of_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if before is not None:
            module.__dict__["forward"] = before


def with_state(out: Any, h: Tensor) -> Any:
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
