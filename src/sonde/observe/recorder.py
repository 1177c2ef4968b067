"""Follows a training loop step by step, and changes nothing in it.

Nothing is read from the device before a flush.  Modules have hooks in watched steps only; in between, an optimiser's
own hook counts steps and does nothing else.  Gradients are heard by hooks on tensors: hooks on modules for that
purpose break modules that work in place.
"""

import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from sonde.observe import facts
from sonde.observe.attachment import Attachment
from sonde.observe.first_step import FirstStep
from sonde.observe.hooks import Marks, backward_pass
from sonde.observe.outbox import Outbox
from sonde.observe.passes import Passes
from sonde.observe.reductions import readable
from sonde.observe.replacements import GONE, MOST, Content, Replacement, renewed
from sonde.observe.row_sinks import Sink
from sonde.observe.schedule import is_costly, next_watched
from sonde.observe.step_record import Sheet
from sonde.observe.updates import Updates, shared
from sonde.observe.watch_warning import warn
from sonde.observe.watched_modules import Layers, Spot, named_parameters
from sonde.store.schemas import RunState

SHARED_OUT = "num_items_in_batch"  # with it, a model of transformers divides by the samples of all micro-batches
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
        layers: Layers = None,
    ) -> None:
        self.step = 0
        self.closed = False
        self._every = every
        self._outbox = Outbox(sink, run, self._describe)
        self._process, self._thread = os.getpid(), 0
        self._spots, self._layers = list(spots), layers
        self._replaced: list[Replacement] = []
        self._gone: dict[str, str] = {}  # modules that were called in the steps before → why they are not any more
        self._root = next(spot for spot in spots if spot.is_root)
        self._model = weakref.ref(model)
        self._loss = None if loss is None else weakref.ref(loss)
        self._names, self._shared = shared(named_parameters(model))
        self._parameters = [weakref.ref(parameter) for parameter in model.parameters()]
        self._content = Content(self._spots, self._parameters)
        self._passes = Passes(spots, self._parameters)
        self._passes.on_error = self.give_up
        self._updates = Updates(self._names, self._parameters, optimisers, scaler)
        self._steps_alone = not optimisers  # a step ends with the next forward pass after a backward pass

        self._watched = False  # whether the step under way is
        self._next = 0
        self._begun = False  # whether the step has seen a forward pass
        self._backward_seen = False
        self._experimenting = False  # what is called is then no part of the run
        self._late: bool | None = None  # whether losses are logged after the optimiser's step
        self._heard_loss_in = -1  # the last step in which the loss module was heard

        self._first = FirstStep(self._names, self._updates)
        self._hooks = Attachment(
            self,
            self._spots,
            loss=loss,
            names=self._names,
            parameters=self._parameters,
            updates=self._updates,
        )
        try:
            self._start_step()
        except Exception as error:
            self.give_up(error)

    # Steps

    def _start_step(self) -> None:
        """Be all ears if the step that begins is a watched one, and deaf otherwise."""
        watched = self.step == self._next
        self._updates.start()
        self._passes.heard_backward = False
        if watched:
            self._next = next_watched(self.step, self._every)
            self._passes.start(self.step, costly=is_costly(self.step, self._every))
        if self._watched and (not watched or self.step == 1):  # after step 0 it is known which modules are watched
            self._hooks.detach()
        self._watched = watched
        if watched:
            self._hooks.attach()

    def _notice_replacements(self) -> None:
        """Watch what the program has put in place of other modules and parameters, and say so."""
        model = self._model()
        if model is None or self._content.is_as_it_was():
            return
        found = Replacement(self.step)
        self._spots[:], found.modules, found.removed = renewed(model, self._spots, self._layers)
        self._root = next(spot for spot in self._spots if spot.is_root)
        before = {id(known()) for known in self._parameters}
        names, self._shared = shared(named_parameters(model))
        self._names.clear()
        self._names.update(names)
        self._parameters[:] = [weakref.ref(parameter) for parameter in model.parameters()]
        self._content = Content(self._spots, self._parameters)
        self._hooks.renew()
        held = self._updates.held()
        found.parameters = [name for place, name in names.items() if place not in before]
        found.not_in_optimiser = [
            name for place, name in names.items() if name in found.parameters and place not in held
        ] * bool(self._updates.optimisers)
        self._gone = dict.fromkeys(found.removed, GONE)
        self._hooks.detach()
        self._hooks.attach()
        if not (found.modules or found.removed or found.parameters):
            return  # a module under one more name, or a place that was empty
        if len(self._replaced) < MOST:
            self._replaced.append(found)
            self._outbox.add_facts({"replaced": [asdict(known) for known in self._replaced]})
        if len(self._replaced) == 1 or found.not_in_optimiser:
            warn(str(found))

    def end_step(self) -> None:
        if self._watched:
            self._outbox.add(self._sheet())
        self._begun = self._backward_seen = False
        self.step += 1
        self._start_step()
        self._outbox.maybe_flush(self.step)

    def _sheet(self) -> Sheet:
        calls, losses, half = self._passes.collect()
        gone, self._gone = self._gone, {}
        unseen: dict[str, str] = {}
        if self._first.calls is None:
            self._first.calls = calls
            unseen = facts.unseen(self._spots, calls)
            if not calls:
                warn(f"no call of the model was seen in step {self.step}: {facts.NO_CALL}")
        sheet = Sheet(
            self.step,
            calls=[call for call in calls if call.spot.chosen],
            parameters=self._updates.collect(),
            losses=losses,
            scale=self._updates.scale,
            unseen=unseen | gone,
            left=self._updates.left,
            in_eval=self._first.in_eval,
        )
        if half and sheet.scale is None and self._updates.scaler is None:
            sheet.unscaled_reason = UNKNOWN_SCALE
        return sheet

    # What the hooks hear

    def enter(self, spot: Spot, module: nn.Module, args: Any) -> None:
        """A module is called; in an evaluation, in a backward pass or in another thread that is no concern of ours."""
        if self._experimenting or backward_pass() != -1 or module is not spot.module():
            return
        if spot.is_root and self._passes.inside and not _calls_itself(module):
            self._passes.abandon()  # a pass that was interrupted
        if not self._passes.inside:
            if spot.is_root:
                self._hooks.resume()
            if not torch.is_grad_enabled():
                if spot.is_root and self._watched:
                    self._hooks.suspend()
                return
            if _is_transforming():
                return
            self._thread = self._thread or threading.get_ident()
            if self._thread == threading.get_ident():
                if self._steps_alone and spot.is_root and (self._backward_seen or self._passes.heard_backward):
                    self.end_step()
                self._begin(args)
        if self._watched and self._thread == threading.get_ident():
            self._passes.enter(spot, args)

    def _begin(self, args: Any) -> None:
        """A forward pass begins; of the first, inputs and mode are noted."""
        if self._watched and not self._begun:
            self._notice_replacements()
        self._begun = True
        model = self._model()
        self._first.see_inputs(args)
        if self._watched and model is not None:
            self._first.see_mode(model, self._spots)

    def leave(self, spot: Spot, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """A module has returned."""
        if self._experimenting:
            return
        if backward_pass() != -1:
            self._passes.recomputed(spot, output)
            return
        if self._thread and self._thread != threading.get_ident():
            return
        if self._passes.inside:
            self._passes.leave(spot, module, args, kwargs, output)
        if not spot.is_root or self._passes.inside:
            return
        self._hooks.resume()
        if torch.is_grad_enabled():
            self._first.see_inputs(kwargs)
            if isinstance(output, Mapping) and self._loss is None:
                self._hear_loss(output.get("loss"), is_share=kwargs.get(SHARED_OUT) is not None)
            out = facts.first_float(output)
            if self._watched and out is not None and out.requires_grad:
                self._first.see_output(out, (args, kwargs))
            if self._steps_alone:
                self._mark(output, out)

    def _mark(self, output: Any, first: Tensor | None) -> None:
        """Hear a backward pass from whichever tensor of the output it comes.

        Of parameters that are handed out, the first only: they keep their hooks.
        """
        for _, tensor in facts.tensors(output):
            is_made = tensor.grad_fn is not None or tensor is first
            if tensor.is_floating_point() and tensor.requires_grad and is_made:
                hook: Any = tensor.register_hook
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
        if self._experimenting or not self._watched or not torch.is_grad_enabled() or backward_pass() != -1:
            return
        if len(args) > 1:
            self._first.see_targets(args[1])
        self._hear_loss(facts.first_float(output))

    def _hear_loss(self, loss: Any, *, is_share: bool = False) -> None:
        if self._watched and isinstance(loss, Tensor) and loss.is_floating_point() and readable(loss) is None:
            self._passes.heard_loss(loss, is_share=is_share)
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
            if loss.is_meta:
                warn("a loss on the device meta has no value: it is not recorded")
                return
            self._note_graph(loss)
        self._outbox.log(loss, step, self.step)

    def _note_graph(self, loss: Tensor) -> None:
        """The loss of the latest output; what it is made of is in the facts if the first step tells."""
        if self.step <= 1 and self._first.see_loss(loss) and self.facts:
            self._outbox.add_facts(self._first.graph)

    @contextmanager
    def not_listening(self) -> Iterator[None]:
        """What is called inside is an experiment, and no part of the run."""
        self._experimenting = True
        try:
            yield
        finally:
            self._experimenting = False

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
    def start(self) -> facts.Start | None:
        """The parameters before the first step."""
        return self._first.start

    @property
    def facts(self) -> dict[str, Any]:
        return self._outbox.facts

    def add_facts(self, more: dict[str, Any]) -> None:
        self._outbox.add_facts(more)

    def flush(self) -> None:
        self._outbox.flush(self.step)

    def _describe(self) -> dict[str, Any] | None:
        """What was seen in the first step, as soon as that is over."""
        return self._first.tell(self._spots, self._model(), self._shared)

    def rows(self) -> pl.DataFrame:
        return self._outbox.rows(self.step)

    # The end

    def close(self, state: RunState = "complete", message: str | None = None) -> None:
        """Leave nothing behind but rows."""
        if self.closed or os.getpid() != self._process:
            return
        self.closed = True
        self._hooks.remove()
        self._passes.close()
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
