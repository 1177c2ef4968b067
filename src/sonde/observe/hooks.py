"""The hooks of a watch: some stay for as long as it is open, those on modules and parameters for watched steps only.

Hooks are part of a module's state: a pickled model would name classes of this package, and TorchScript would try to
compile them.  While a watch is open, `nn.Module` leaves them out of copies, files and scripts.
"""

import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sonde.observe import taps
from sonde.observe.facts import first_float
from sonde.observe.updates import Updates
from sonde.observe.watched_modules import FROZEN, WatchedModel, WatchedModule, has_fast_path, is_lazy

if TYPE_CHECKING:
    from sonde.observe.recorder import Recorder


class Hook:
    """Calls `to(*known, *args)`.  An exception ends the watch and never reaches the training loop."""

    def __init__(self, on_error: Callable[[Exception], None], to: Callable[..., Any], *known: Any) -> None:
        self.on_error, self.to, self.known = on_error, to, known

    def __call__(self, *args: Any) -> Any:
        try:
            return self.to(*self.known, *args)
        except Exception as error:
            self.on_error(error)

    def __reduce__(self) -> Any:
        """For modules that copy or pickle themselves: a function that does nothing and that every Python has."""
        return getattr, (nullcontext(), "__exit__")


class LossHook(Hook):
    """A hook on a loss module, which does nothing while torch.compile traces the module."""

    def __call__(self, *args: Any) -> None:
        if not torch.compiler.is_compiling():
            super().__call__(*args)


class ModuleHook(Hook):
    """A hook on a module.  While torch.compile traces the module, it adds taps to the graph (`sonde.observe.taps`)."""

    def __init__(self, recorder: "Recorder", to: Callable[..., None], watched: WatchedModule, switch: int) -> None:
        super().__init__(recorder.give_up, to, watched)
        self.recorder, self.watched, self.switch = recorder, watched, switch
        self.number = taps.number_of(self)

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> Any:
        if not taps.switches[self.switch]:
            return None
        if torch.compiler.is_compiling():
            return self._trace(module, args, *rest)
        if _compiler() is None:
            return super().__call__(module, args, *rest)
        return _outside_graphs(self, module, args, *rest)

    def _trace(self, module: nn.Module, args: Any, *rest: Any) -> Any:
        if not torch.is_grad_enabled() or not taps.available or _is_exporting():
            return None
        if not rest:
            return taps.trace_before(self.number, args)
        kwargs, output = rest
        return taps.trace_after(self.number, module, args, kwargs, output, first_float(output))

    def replay(self, *given: Any, tap: "taps.Tap | None" = None) -> None:
        """A graph with this hook runs: call it with the tensors of this run."""
        self.watched.tapped = True
        module = self.watched.module()
        if module is not None and taps.switches[self.switch]:
            with self.recorder.inside_graph(tap):
                Hook.__call__(self, module, *given)

    def replay_gradient(self, number: int, grad: torch.Tensor) -> None:
        """A gradient comes back to an output inside a graph."""
        try:
            self.recorder.tapped_gradient(self.watched, number, grad)
        except Exception as error:
            self.on_error(error)


_compiler = torch._C._dynamo.eval_frame.get_eval_frame_callback  # what looks for graphs in the code that runs
_outside_graphs = torch._compile._disable_dynamo(Hook.__call__)  # it does not look into what this calls


def _prepare_compiler() -> None:
    """Tell the compiler that a hook, where it is called between graphs, is none itself; ask how it rounds.

    `nn.Module.compile` compiles the forward method of a module, and hooks of that module run before and after it.
    """
    compiler, backend = (sys.modules.get(name) for name in ("torch._dynamo", "torch._inductor.config"))
    if compiler is not None:
        compiler.eval_frame.skip_code(ModuleHook.__call__.__code__)
    taps.keeps_precision[0] = backend is not None and backend.emulate_precision_casts


