"""A watched module is pickled, copied and scripted as if it were not watched.

Hooks are part of a module's state: a file of a whole model would name classes of this package, and TorchScript would
try to compile them.  While a watch is open, `nn.Module` leaves them out.
"""

from typing import Any

import torch
from torch import nn

from sonde.observe.hooks import Hook

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_MARKS = ("_with_kwargs", "_always_called")  # of hooks, by the same keys

_open = 0  # watches


def leave_out() -> None:
    """Leave the hooks of watches out, until `put_back` was called as often."""
    global _open
    _open += 1
    if _open == 1:
        patched: Any = nn.Module
        patched.__reduce_ex__, patched.__prepare_scriptable__ = _reduce, _prepare


def put_back() -> None:
    global _open
    _open -= 1
    if _open == 0:
        del nn.Module.__reduce_ex__, nn.Module.__prepare_scriptable__  # type: ignore[attr-defined]


def _reduce(module: nn.Module, protocol: Any) -> Any:
    """What pickle and `copy` take, which is what `__getstate__` or `__reduce__` of the module's class say."""
    made = super(nn.Module, module).__reduce_ex__(protocol)
    if isinstance(made, tuple) and len(made) > 2 and isinstance(made[2], dict):
        return (*made[:2], _cleared(made[2]), *made[3:])
    return made


def _prepare(module: nn.Module) -> nn.Module:
    """What TorchScript compiles: the module itself, or one without our hooks that shares everything else."""
    if isinstance(module, torch.jit.ScriptModule) or not any(_watched(part) for part in module.modules()):
        return module
    twin = object.__new__(type(module))
    twin.__dict__.update(_cleared(module.__dict__))
    twin.__dict__["_modules"] = module._modules.copy()
    return twin


def _watched(module: nn.Module) -> bool:
    return any(isinstance(hook, Hook) for name in _HOOKS for hook in getattr(module, name).values())


def _cleared(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a module without our hooks; the same object where there are none."""
    for name in _HOOKS:
        hooks = state.get(name, {})
        ours = {key for key, hook in hooks.items() if isinstance(hook, Hook)}
        if ours:
            names = [known for known in (name, *(name + mark for mark in _MARKS)) if known in state]
            state = state | {known: _others(state[known], ours) for known in names}
    return state


def _others(hooks: Any, ours: set[int]) -> Any:
    return type(hooks)((key, hook) for key, hook in hooks.items() if key not in ours)
