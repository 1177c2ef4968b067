"""Follows a training loop step by step, and changes nothing in it.

Nothing is read from the device before a flush.  Modules have hooks in watched steps only; in between, an optimiser's
own hook counts steps and does nothing else.  Gradients are heard by hooks on tensors: hooks on modules for that
purpose break modules that work in place.
"""

import os
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from sonde.store.run import State
from sonde.watching import autograd_graph, facts
from sonde.watching.hooks import Accumulated, Arriving, Enter, Leave, LeaveLoss, Marks, Stepped, Stepping
from sonde.watching.observations import Call, Sheet
from sonde.watching.outbox import Outbox
from sonde.watching.passes import Passes, backward_pass
from sonde.watching.reductions import readable
from sonde.watching.row_sinks import Sink
from sonde.watching.spots import (
    COMPILED,
    FROZEN,
    Spot,
    contents,
    goes_fast,
    inside,
    mode_matters,
    named_parameters,
)
from sonde.watching.updates import Updates, shared
from sonde.watching.watch_warning import warn
from sonde.watching.watched_steps import is_costly, next_watched

UNKNOWN_SCALE = "computed in float16 under an unknown scale of the loss: give scaler="


class Recorder:
    """All of a watch but the handle that the user holds."""

    def __init__(
        self,
        model: nn.Module,
        optimisers: Sequence[torch.optim.Optimizer],
        spots: Sequence[Spot],
        *,
        loss: nn.Module | None,
        every: int,
        scaler: Any,
        sink: Sink,
        run: str,
    ) -> None:
        self.step = 0
        self.closed = False
        self._every = every
        self._outbox = Outbox(sink, run, self._describe)
        self._process, self._thread = os.getpid(), 0
        self._spots = list(spots)
        self._root = next(spot for spot in spots if spot.is_root)
        self._fast = _fast_groups(spots)
        self._model = weakref.ref(model)
        self._loss = None if loss is None else weakref.ref(loss)
        self._names, self._shared = shared(named_parameters(model))
        self._parameters = [weakref.ref(parameter) for parameter in model.parameters()]
        self._passes = Passes(spots, self._parameters)
        self._passes.on_error = self.give_up
        self._updates = Updates(self._names, self._parameters, optimisers, scaler)
        self._steps_alone = not optimisers  # a step ends with the next forward pass after a backward pass

        self._watched = False  # whether the step under way is
        self._next = 0
        self._handles: list[Any] = []  # of a watched step
        self._suspended = False
        self._begun = False  # whether the step has seen a forward pass
        self._backward_seen = False
        self._late: bool | None = None  # whether losses are logged after the optimiser's step
        self._heard_loss_in = -1  # the last step in which the loss module was heard

        self._first: list[Call] | None = None  # the calls of the first step
        self._glances: dict[str, list[facts.Glance]] = {}
        self._mode: dict[str, Any] = {}
        self._modal: list[weakref.ref[nn.Module]] | None = None  # modules for which it matters
        self._in_eval: tuple[float, int] | None = None
        self._graph: dict[str, Any] = {}  # what the first step's graph tells
        self._output_made = -1  # autograd's number of the operation that made the latest output
        self.start: facts.Start | None = None

        self._always: list[Any] = [
            optimiser.register_step_post_hook(Stepped(self, index))
            for index, optimiser in enumerate(optimisers)
        ]
        if self._steps_alone:
            self._always += self._hook(self._root)
        self._start_step()

    # Steps

    def _start_step(self) -> None:
        """Be all ears if the step that begins is a watched one, and deaf otherwise."""
        watched = self.step == self._next
        if watched:
            self._next = next_watched(self.step, self._every)
            self._passes.start(self.step, costly=is_costly(self.step, self._every))
            self._updates.start()
        if self._watched and (
            not watched or self.step == 1
        ):  # after step 0 it is known which modules are watched
            self._detach()
        self._watched = watched
        if watched and not self._handles:
            self._attach()

    def _attach(self) -> None:
        for spot in self._heard():
            self._handles += self._hook(spot)
        loss = None if self._loss is None else self._loss()
        if loss is not None:
            self._handles.append(loss.register_forward_hook(LeaveLoss(self)))
        for index, optimiser in enumerate(self._updates.optimisers):
            self._handles.append(optimiser.register_step_pre_hook(Stepping(self, index)))
        if self.step > 0 and not any(spot.hidden == COMPILED for spot in self._spots):
            for name, sampled in self._updates.sampled():
                self._handles.append(sampled.register_hook(Arriving(self, name, sampled)))  # type: ignore[no-untyped-call]
        if self._steps_alone:
            for parameter in (known() for known in self._parameters):
                if parameter is not None and parameter.requires_grad:
                    hook: Any = parameter.register_post_accumulate_grad_hook
                    self._handles.append(hook(Accumulated(self, self._names[id(parameter)])))

    def _heard(self) -> list[Spot]:
        """The modules to hook in this step; not those that PyTorch computes another way without hooks."""
        for layer, inner in self._fast:
            module = layer.module()
            for spot in inner:
                spot.silent = FROZEN if module is not None and goes_fast(module) else None
        hooked = self._root if self._steps_alone else None
        return [
            spot
            for spot in self._spots
            if (spot.chosen is not False or spot.is_root) and spot.silent is None and spot is not hooked
        ]

    def _hook(self, spot: Spot) -> list[Any]:
        module = spot.module()
        if module is None or spot.hidden is not None:
            return []
        return [
            module.register_forward_pre_hook(Enter(self, spot)),
            module.register_forward_hook(Leave(self, spot), with_kwargs=True, always_call=True),
        ]

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def end_step(self) -> None:
        if self._watched:
            self._outbox.add(self._sheet())
        self._begun = self._backward_seen = False
        self.step += 1
        self._start_step()
        self._outbox.maybe_flush(self.step)

    def _sheet(self) -> Sheet:
        calls, losses, half = self._passes.collect()
        unseen: dict[str, str] = {}
        if self._first is None:
            self._first = calls
            unseen = facts.unseen(self._spots, calls)
            if not calls:
                warn(f"no call of the model was seen in step {self.step}: {facts.NO_CALL}")
        sheet = Sheet(
            self.step,
            calls=[call for call in calls if call.spot.chosen],
            parameters=self._updates.collect(),
            losses=losses,
            scale=self._updates.scale,
            unseen=unseen,
            left=self._updates.left,
            in_eval=self._in_eval,
        )
        if half and sheet.scale is None and self._updates.scaler is None:
            sheet.unscaled_reason = UNKNOWN_SCALE
        return sheet

    # What the hooks hear

    def enter(self, spot: Spot, module: nn.Module, args: Any) -> None:
        """A module is called; in an evaluation, in a backward pass or in another thread that is no concern of ours."""
        if backward_pass() != -1 or module is not spot.module():
            return
        if spot.is_root and self._passes.inside and not _calls_itself(module):
            self._passes.abandon()  # a pass that was interrupted
        if not self._passes.inside:
            if self._suspended and spot.is_root:
                self._resume()
            if not torch.is_grad_enabled():
                if spot.is_root and self._watched and self._fast:
                    self._suspend()
                return
            if _is_transforming():
                return
            self._thread = self._thread or threading.get_ident()
            if self._thread == threading.get_ident():
                if (
                    self._steps_alone
                    and spot.is_root
                    and (self._backward_seen or self._passes.heard_backward)
                ):
                    self.end_step()
                self._begin(args)
        if self._watched and self._thread == threading.get_ident():
            self._passes.enter(spot, args)

    def _begin(self, args: Any) -> None:
        """A forward pass begins; of the first, inputs and mode are noted."""
        self._begun = True
        model = self._model()
        if "inputs" not in self._glances:
            self._glances["inputs"] = facts.glances(args)
        if not self._watched or model is None:
            return
        if not self._mode:
            self._mode = _mode(model, self._spots)
        if self.start is None:
            self.start = facts.Start(contents(inside(model)))
            self._modal = [weakref.ref(module) for module in mode_matters(model)]
        flags = [module.training for module in (known() for known in self._modal or []) if module is not None]
        if flags:
            self._in_eval = 1 - sum(flags) / len(flags), len(flags)

    def leave(self, spot: Spot, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """A module has returned."""
        if backward_pass() != -1:
            self._passes.recomputed(spot, output)
            return
        if self._thread and self._thread != threading.get_ident():
            return
        if self._passes.inside:
            self._passes.leave(spot, module, args, kwargs, output)
        if not spot.is_root or self._passes.inside:
            return
        if self._suspended:
            self._resume()
        if torch.is_grad_enabled():
            if not self._glances.get("inputs"):
                self._glances["inputs"] = facts.glances(kwargs)
            if isinstance(output, Mapping) and self._loss is None:
                self._hear_loss(output.get("loss"))
            out = facts.first_float(output)
            if self._watched and out is not None and out.requires_grad:
                self._output_made = autograd_graph.sequence(out) or -1
                if "output_op" not in self._graph:
                    self._graph = {
                        "output_op": autograd_graph.last_operation(out),
                        "output_shape": list(out.shape),
                        "bare_pairs": autograd_graph.bare_pairs(out, self._names),
                        "bends": autograd_graph.bends(out),
                        "unregistered": autograd_graph.unregistered(
                            out,
                            (given for _, given in facts.tensors((args, kwargs))),
                            {*self._names, *self._updates.held()},
                        ),
                    }
            if self._steps_alone and out is not None and out.requires_grad:
                hook: Any = out.register_hook
                hook(Marks(self))

    def heard_backward(self) -> None:
        """A backward pass came through the model's output."""
        self._backward_seen = True
        if self._watched:
            self._updates.heard_backward()

    def stepping(self, index: int, optimiser: torch.optim.Optimizer, has_closure: bool) -> None:
        if self._watched:
            self._updates.stepping(index, optimiser, has_closure=has_closure)

    def stepped(self, index: int, has_closure: bool) -> None:
        if self.closed:
            return
        if self._watched:
            moved = self._updates.stepped(index, has_closure=has_closure)
            if not moved and self._passes.empty:
                return  # an optimiser that was called before there was anything to do
        if self._updates.ends(index):
            self.end_step()

    def arriving(self, name: str, parameter: Tensor | None, grad: Tensor) -> None:
        if self._watched and parameter is not None:
            self._updates.arriving(name, parameter, grad)

    def accumulated(self, name: str, parameter: Tensor) -> None:
        if self._watched:
            self._updates.accumulated(name, parameter)

    def heard_loss(self, args: Any, output: Any) -> None:
        """The loss module was called."""
        if not self._watched or not torch.is_grad_enabled() or backward_pass() != -1:
            return
        if len(args) > 1 and "targets" not in self._glances:
            self._glances["targets"] = facts.glances(args[1])
        self._hear_loss(facts.first_float(output))

    def _hear_loss(self, loss: Any) -> None:
        if self._watched and isinstance(loss, Tensor) and loss.is_floating_point() and readable(loss) is None:
            self._passes.heard_loss(loss)
            self._heard_loss_in = self.step
            self._note_graph(loss)

    def log(self, loss: Any) -> None:
        """A loss that the user tells; after the optimiser's step it still belongs to that step."""
        if self._watched and self._root.hidden is None:
            self._late = not self._begun
        elif self._late is None:
            self._late = self.step > 0
        step = self.step - 1 if self._late and self.step > 0 else self.step
        if step == self._heard_loss_in:
            return
        if isinstance(loss, Tensor):
            self._note_graph(loss)
        self._outbox.log(loss, step, self.step)

    def _note_graph(self, loss: Tensor) -> None:
        """The operations that make the loss of the latest output; they are in the facts if the first step tells."""
        if self._output_made >= 0 and "loss_ops" not in self._graph and self.step <= 1:
            self._graph["loss_ops"] = autograd_graph.operations_since(loss, self._output_made)
            self._graph["loss_shape"] = autograd_graph.largest_shape(loss, self._output_made)
            if self.facts:
                self._outbox.add_facts(self._graph)

    # Facts and rows

    @property
    def model(self) -> nn.Module | None:
        """The model, as long as somebody holds it."""
        return self._model()

    @property
    def trained(self) -> tuple[Mapping[int, str], list[torch.optim.Optimizer]]:
        """Names of parameters by identity, and the optimisers."""
        return self._names, self._updates.optimisers

    @property
    def facts(self) -> dict[str, Any]:
        return self._outbox.facts

    def add_facts(self, more: dict[str, Any]) -> None:
        self._outbox.add_facts(more)

    def flush(self) -> None:
        self._outbox.flush(self.step)

    def _describe(self) -> dict[str, Any] | None:
        """What was seen in the first step, as soon as that is over."""
        if self._first is None:
            return None
        calls, self._first = self._first, []
        model, optimisers = self._model(), self._updates.optimisers
        held = self._updates.held() if optimisers else None
        return {
            "modules": facts.modules(self._spots, calls),
            "parameters": [] if model is None else facts.parameters(self._names, model, held, self.start),
            "shared": self._shared,
            "optimisers": [facts.optimiser(optimiser) for optimiser in optimisers],
            "inputs": [glance.read() for glance in self._glances.get("inputs", [])],
            "targets": [glance.read() for glance in self._glances.get("targets", [])],
            **self._mode,
            **self._graph,
        }

    def rows(self) -> pl.DataFrame:
        return self._outbox.rows(self.step)

    # The end

    def close(self, state: State = "complete", message: str | None = None) -> None:
        """Leave nothing behind but rows."""
        if self.closed or os.getpid() != self._process:
            return
        self.closed = True
        self._detach()
        self._passes.close()
        for handle in self._always:
            handle.remove()
        try:
            self._outbox.close(state, self.step, message)
        except Exception as error:
            warn(f"the watch could not write its last rows ({type(error).__name__}: {error})")

    def give_up(self, error: Exception) -> None:
        """Something went wrong in the watch: say so once, and leave training alone."""
        if self.closed:
            return
        try:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            self.close("failed", f"the watch gave up in step {self.step} ({why})")
            warn(f"the watch gave up in step {self.step}, training goes on without it ({why})")
        except Exception:
            self.closed = True

    def _suspend(self) -> None:
        """An evaluation is to be computed the way it is without a watch."""
        self._detach()
        self._suspended = True
        self._handles = [] if self._steps_alone else self._hook(self._root)

    def _resume(self) -> None:
        self._suspended = False
        self._detach()
        self._attach()


def _fast_groups(spots: Sequence[Spot]) -> list[tuple[Spot, list[Spot]]]:
    """Encoder layers, each with everything inside it."""
    return [
        (
            layer,
            [
                spot
                for spot in spots
                if spot is layer or layer.is_root or spot.name.startswith(f"{layer.name}.")
            ],
        )
        for layer in spots
        if isinstance(layer.module(), nn.TransformerEncoderLayer)
    ]


def _calls_itself(module: nn.Module) -> bool:
    """Whether the module is being called from within its own forward pass."""
    calls = 0
    frame: Any = sys._getframe(1)
    while frame is not None and calls < 2:
        calls += frame.f_code.co_name == "_call_impl" and frame.f_locals.get("self") is module
        frame = frame.f_back
    return calls > 1


def _is_transforming() -> bool:
    """Inside torch.func, a trace, or the capture of a CUDA graph, where tensors are not what they seem."""
    if torch._C._functorch.peek_interpreter_stack() is not None or torch._C._get_tracing_state() is not None:
        return True
    return torch.cuda._initialized and torch.cuda.is_current_stream_capturing()


def _mode(model: nn.Module, spots: Sequence[Spot]) -> dict[str, Any]:
    """Training or evaluation, and the modules that are in the other one."""
    known = [(spot.name, spot.module()) for spot in spots]
    other = [name for name, module in known if module is not None and module.training != model.training]
    return {"training": model.training, "in_the_other_mode": other}