class Hooks:
    """All hooks of a recorder.  Without an optimiser, the root's hooks stay, to find where a step ends.

    Hooks of modules that are compiled stay as well, because a graph holds them; a switch turns them off.
    """

    def __init__(self, recorder: "Recorder", model: WatchedModel, loss: nn.Module | None, updates: Updates) -> None:
        self._recorder, self._model, self._updates = recorder, model, updates
        self._suspended = False
        self._fast = _fast_groups(model.modules)
        self._root_always = not updates.optimisers
        self._switch = taps.new_switch()
        self._made: dict[WatchedModule, tuple[ModuleHook, ModuleHook]] = {}
        self._of_modules: dict[WatchedModule, list[Any]] = {}
        self._of_step: list[Any] = []
        self._always: list[Any] = [
            optimiser.register_step_post_hook(self._hook(recorder.after_optimiser_step, index))
            for index, optimiser in enumerate(updates.optimisers)
        ]
        if loss is not None:
            hook = LossHook(recorder.give_up, recorder.after_loss_call)
            self._always.append(loss.register_forward_hook(hook))
        if self._root_always:
            self._always += self._on_module(model.root)
        _leave_out_of_copies()

    def _hook(self, to: Callable[..., Any], *known: Any) -> Hook:
        return Hook(self._recorder.give_up, to, *known)

    def renew(self) -> None:
        """Hook the modules as they are now."""
        self._fast = _fast_groups(self._model.modules)
        self.detach(everything=True)
        self._made = {watched: self._made[watched] for watched in self._model.modules if watched in self._made}
        self.attach()

    def keep(self) -> None:
        """Keep the hooks of every module, for graphs that are compiled from now on."""
        for watched in self._model.modules:
            watched.tapped = True
        self._hook_modules()

    def attach(self) -> None:
        """Add the hooks of a watched step, unless they are there."""
        taps.switches[self._switch] = True
        _prepare_compiler()
        self._hook_modules()
        if self._of_step:
            return
        recorder = self._recorder
        for index, optimiser in enumerate(self._updates.optimisers):
            before = self._hook(recorder.before_optimiser_step, index)
            self._of_step.append(optimiser.register_step_pre_hook(before))
        if recorder.step > 0 and not self._model.is_compiled:
            for name, sampled in self._updates.sampled():
                adding = self._hook(recorder.before_accumulation, name, weakref.ref(sampled))
                self._of_step.append(sampled.register_hook(adding))  # type: ignore[no-untyped-call]
        if self._root_always:
            for parameter in self._model.parameters:
                if not is_lazy(parameter) and parameter.requires_grad:
                    register: Any = parameter.register_post_accumulate_grad_hook
                    added = self._hook(recorder.after_accumulation, self._model.names[id(parameter)])
                    self._of_step.append(register(added))

    def _hook_modules(self) -> None:
        for watched in self._to_hook():
            if watched not in self._of_modules:
                self._of_modules[watched] = self._on_module(watched)

    def detach(self, *, everything: bool = False) -> None:
        """Remove the hooks of a watched step.  Those that a graph holds are turned off, unless it is everything."""
        taps.switches[self._switch] = False
        gone = [watched for watched in self._of_modules if everything or not watched.tapped]
        for handle in [*self._of_step, *(handle for watched in gone for handle in self._of_modules.pop(watched))]:
            handle.remove()
        self._of_step = []

    def suspend(self) -> None:
        """Before an evaluation that PyTorch computes another way with hooks: keep those of the root only."""
        if not self._fast:
            return
        self.detach(everything=True)
        self._suspended = True
        if not self._root_always:
            taps.switches[self._switch] = True
            self._of_modules[self._model.root] = self._on_module(self._model.root)

    def resume(self) -> None:
        """After such an evaluation."""
        if self._suspended:
            self._suspended = False
            self.detach(everything=True)
            self.attach()

    def remove(self) -> None:
        """Leave no hook."""
        self.detach(everything=True)
        for handle in self._always:
            handle.remove()
        _put_into_copies()

    def _to_hook(self) -> list[WatchedModule]:
        """The modules to hook in this step; not those that PyTorch computes another way without hooks."""
        for layer, inner in self._fast:
            module = layer.module()
            for watched in inner:
                watched.skipped = FROZEN if module is not None and has_fast_path(module) else None
        hooked = self._model.root if self._root_always else None
        return [
            watched
            for watched in self._model.modules
            if (watched.chosen is not False or watched.is_root) and watched.skipped is None and watched is not hooked
        ]

    def _on_module(self, watched: WatchedModule) -> list[Any]:
        module, recorder = watched.module(), self._recorder
        if module is None or watched.hidden is not None:
            return []
        if watched not in self._made:  # once: graphs know hooks by their numbers
            switch = taps.ALWAYS if self._root_always and watched.is_root else self._switch
            methods = recorder.before_call, recorder.after_call
            first, last = (ModuleHook(recorder, to, watched, switch) for to in methods)
            self._made[watched] = first, last
        before, after = self._made[watched]
        if watched.is_root and getattr(module, "_compiled_call_impl", None) is not None:
            return [_AroundGraph(module, before, after)]
        return [_OnModule(module, before, after, -self._switch)]


