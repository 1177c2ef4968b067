"""Records a training loop step by step, and changes nothing in it.

Nothing is read from the device before a flush.  Modules have hooks in watched steps only; in between, an optimiser's
own hook counts steps and does nothing else.  Gradients are recorded by hooks on tensors: backward hooks on modules
break modules that work in place.
"""

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from sonde.metrics.reductions import readable
from sonde.metrics.rows import Reading
from sonde.observe import facts, warn
from sonde.observe.hooks import Hook, Hooks
from sonde.observe.passes import Passes
from sonde.observe.ring import Ring
from sonde.observe.row_writer import RowSink, RowWriter
from sonde.observe.shards import Shards
from sonde.observe.spike_steps import SpikeSteps
from sonde.observe.step_record import StepRecord, backward_pass, is_costly, next_watched
from sonde.observe.taps import BEGINS, Tap
from sonde.observe.updates import Updates
from sonde.observe.watched_modules import COMPILED, REMOVED, REPLICATED, Replacement, WatchedModel, WatchedModule
from sonde.store.schemas import RunState

_SHARED_OUT = "num_items_in_batch"  # with it, a model of transformers divides by the samples of all micro-batches
_MOST_REPLACEMENTS = 20  # in the facts; a program may replace something in every step
_UNKNOWN_SCALE = "computed in float16 under an unknown scale of the loss: give scaler="


