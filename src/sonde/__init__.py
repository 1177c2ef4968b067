"""Sonde: see how deep networks learn — the signal going up, the credit coming back."""

from typing import TYPE_CHECKING, Any

from sonde.core import moved_modules

if TYPE_CHECKING:
    from sonde import models as models
    from sonde import rules as rules
    from sonde import tasks as tasks
    from sonde.config import Probing as Probing
    from sonde.config import RunConfig as RunConfig
    from sonde.core.errors import SondeError as SondeError
    from sonde.core.optimisers import Optimiser as Optimiser
    from sonde.metrics import probes as probes
    from sonde.metrics.rows import Reading as Reading
    from sonde.network.chain import chain as chain
    from sonde.observe.check import check as check
    from sonde.observe.watch import watch as watch
    from sonde.plugins import guest as guest
    from sonde.plugins import plugin as plugin
    from sonde.plugins import register as register
    from sonde.show.stored_runs import load as load
    from sonde.training.credit_assignment import CreditAssignment
    from sonde.training.train import train as train

    __version__: str

_HOME = {
    "CreditAssignment": "sonde.training.credit_assignment",
    "Optimiser": "sonde.core.optimisers",
    "Probing": "sonde.config",
    "Reading": "sonde.metrics.rows",
    "RunConfig": "sonde.config",
    "SondeError": "sonde.core.errors",
    "chain": "sonde.network.chain",
    "check": "sonde.observe.check",
    "guest": "sonde.plugins",
    "load": "sonde.show.stored_runs",
    "models": "sonde",
    "plugin": "sonde.plugins",
    "probes": "sonde.metrics",
    "register": "sonde.plugins",
    "rules": "sonde",
    "tasks": "sonde",
    "train": "sonde.training.train",
    "watch": "sonde.observe.watch",
}
"""Where each name lives."""

_PACKAGES = ("models", "probes", "rules", "tasks")

__all__ = [
    "CreditAssignment",
    "Optimiser",
    "Probing",
    "Reading",
    "RunConfig",
    "SondeError",
    "chain",
    "check",
    "guest",
    "load",
    "models",
    "plugin",
    "probes",
    "register",
    "rules",
    "tasks",
    "train",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that reading a store needs no torch and `sonde --help` neither."""
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("sonde")
    if name not in _HOME:
        raise AttributeError(f"module 'sonde' has no attribute {name!r}: it has {', '.join(_HOME)}")
    if name in _PACKAGES:
        return import_module(f"{_HOME[name]}.{name}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


moved_modules.install()