class _AroundGraph:
    """Calls the hooks of a model before and after the graph that `model.compile()` made, and not inside it.

    The graph then has the taps that one of `torch.compile(model)` has, and none on the output of the whole model.
    """

    def __init__(self, module: Any, before: ModuleHook, after: ModuleHook) -> None:
        self._module, self._before, self._after = weakref.ref(module), before, after
        self._graph = module._compiled_call_impl
        module._compiled_call_impl = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        if module is None or torch.compiler.is_compiling():  # the graph is a part of another one
            return self._graph(*args, **kwargs)
        output = None
        self._before(module, args)
        try:
            output = self._graph(*args, **kwargs)
        finally:
            self._after(module, args, kwargs, output)
        return output

    def remove(self) -> None:
        """Call the graph alone again."""
        module: Any = self._module()
        if module is not None and module._compiled_call_impl is self:
            module._compiled_call_impl = self._graph


class _OnModule:
    """The two hooks of a module, under one number: where it is the same in all modules, they may share a graph.

    They are put where `register_forward_hook` puts them, which would take longer and give each a number of its own.
    """

    def __init__(self, module: Any, before: ModuleHook, after: ModuleHook, number: int) -> None:
        marks = module._forward_hooks_with_kwargs, module._forward_hooks_always_called
        module._forward_pre_hooks[number], module._forward_hooks[number] = before, after
        for marked in marks:
            marked[number] = True
        self._number, self._dicts = number, (module._forward_pre_hooks, module._forward_hooks, *marks)

    def remove(self) -> None:
        for hooks in self._dicts:
            hooks.pop(self._number, None)


def _is_exporting() -> bool:
    return bool(getattr(torch.compiler, "is_exporting", lambda: False)())


def _fast_groups(modules: Sequence[WatchedModule]) -> list[tuple[WatchedModule, list[WatchedModule]]]:
    """Encoder layers, each with everything inside it."""
    return [
        (layer, [one for one in modules if one is layer or layer.is_root or one.name.startswith(f"{layer.name}.")])
        for layer in modules
        if isinstance(layer.module(), nn.TransformerEncoderLayer)
    ]


# Copies, pickles and scripts without hooks

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_MARKS = ("_with_kwargs", "_always_called")  # of hooks, by the same keys

_open_watches = 0


def _leave_out_of_copies() -> None:
    """Leave the hooks of watches out, until `_put_into_copies` is called as often."""
    global _open_watches
    _open_watches += 1
    if _open_watches == 1:
        patched: Any = nn.Module
        patched.__reduce_ex__, patched.__prepare_scriptable__ = _reduce, _prepare


def _put_into_copies() -> None:
    global _open_watches
    _open_watches -= 1
    if _open_watches == 0:
        del nn.Module.__reduce_ex__, nn.Module.__prepare_scriptable__  # type: ignore[attr-defined]


def _reduce(module: nn.Module, protocol: Any) -> Any:
    """What pickle and `copy` take: what `__getstate__` or `__reduce__` of the module's class return, without hooks."""
    made = super(nn.Module, module).__reduce_ex__(protocol)
    if isinstance(made, tuple) and len(made) > 2 and isinstance(made[2], dict):
        return (*made[:2], _cleared(made[2]), *made[3:])
    return made


def _prepare(module: nn.Module) -> nn.Module:
    """What TorchScript compiles: the module itself, or one without our hooks that shares everything else."""
    if isinstance(module, torch.jit.ScriptModule) or not any(_is_hooked(part) for part in module.modules()):
        return module
    twin = object.__new__(type(module))
    twin.__dict__.update(_cleared(module.__dict__))
    twin.__dict__["_modules"] = module._modules.copy()
    return twin


def _is_hooked(module: nn.Module) -> bool:
    return any(isinstance(hook, Hook) for name in _HOOKS for hook in getattr(module, name).values())


def _cleared(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a module without our hooks; the same object where there are none."""
    for name in _HOOKS:
        hooks = state.get(name, {})
        ours = {key for key, hook in hooks.items() if isinstance(hook, Hook)}
        if ours:
            names = [known for known in (name, *(name + mark for mark in _MARKS)) if known in state]
            state = state | {known: _without(state[known], ours) for known in names}
    return state


def _without(hooks: Any, ours: set[int]) -> Any:
    return type(hooks)((key, hook) for key, hook in hooks.items() if key not in ours)
