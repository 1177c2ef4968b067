"""See how deep networks learn: the signal going up, the credit coming back, layer by layer.

Your own model and training loop:

    watch(model, optimizer)   record every layer while your loop trains; `.diagnose()` finds what is wrong
    predict(model, shape)     predict signal and gradient at every module before training
    check(model, x, y, loss)  check a model before training it
    scaling(make, over)       train a model for a few steps at several sizes: what grows with the size?
    chain(model)              a model as the chain of units that probes and rules see
    CreditAssignment          train your model with another learning rule than backprop

Networks, learning rules and tasks of Sonde:

    RunConfig                 what to train: a model of `models`, a rule of `rules`, a task of `tasks`
    Optimiser, Probing        its optimiser, and what is measured when
    train(config)             train it and store it; `help(sonde.train)` describes every argument
    plugin, register          a model, rule, task or probe of your own

Stored runs:

    load("runs")              the runs of a store: `.frame()`, `.compare()`, `.audit()`, `.diagnose()`, `.figure(name)`,
                              `.report("report.html")`
    Reading                   a measured value, or the reason why there is none
    SondeError                every error that a user can fix; its message says how

The command line does the same: `sonde --help`.  Names are imported on first use: `import sonde` needs no torch.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sonde import models as models
    from sonde import rules as rules
    from sonde import tasks as tasks
    from sonde.config import Probing as Probing
    from sonde.config import RunConfig as RunConfig
    from sonde.core.errors import SondeError as SondeError
    from sonde.core.validated import Optimiser as Optimiser
    from sonde.metrics import probes as probes
    from sonde.metrics.rows import Reading as Reading
    from sonde.network.chain import chain as chain
    from sonde.observe.check import check as check
    from sonde.observe.predict.predict import predict as predict
    from sonde.observe.scaling import scaling as scaling
    from sonde.observe.watch import watch as watch
    from sonde.plugins import plugin as plugin
    from sonde.plugins import register as register
    from sonde.show.stored_runs import load as load
    from sonde.training.credit_assignment import CreditAssignment as CreditAssignment
    from sonde.training.train import train as train

    __version__: str

_HOME = {
    "CreditAssignment": "sonde.training.credit_assignment",
    "Optimiser": "sonde.core.validated",
    "Probing": "sonde.config",
    "Reading": "sonde.metrics.rows",
    "RunConfig": "sonde.config",
    "SondeError": "sonde.core.errors",
    "chain": "sonde.network.chain",
    "check": "sonde.observe.check",
    "load": "sonde.show.stored_runs",
    "models": "sonde",
    "plugin": "sonde.plugins",
    "predict": "sonde.observe.predict",
    "probes": "sonde.metrics",
    "register": "sonde.plugins",
    "rules": "sonde",
    "scaling": "sonde.observe.scaling",
    "tasks": "sonde",
    "train": "sonde.training.train",
    "watch": "sonde.observe.watch",
}
"""Where each name lives."""

_RENAMED = {"guest": "plugin"}
"""Deprecated name → the name that replaced it."""

_PACKAGES = ("models", "probes", "rules", "tasks")

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import on first use, so that reading a store needs no torch and `sonde --help` neither."""
    from importlib import metadata

    if name == "__version__":
        return metadata.version("sonde")
    if name in _RENAMED:
        warnings.warn(f"sonde.{name} is deprecated: use sonde.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name not in _HOME:
        raise AttributeError(f"module 'sonde' has no attribute {name!r}: it has {', '.join(_HOME)}")
    if name in _PACKAGES:
        return import_module(f"{_HOME[name]}.{name}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


_MOVED = {
    "sonde.chains": "sonde.network.chain",
    "sonde.errors": "sonde.core.errors",
    "sonde.guests": "sonde.plugins",
    "sonde.integrations": "sonde.observe",
    "sonde.integrations.lightning": "sonde.observe.lightning",
    "sonde.integrations.transformers": "sonde.observe.transformers",
    "sonde.losses": "sonde.network.losses",
    "sonde.optimisers": "sonde.core.validated",
    "sonde.probes": "sonde.metrics.probes",
    "sonde.rows": "sonde.metrics.rows",
}
"""Old path → new path, for the modules that the documentation of 0.1.0 names."""


class _MovedModules(MetaPathFinder, Loader):
    """Finds old module paths: importing one gives the module that replaced it, and a DeprecationWarning."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for an old path, else None."""
        return ModuleSpec(fullname, self) if fullname in _MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Python's default."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module at the new path in its place, so that its classes and tables exist once."""
        old = module.__name__
        warnings.warn(f"{old} is deprecated: import {_MOVED[old]}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(_MOVED[old])


if not any(type(finder).__name__ == _MovedModules.__name__ for finder in sys.meta_path):
    # Before Python's own finders, which would take an empty folder left by an upgrade for the package.
    sys.meta_path.insert(0, _MovedModules())