class Recorder:
    """All of a watch but the handle that the user has."""

    def __init__(
        self,
        model: WatchedModel,
        optimisers: Sequence[torch.optim.Optimizer],
        *,
        loss: nn.Module | None,
        every: int,
        scaler: Any,
        sink: RowSink,
        run: str,
    ) -> None:
        self.step = 0
        self.closed = False
        self._every = every
        self._process, self._thread = os.getpid(), 0
        self._replaced: list[Replacement] = []
        self._gone: dict[str, str] = {}  # modules that were called in the steps before → why they are not any more
        self._model = model
        self._loss = None if loss is None else weakref.ref(loss)
        self._updates = Updates(model, optimisers, scaler)
        self._passes = Passes(model, self.give_up, self._updates.skipped_before)
        self._shards = Shards(model, every, lambda pooled: self.add_facts({"ranks": pooled}))
        self._ring = Ring(active=bool(optimisers))
        self._steps_alone = not optimisers  # a step ends with the next forward pass after a backward pass

        self._watched = False  # whether the step under way is
        self._next = 0
        self._begun = False  # whether the step has seen a forward pass
        self._backward_seen = False
        self._experimenting = False  # what is called then is no part of the run
        self._told_of_graphs = False
        self._late: bool | None = None  # whether losses are logged after the optimiser's step
        self._loss_recorded_in = -1  # the last step in which the loss module was called
        self._logged_at: tuple[int, int, int | None] = -1, -1, None  # the last log: now, its step, scale's version
        self._targets: list[Tensor] = []  # of the step under way: mean and spread of what the loss module was given

        self._first = facts.FirstStep(model, self._updates)
        self._writer = RowWriter(sink, run, self._first.facts)
        self._spikes = SpikeSteps(self._ring, self._writer, self._shards.places)
        self._hooks = Hooks(self, model, loss, self._updates)
        try:
            self._start_step()
        except Exception as error:
            self.give_up(error)

    # Steps

    def _start_step(self) -> None:
        """Attach hooks if the step that begins is a watched one; remove them otherwise."""
        dense = self._spikes.is_dense(self.step)
        self._passes.backward_seen = False
        if not (dense or self._watched or self.step == self._next or self._updates.several):
            return
        watched, before = self.step == self._next or dense, self._watched
        self._watched = watched
        self._updates.start()
        if before and (not watched or self.step == 1):  # after step 0 it is known which modules are watched
            self._passes.stop_listening()
            self._hooks.detach()
        if watched:
            self._next = max(self._next, next_watched(self.step, self._every))
            self._updates.costly = is_costly(self.step, self._every) or dense
            self._passes.start(self.step, costly=self._updates.costly)
            self._hooks.attach()

    def _notice_replacements(self) -> None:
        """Watch modules and parameters that the program has replaced, and warn about them."""
        model = self._model.model()
        if model is None or self._model.is_unchanged():
            return
        found = self._model.renew(model, self.step)
        if self._updates.optimisers:
            held = self._updates.held()
            free = {name for place, name in self._model.names.items() if place not in held}
            found.not_in_optimiser = [name for name in found.parameters if name in free]
        self._gone = dict.fromkeys(found.removed, REMOVED)
        self._hooks.renew()
        if not (found.modules or found.removed or found.parameters):
            return  # a module under one more name, or a place that was empty
        if len(self._replaced) < _MOST_REPLACEMENTS:
            self._replaced.append(found)
            self._writer.add_facts({"replaced": [asdict(known) for known in self._replaced]})
        if len(self._replaced) == 1 or found.not_in_optimiser:
            warn(str(found))

    def end_step(self) -> None:
        """End the step: pass on its record if it is a watched one, and start the next."""
        self._spikes.end_step(self.step, watched=self._watched, alone=not self._shards.joined)
        if self._watched:
            self._writer.add(self._record())
        self._begun = self._backward_seen = False
        self.step += 1
        self._start_step()
        self._writer.maybe_flush(self.step)

    def _record(self) -> StepRecord:
        calls, losses, half = self._passes.collect()
        parameters = self._updates.collect()
        self._shards.reduce(parameters, calls, losses, self._spikes, self.step)
        gone, self._gone = self._gone, {}
        targets, self._targets = self._targets, []
        unseen: dict[str, str] = {}
        if self._first.calls is None:
            self._first.calls = calls
            unseen = facts.not_called(self._model.modules, calls)
            if not calls and COMPILED not in unseen.values() and self._model.root.hidden != REPLICATED:
                warn(f"no call of the model was seen in step {self.step}: {facts.NO_CALL}")
        elif self._model.is_compiled and not any(call.watched.tapped for call in calls):
            unseen = facts.not_called(self._model.modules, calls)
        if COMPILED in unseen.values() and not self._told_of_graphs:
            self._told_of_graphs = True
            warn("the model runs in a graph that was compiled without the watch: call watch.recompile()")
        record = StepRecord(
            self.step,
            calls=[call for call in calls if call.watched.chosen],
            parameters=parameters,
            losses=losses,
            of_samples=self._passes.of_samples,
            scale=self._updates.scale,
            unseen=unseen | gone,
            stale=self._updates.stale,
            in_eval=self._first.in_eval,
            targets=targets,
        )
        if half and record.scale is None and self._updates.scaler is None:
            record.unscaled_reason = _UNKNOWN_SCALE
        return record

    # What the hooks call

    def before_call(self, watched: WatchedModule, module: nn.Module, args: Any) -> None:
        """A module is called.  Calls in an evaluation, in a backward pass or in another thread are not recorded."""
        if self._experimenting or backward_pass() != -1 or module is not watched.module():
            return
        if watched.is_root and self._passes.inside and not _calls_itself(module):
            self._passes.abandon()  # a pass that was interrupted
        if not self._passes.inside:
            if watched.is_root:
                self._hooks.resume()
            if not torch.is_grad_enabled():
                if watched.is_root and self._watched:
                    self._hooks.suspend()
                return
            if _is_transforming():
                return
            self._thread = self._thread or threading.get_ident()
            if self._thread == threading.get_ident():
                if self._steps_alone and watched.is_root and (self._backward_seen or self._passes.backward_seen):
                    self.end_step()
                self._begin(args)
        if self._watched and self._thread == threading.get_ident():
            self._passes.before_call(watched, args)

    def _begin(self, args: Any) -> None:
        """A forward pass begins; of the first, inputs and mode are noted."""
        if self._watched and not self._begun:
            self._notice_replacements()
        self._begun = True
        model = self._model.model()
        self._first.record_inputs(args)
        if self._watched and model is not None and self._first.record_modes(model) and self.facts:
            self._writer.add_facts(self._first.graph)

    def after_call(self, watched: WatchedModule, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """A module has returned."""
        if self._experimenting:
            return
        if backward_pass() != -1:
            self._passes.record_recomputed(watched, output)
            return
        if self._thread and self._thread != threading.get_ident():
            return
        if self._passes.inside:
            self._passes.after_call(watched, module, args, kwargs, output)
        if not watched.is_root or self._passes.inside:
            return
        self._hooks.resume()
        if torch.is_grad_enabled():
            self._first.record_inputs(kwargs)
            if isinstance(output, Mapping) and self._loss is None:
                self._record_loss(output.get("loss"), is_share=kwargs.get(_SHARED_OUT) is not None)
            out = facts.first_float(output)
            if self._watched and out is not None and out.requires_grad:
                self._first.record_output(out, (args, kwargs))
                self._passes.record_routers(out)
            if self._steps_alone:
                self._hook_outputs(output, out)

    @contextmanager
    def inside_graph(self, tap: Tap | None) -> Iterator[None]:
        """What is called now is called by a graph of torch.compile; `tap` is the call that has returned."""
        self._passes.tap = tap or BEGINS
        try:
            yield
        finally:
            self._passes.tap = None

    def tapped_gradient(self, watched: WatchedModule, number: int, grad: Tensor) -> None:
        """A gradient comes back to an output inside a graph."""
        if watched.is_root and self._steps_alone:
            self.on_backward(grad)
        self._passes.record_tapped(number, grad)

    def _hook_outputs(self, output: Any, first: Tensor | None) -> None:
        """Hook every tensor of the output, to notice a backward pass from any of them.

        Of parameters in the output, hook the first only: they keep their hooks.
        """
        for _, tensor in facts.tensors(output):
            is_made = tensor.grad_fn is not None or tensor is first
            if tensor.is_floating_point() and tensor.requires_grad and is_made:
                register: Any = tensor.register_hook
                register(Hook(self.give_up, self.on_backward))

    def on_backward(self, grad: Tensor) -> None:
        """A backward pass came through the model's output."""
        self._backward_seen = True
        if self._watched:
            self._updates.on_backward()

    def before_optimiser_step(self, index: int, optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """An optimiser is about to step.  Of a closure that it calls several times, the first evaluation counts."""
        if not self._watched:
            return None
        closure = _closure(args, kwargs)
        self._updates.before_step(index, optimiser, has_closure=closure is not None)
        if closure is None:
            return None
        once = self._evaluated_once(index, closure)
        return (args[0], once, *args[2:]) if len(args) > 1 else args, kwargs | (
            {} if len(args) > 1 else {"closure": once}
        )

    def _evaluated_once(self, index: int, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure; after its first call nothing is recorded until the optimiser has stepped."""

        def evaluate() -> Any:
            try:
                found = closure()
            except BaseException:
                self._experimenting = False
                raise
            if not self._experimenting:
                self._experimenting = True
                try:
                    self._updates.after_evaluation(index)
                except Exception as error:
                    self.give_up(error)
            return found

        return evaluate

    def after_optimiser_step(self, index: int, optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimiser has stepped, which may end the step; a step that a GradScaler skips is none."""
        self._experimenting = False
        if self.closed:
            return
        if self._updates.is_skipped(index, optimiser):
            self._ring.skip()
            return
        if self._watched:
            moved = self._updates.after_step(index)
            if not moved and self._passes.empty:
                return  # an optimiser that was called before there was anything to do
        if _closure(args, kwargs) is None:
            self._ring.record(index, optimiser, self._model.names, self._updates.scale_version)
        if self._updates.ends_step(index):
            self.end_step()

    def before_accumulation(self, name: str, parameter: "weakref.ref[Tensor]", grad: Tensor) -> None:
        """A gradient is about to be added to a parameter's."""
        there = parameter()
        if self._watched and there is not None:
            self._updates.before_accumulation(name, there, grad)

    def after_accumulation(self, name: str, parameter: Tensor) -> None:
        """A parameter has its gradient."""
        if self._watched:
            self._updates.after_accumulation(name, parameter)

    def after_loss_call(self, module: nn.Module, args: Any, output: Any) -> None:
        """The loss module was called."""
        if self._experimenting or not torch.is_grad_enabled() or backward_pass() != -1:
            return
        loss = facts.first_float(output)
        if loss is not None and readable(loss) is None:
            self._ring.record_loss(loss, self._updates.scale_version)
        if not self._watched:
            return
        if len(args) > 1:
            self._first.record_targets(args[1], self.step)
            if isinstance(args[1], Tensor) and args[1].numel() and readable(args[1]) is None:
                self._targets.append(facts.mean_and_spread(args[1].detach().float()))
        self._record_loss(loss)

    def _record_loss(self, loss: Any, *, is_share: bool = False) -> None:
        if self._watched and isinstance(loss, Tensor) and loss.is_floating_point() and readable(loss) is None:
            self._passes.record_loss(loss, is_share=is_share)
            self._loss_recorded_in = self.step
            self._note_graph(loss)

    def log(self, loss: Any, success: Mapping[str, Any]) -> None:
        """Record what the user logs; after the optimiser's step it still belongs to that step."""
        if loss is not None and self._is_of_skipped():
            return
        if self._watched and self._model.root.hidden is None:
            self._late = not self._begun
        elif self._late is None:
            self._late = self.step > 0
        step = self.step - 1 if self._late and self.step > 0 else self.step
        for name, value in success.items():
            self._writer.log_success(name, value, step, self.step)
        if loss is None:
            return
        self._logged_at = self.step, step, self._updates.scale_version
        if step != self._loss_recorded_in or self._drops_losses_of_samples(step):
            self._log_loss(loss, step)
        elif step <= 1 and isinstance(loss, Tensor) and loss.grad_fn is not None:
            self._first.record_sum(loss)
            self._writer.add_facts({"further_terms": self._first.graph.get("further_terms")})

    def _drops_losses_of_samples(self, step: int) -> bool:
        """Whether the losses that were recorded of this step are those of single samples, and are now dropped."""
        if step != self.step:
            return self._writer.drop_losses_of_samples(step)
        if self._passes.of_samples:
            self._passes.drop_losses()
        return self._passes.of_samples

    def _is_of_skipped(self) -> bool:
        """Whether a loss that is logged now is of a step that a GradScaler skipped; if the last one was, it is dropped.

        One of two losses was, if no step ended between them and the scale was updated.
        """
        now, step, version = self._logged_at
        one = len(self._updates.optimisers) == 1
        if now != self.step or version in (None, self._updates.scale_version) or not one:
            return False
        if step < now:  # logged after the optimiser's step
            return True
        self._writer.drop_losses(step)
        self._ring.drop_logged(step)
        return False

    def _log_loss(self, loss: Any, step: int) -> None:
        if isinstance(loss, Tensor):
            if loss.is_meta:
                warn("a loss on the device meta has no value: it is not recorded")
                return
            self._note_graph(loss)
        self._ring.log(step, loss)
        self._writer.log(loss, step, self.step)

    def _note_graph(self, loss: Tensor) -> None:
        """Add the operations of the loss to the facts, if they are seen in the first steps."""
        if self.step <= 1 and self._first.record_loss(loss) and self.facts:
            self._writer.add_facts(self._first.graph)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing: what is called inside is an experiment, and no part of the run."""
        self._experimenting = True
        try:
            yield
        finally:
            self._experimenting = False

    def recompile(self) -> None:
        """Drop the graphs that torch.compile has made, so that new ones get taps."""
        self._hooks.keep()
        torch.compiler.reset()

    # Facts and rows

    @property
    def model(self) -> nn.Module | None:
        """The model, as long as it exists."""
        return self._model.model()

    @property
    def trained(self) -> tuple[Mapping[int, str], list[torch.optim.Optimizer]]:
        """Names of parameters by identity, and the optimisers."""
        return self._model.names, self._updates.optimisers

    @property
    def start(self) -> facts.InitialParameters | None:
        """The parameters before the first step."""
        return self._first.start

    @property
    def facts(self) -> dict[str, Any]:
        """What was recorded once."""
        return self._writer.facts

    def add_facts(self, more: dict[str, Any]) -> None:
        """Add facts to those that the run stores."""
        self._writer.add_facts(more)

    def add_rows(self, rows: pl.DataFrame) -> None:
        """Add rows to those that the run stores."""
        self._writer.add_rows(rows, self.step)

    def add_readings(self, readings: list[Reading]) -> None:
        """Add rows of the whole network, of the step under way."""
        self._writer.add(StepRecord(self.step, measured=readings))

    def flush(self) -> None:
        """Write all records that wait."""
        self._spikes.flush(self.step)
        self._writer.flush(self.step)

    def rows(self) -> pl.DataFrame:
        self._spikes.flush(self.step)
        return self._writer.rows(self.step)

    # The end

    def close(self, state: RunState = "complete", message: str | None = None) -> None:
        """Remove every hook, and write what is left."""
        if self.closed or os.getpid() != self._process:
            return
        self.closed = True
        self._hooks.remove()
        self._passes.close()
        self._shards.leave()
        try:
            self._spikes.flush(self.step)
            self._writer.close(state, self.step, message)
        except Exception as error:
            warn(f"the watch could not write its last rows ({type(error).__name__}: {error})")

    def give_up(self, error: Exception) -> None:
        """After an error in the watch: close it with one warning, and let training go on."""
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


def _closure(args: Any, kwargs: Any) -> Callable[[], Any] | None:
    """The closure of an optimiser's step.  The arguments of a hook of an optimiser begin with the optimiser itself."""
    found: Callable[[], Any] | None = args[1] if len(args) > 1 else kwargs.get("closure")
    return found
