"""Sonde: see how deep networks learn — the signal going up, the credit coming back."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sonde.store.load import load as load
    from sonde.training.train import train as train
    from sonde.watching.check import check as check
    from sonde.watching.watch import watch as watch

__version__ = version("sonde")
__all__ = ["check", "load", "train", "watch"]

_HOME = {"load": "sonde.store.load", "train": "sonde.training.train"}
_HOME |= {"check": "sonde.watching.check", "watch": "sonde.watching.watch"}


def __getattr__(name: str) -> Any:
    """Import on first use, so that reading a store needs no torch and `sonde --help` neither."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'sonde' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
