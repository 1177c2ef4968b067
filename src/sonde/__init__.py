"""Sonde: see how deep networks learn — the signal going up, the credit coming back."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sonde import models as models
    from sonde import probes as probes
    from sonde import rules as rules
    from sonde import tasks as tasks
    from sonde.chains import chain as chain
    from sonde.checking.before_training import check as check
    from sonde.config import Probing as Probing
    from sonde.config import RunConfig as RunConfig
    from sonde.errors import SondeError as SondeError
    from sonde.guests import guest as guest
    from sonde.guests import register as register
    from sonde.optimisers import Optimiser as Optimiser
    from sonde.rows import Reading as Reading
    from sonde.stored_runs import load as load
    from sonde.training.assign import CreditAssignment as CreditAssignment
    from sonde.training.train import train as train
    from sonde.watching.watch import watch as watch

    __version__: str

_HOME = {
    "CreditAssignment": "sonde.training.assign",
    "Optimiser": "sonde.optimisers",
    "Probing": "sonde.config",
    "Reading": "sonde.rows",
    "RunConfig": "sonde.config",
    "SondeError": "sonde.errors",
    "chain": "sonde.chains",
    "check": "sonde.checking.before_training",
    "guest": "sonde.guests",
    "load": "sonde.stored_runs",
    "models": "sonde",
    "probes": "sonde",
    "register": "sonde.guests",
    "rules": "sonde",
    "tasks": "sonde",
    "train": "sonde.training.train",
    "watch": "sonde.watching.watch",
}
"""Where each name lives; packages stand for themselves."""

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
    if _HOME[name] == "sonde":
        return import_module(f"sonde.{name}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
