"""The hooks of a watch.  Whatever goes wrong in one stays in it; `without_hooks` keeps them out of copies and files."""

import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from sonde.observe.heard_losses import HeardLoss
    from sonde.observe.passes import Passes
    from sonde.observe.recorder import Recorder
    from sonde.observe.step_record import Gradient, Pass
    from sonde.observe.watched_modules import Spot

backward_pass = torch._C._current_graph_task_id  # the number of the backward pass under way; -1 outside


class Hook:
    """A hook on a module."""

    def __init__(self, recorder: "Recorder") -> None:
        self.recorder = recorder

    def __reduce__(self) -> Any:
        """For modules that copy or pickle themselves: a function that does nothing and that every Python has."""
        return getattr, (nullcontext(), "__exit__")


class Enter(Hook):
    """A module is called."""

    def __init__(self, recorder: "Recorder", spot: "Spot") -> None:
        super().__init__(recorder)
        self.spot = spot

    def __call__(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            self.recorder.enter(self.spot, module, args)
        except Exception as error:
            self.recorder.give_up(error)


class Leave(Hook):
    """A module returns, or is left by an exception."""

    def __init__(self, recorder: "Recorder", spot: "Spot") -> None:
        super().__init__(recorder)
        self.spot = spot

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            self.recorder.leave(self.spot, module, args, kwargs, output)
        except Exception as error:
            self.recorder.give_up(error)


class LeaveLoss(Hook):
    """The loss module returns."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            self.recorder.heard_loss(args, output)
        except Exception as error:
            self.recorder.give_up(error)


class Accumulated(Hook):
    """A parameter has its gradient."""

    def __init__(self, recorder: "Recorder", name: str) -> None:
        super().__init__(recorder)
        self.name = name

    def __call__(self, parameter: Tensor) -> None:
        try:
            self.recorder.accumulated(self.name, parameter)
        except Exception as error:
            self.recorder.give_up(error)


class Arriving:
    """On a parameter: a gradient is about to be added to it."""

    def __init__(self, recorder: "Recorder", name: str, parameter: Tensor) -> None:
        self.recorder, self.name, self.parameter = recorder, name, weakref.ref(parameter)

    def __call__(self, grad: Tensor) -> None:
        try:
            self.recorder.arriving(self.name, self.parameter(), grad)
        except Exception as error:
            self.recorder.give_up(error)


class Back:
    """On a tensor: a gradient comes back to it."""

    def __init__(self, passes: "Passes", of: "Pass", gradient: "Gradient") -> None:
        self.passes, self.of, self.gradient = passes, of, gradient

    def __call__(self, grad: Tensor) -> None:
        try:
            self.passes.heard_gradient(self.of, self.gradient, grad)
        except Exception as error:
            self.passes.on_error(error)


class BackToLoss:
    """On a loss: a gradient comes back to it."""

    def __init__(self, passes: "Passes", loss: "HeardLoss", entries: Tensor | None) -> None:
        self.passes, self.loss, self.entries = passes, loss, entries

    def __call__(self, grad: Tensor) -> None:
        try:
            self.loss.came_back(backward_pass(), grad, self.entries)
        except Exception as error:
            self.passes.on_error(error)


class Marks:
    """On the model's output: a backward pass has begun."""

    def __init__(self, recorder: "Recorder") -> None:
        self.recorder = recorder

    def __call__(self, grad: Tensor) -> None:
        try:
            self.recorder.heard_backward()
        except Exception as error:
            self.recorder.give_up(error)


class Stepping:
    """An optimiser is about to step."""

    def __init__(self, recorder: "Recorder", index: int) -> None:
        self.recorder, self.index = recorder, index

    def __call__(self, optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        try:
            self.recorder.stepping(self.index, optimiser, _has_closure(args, kwargs))
        except Exception as error:
            self.recorder.give_up(error)


class Stepped:
    """An optimiser has stepped."""

    def __init__(self, recorder: "Recorder", index: int) -> None:
        self.recorder, self.index = recorder, index

    def __call__(self, optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        try:
            self.recorder.stepped(self.index, _has_closure(args, kwargs))
        except Exception as error:
            self.recorder.give_up(error)


def _has_closure(args: Any, kwargs: Any) -> bool:
    """The arguments of a hook of an optimiser begin with the optimiser itself."""
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None
