"""Records the forward and backward passes of the step under way: what is read of each module's call, and when."""

import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sonde.metrics import reductions
from sonde.observe import attention, operations
from sonde.observe.facts import first_float
from sonde.observe.hooks import Hook
from sonde.observe.step_record import (
    BY_KEYWORD,
    IN_PLACE,
    NEEDS_NONE,
    NO_GRADIENT,
    VIEW,
    CallKey,
    Gradient,
    ModuleCall,
    Output,
    Pass,
    RecordedLoss,
    RouterChoices,
    StreamNorms,
    backward_pass,
    differentiated,
    pool,
)
from sonde.observe.taps import Tap
from sonde.observe.watched_modules import WHOLE_MODEL, WatchedModel, WatchedModule

_CALLS = 32  # of one module in a pass; those beyond are not read
_KEPT = 64  # passes that wait for a backward pass; older ones are kept alive by their autograd graph

_AMBIGUOUS = "recomputed in a checkpoint, where its calls cannot be told apart"
_NO_BACKWARD = f"more than {_KEPT} forward passes, and no gradient came back to any"


class Passes:
    """What a watched step has recorded so far."""

    def __init__(
        self, model: WatchedModel, on_error: Callable[[Exception], None], skipped_before: Callable[[], bool]
    ) -> None:
        self._on_error = on_error  # for exceptions in a tensor's hook
        self._skipped_before = skipped_before  # whether the passes before belong to a step that was skipped
        self._model = model
        self._handles: list[Any] = []
        self._passes: list[Pass] = []  # the latest
        self._reached: list[Pass] = []  # those that a gradient came back to, not yet pooled
        self.tap: Tap | None = None  # of the call inside a graph that is recorded now
        self.start(0, costly=False)

    def start(self, step: int, *, costly: bool) -> None:
        """Start a step, and forget the one before."""
        self.close()
        self.step, self._costly = step, costly
        self.backward_seen = False
        self._passes = []
        self._begun = 0  # how many there were
        self._reached = []
        self._task: int | None = None  # the latest backward pass
        self._pooled: dict[CallKey, ModuleCall] = {}
        self._losses: list[RecordedLoss] = []
        self._cleared = 0  # how often gradients were cleared between two backward passes
        self._half = False
        self._stack: list[tuple[WatchedModule, Tensor | None, int]] = []
        self._current: Pass | None = None
        self._in_attention = 0
        self._compiled = self._model.is_compiled
        if self._compiled:  # a graph is traced with the function as it is now, and kept as long as it stays so
            attention.add_listener(self.record_attention)
        self._tapped: dict[int, tuple[Pass, Gradient]] = {}  # gradients that come back by the number of a tap

    def close(self) -> None:
        """Remove every hook and listener."""
        self.stop_listening()
        of_passes = (known.handles for known in (*self._passes, *self._reached))
        for handle in itertools.chain(self._handles, *of_passes):
            handle.remove()
        self._handles = []
        self.step = -1

    def stop_listening(self) -> None:
        """Leave attention alone."""
        attention.remove_listener(self.record_attention)

    @property
    def inside(self) -> bool:
        """Whether a module is running."""
        return bool(self._stack)

    @property
    def empty(self) -> bool:
        """Whether the step has no pass."""
        return not self._passes and not self._reached and not self._pooled

    def abandon(self) -> None:
        """Forget a pass that did not end."""
        if self._stack and self._current in self._passes:
            self._passes.remove(self._current)
        self._stack, self._in_attention = [], 0

    def collect(self) -> tuple[list[ModuleCall], list[RecordedLoss], bool]:
        """Calls, losses, and whether float16 took part: of the passes that a gradient came back to, else of all."""
        self._pool_done()
        if not self._pooled:
            for known in self._passes:
                self._pool(known)
            if self._begun > _KEPT:
                for call in self._pooled.values():
                    call.outputs, call.reason = (), _NO_BACKWARD
        return list(self._pooled.values()), differentiated(self._losses), self._half

    def _pool_done(self) -> None:
        """Pool the passes that a gradient came back to, in their order."""
        if not self._reached:
            return
        for known in sorted(self._reached, key=lambda known: known.number):
            self._pool(known)
        self._reached = []
        self._passes = [known for known in self._passes if known.backward is None]

    def _pool(self, known: Pass) -> None:
        self._handles += known.handles
        known.handles = []
        self._half |= known.half
        for key, call in known.calls.items():
            there = self._pooled.get(key)
            if there is None:
                self._pooled[key] = call
            elif there is not call:
                pool(there, call)

    # Forward

    def before_call(self, watched: WatchedModule, args: Any) -> None:
        """A module is called."""
        if not self._stack:
            self._begin(watched)
        self._in_attention += watched.is_attention
        first = next((arg for arg in args if isinstance(arg, Tensor)), None)
        if self.tap is not None:  # the graph may use its memory again: it comes once more after the call
            first = None
        self._stack.append((watched, first, -1 if first is None or first.is_inference() else first._version))

    def _begin(self, watched: WatchedModule) -> None:
        """A pass of the whole model is a new one; a call of a part belongs to the last, if that is still open."""
        last = self._passes[-1] if self._passes else None
        if watched.is_root or last is None or last.backward is not None:
            dropped = self._costly and last is not None and last.backward is not None and self._are_cleared()
            self._pool_done()
            del self._passes[: max(0, len(self._passes) - _KEPT + 1)]
            self._begun += 1
            last = Pass(self.step, self._begun, costly=self._costly and (dropped or not (self._passes or self._pooled)))
            self._passes.append(last)
        self._current = last
        attention.add_listener(self.record_attention)

    def after_call(self, watched: WatchedModule, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """A module has returned, or has raised an exception: then it has no output."""
        if not self._stack or self._stack[-1][0] is not watched:
            return
        _, first, version = self._stack.pop()
        self._in_attention -= watched.is_attention
        known = self._current
        if not self._stack and not self._compiled:
            self.stop_listening()
        if known is None:
            return
        if output is None and sys.exc_info()[0] is not None:
            if not self._stack and known in self._passes:
                self._passes.remove(known)
            return
        number = known.counts.get(watched.name, 0)
        known.counts[watched.name] = number + 1
        if number >= _CALLS:
            return
        out = first_float(output)
        if self.tap is not None:
            first = next((arg for arg in args if isinstance(arg, Tensor)), None)
        by_keyword = first is None
        if by_keyword:
            first = next((value for value in kwargs.values() if isinstance(value, Tensor)), None)
        same = out is not None and first is not None and first.is_floating_point() and first.shape == out.shape
        if watched.chosen is None:
            watched.chosen = same or watched.is_root
        if not watched.chosen and not watched.is_root:
            return
        call = ModuleCall(watched, number, input_shape=() if first is None else tuple(first.shape))
        known.calls[call.key] = call
        if watched.units is not None:
            known.units = watched.units
        if watched.time_first and first is not None and first.dim() == 3:
            known.sequence = tuple(first.shape[:2])
        self._read(known, call, out)
        if call.outputs and same and first is not None:
            changed = self.tap.in_place if self.tap else not first.is_inference() and first._version != version
            reason = BY_KEYWORD if by_keyword else IN_PLACE if changed else reductions.readable(first)
            self._compare(known, call, first, out, reason)
        if call.outputs and watched.normalises and first is not None and reductions.readable(first) is None:
            call.inputs = (self._input(known, first),)
        if isinstance(module, nn.MultiheadAttention) and (self.tap is None or self.tap.reason is None):
            found = attention.read_module(module, args, kwargs)
            call.attention = () if found is None else (found if known.costly else found[:2],)
        if known.attention:
            call.attention = (*call.attention, *known.attention.pop(call.key, ()))

    def _read(self, known: Pass, call: ModuleCall, out: Tensor | None) -> None:
        """Read the output of the module."""
        call.reason = "the module returned no floating-point tensor" if out is None else reductions.readable(out)
        call.reason = self.tap.reason or call.reason if self.tap else call.reason
        if out is None or call.reason is not None:
            return
        call.shape = tuple(out.shape)
        known.half |= out.dtype == torch.float16
        x = out.detach()
        lasts = self._lasts(out)
        seen = known.known(out) if lasts else None
        summary, gradient = seen or (Output(reductions.norms(x), x.numel()), None)
        if gradient is None:
            gradient = self._expect_gradient(known, out)
            if lasts:
                known.remember(out, summary, gradient)
        call.outputs, call.gradients = (summary,), (gradient,)
        axis = _unit_axis(x, known.units)
        if call.watched.activation and x.dim():
            bounds = reductions.unit_bounds(x, axis, never_negative=call.watched.never_negative)
            call.unit_bounds = (bounds,)
            summary.maxima = bounds[1]
            if call.watched.bounds is not None:
                call.at_bounds = (reductions.at_bounds(x, call.watched.bounds),)
        summary.sums = reductions.sums(x) if summary.sums is None else summary.sums
        summary.maxima = reductions.maxima(x) if summary.maxima is None else summary.maxima
        if known.costly and x.dim() > 1:
            call.gram, call.tails = reductions.gram(x, axis), reductions.tails(x)

    def _lasts(self, x: Tensor) -> bool:
        """Whether a change of the tensor would be noticed.  Inside a graph it is not: memory is used again."""
        return self.tap is None and not x.is_inference()

    def _expect_gradient(self, known: Pass, out: Tensor) -> Gradient:
        """Hook the tensor, to record the gradient that comes back to it.  Inside a graph a tap does so."""
        if self.tap is not None:
            gradient = Gradient(NO_GRADIENT if self.tap.needs_grad else NEEDS_NONE)
            self._tapped[self.tap.number] = known, gradient
            return gradient
        if not out.requires_grad:
            return Gradient(NEEDS_NONE)
        gradient = Gradient(VIEW if out._is_view() else NO_GRADIENT)
        register: Any = out.register_hook
        known.handles.append(register(Hook(self._on_error, self.record_gradient, known, gradient)))
        return gradient

    def _compare(self, known: Pass, call: ModuleCall, first: Tensor, out: Tensor | None, reason: str | None) -> None:
        call.stream_reason = reason
        if reason is None and out is not None:
            before = self._input(known, first)
            steps, dots = reductions.against_input(first.detach(), out.detach())
            call.streams = (StreamNorms(steps, dots, before.norms, call.outputs[0].norms),)

    def _input(self, known: Pass, first: Tensor) -> Output:
        """What was read of the tensor as another module's output; else read it now."""
        lasts = self._lasts(first)
        seen = known.known(first) if lasts else None
        if seen is not None:
            return seen[0]
        summary = Output(reductions.norms(first.detach()), first.numel())
        if lasts:
            known.remember(first, summary, None)
        return summary

    def record_attention(
        self, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
    ) -> None:
        """`scaled_dot_product_attention` was called, by the innermost module that is running."""
        known = self._current
        if not self._stack or self._in_attention or known is None or backward_pass() != -1:
            return
        if reductions.readable(query) is not None or query.dim() < 3:
            return
        watched = self._stack[-1][0]
        number = known.counts.get(watched.name, 0)
        try:
            found = attention.read_attention(query, key, mask, is_causal, scale)
            known.attention.setdefault((watched.name, number), []).append(found if known.costly else found[:2])
        except Exception as error:
            self._on_error(error)

    def record_routers(self, out: Tensor) -> None:
        """The model returned: in a costly step, read what its routers chose, before the graph is freed."""
        known = self._current
        if known is None or not known.costly:
            return
        for name, probabilities, chosen, gates in operations.routers(out, self._model.names):
            call = known.calls.get((name, 0))
            if call is not None:
                load = reductions.router_load(chosen, probabilities.shape[-1])
                call.router = RouterChoices(load, reductions.entropy(probabilities), self._mixture(known, call))
                known.handles.append(gates.register_prehook(Hook(self._on_error, call.router.record_gates)))

    def _mixture(self, known: Pass, router: ModuleCall) -> Gradient | None:
        """The gradient of the module around a router that returns a vector of the router's input for each token."""
        name, parts = router.watched.name, router.input_shape
        while name != WHOLE_MODEL:
            name = name.rpartition(".")[0] or WHOLE_MODEL
            call = known.calls.get((name, 0))
            if call is None or not call.gradients or call.shape[-1:] != parts[-1:]:
                continue
            if math.prod(call.shape) == math.prod(parts):
                call.gradients[0].keeps_tokens = True
                return call.gradients[0]
        return None

    def record_loss(self, loss: Tensor, *, is_share: bool) -> None:
        """Record a loss.  It counts if a gradient comes back to it."""
        if not self._passes:
            return
        recorded = RecordedLoss(loss.detach().mean().reshape(1), is_share)
        self._losses.append(recorded)
        if loss.requires_grad:
            register: Any = loss.register_hook
            entries = None if loss.numel() == 1 else loss.detach().clone()
            self._handles.append(register(Hook(self._on_error, recorded.record_weight, entries)))

    @property
    def of_samples(self) -> bool:
        """Whether gradients are made one by one, as of single samples (DP-SGD): the last loss is one of many."""
        return self._cleared > 1

    def drop_losses(self) -> None:
        """Forget the losses so far."""
        self._losses = []

    # Backward

    def record_gradient(self, known: Pass, gradient: Gradient, grad: Tensor | None) -> None:
        """A gradient comes back to an output of this pass."""
        if known.step != self.step or grad is None:
            return
        self.backward_seen = True
        if known.backward is None:
            self._begin_backward(known)
        gradient.fired += 1
        if gradient.fired > 1 or reductions.readable(grad) is not None:
            return
        grad = grad.detach()
        gradient.norms, gradient.entries = reductions.norms(grad), grad.numel()
        gradient.samples = gradient.norms.numel()
        if gradient.keeps_tokens:
            gradient.tokens = (grad != 0).any(-1).flatten()
        if known.costly and grad.dim() > 1:
            if known.sequence == grad.shape[:2] and grad.dim() > 2:  # times come before samples
                grad = grad.transpose(0, 1)
                gradient.halves_samples = len(grad)
            gradient.halves = reductions.halves(grad) if len(grad) > 1 else None

    def record_tapped(self, number: int, grad: Tensor) -> None:
        """A gradient comes back to an output inside a graph."""
        if number in self._tapped:
            self.record_gradient(*self._tapped[number], grad)

    def _begin_backward(self, known: Pass) -> None:
        """If gradients were cleared without a step, or a step was skipped, drop what came before."""
        known.backward = backward_pass()
        self._reached.append(known)
        if known.backward == self._task:
            return
        self._task = known.backward
        skipped = self._skipped_before()
        if not skipped and not self._are_cleared():
            return
        self._cleared += not skipped and (len(self._reached) > 1 or bool(self._pooled))
        self._reached = [one for one in self._reached if one.backward == known.backward]
        self._passes = [one for one in self._passes if one.backward in (None, known.backward)]
        self._losses = [one for one in self._losses if one.backward in (None, known.backward)]
        self._pooled = {}

    def _are_cleared(self) -> bool:
        """Whether no parameter has a gradient.  In the first step, when no GradScaler was seen yet, zeros are none."""
        grads = [parameter.grad for parameter in self._model.parameters if parameter.grad is not None]
        first = self.step == 0 and all(type(grad) is Tensor and reductions.readable(grad) is None for grad in grads)
        return not grads or (first and not any(bool(grad.any()) for grad in grads))

    def record_recomputed(self, watched: WatchedModule, output: Any) -> None:
        """A module is called again in a backward pass (checkpointing), and its gradient may come only now."""
        task = backward_pass()
        waiting = [known for known in self._passes if known.backward in (None, task)]
        calls = [(known, call) for known in waiting for call in known.calls.values() if call.watched is watched]
        waiting_calls = [call for _, call in calls if call.gradients and call.gradients[-1].reason == NEEDS_NONE]
        out = first_float(output)
        if not waiting_calls or out is None or not out.requires_grad or reductions.readable(out) is not None:
            return
        if len(calls) > 1:
            for call in waiting_calls:
                call.gradients = (Gradient(_AMBIGUOUS),)
            return
        known, call = calls[0]
        call.gradients = (self._expect_gradient(known, out),)


def _unit_axis(x: Tensor, units: int | None) -> int:
    """Where the units are: the last axis, channels of maps."""
    if x.dim() < 3:
        return -1
    if units is None:
        return 1 if x.dim() > 3 else -1
    return units
