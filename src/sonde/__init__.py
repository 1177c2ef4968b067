"""Sonde: see how deep networks learn — the signal going up, the credit coming back."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sonde.chains import chain as chain
    from sonde.store.load import load as load
    from sonde.training.assign import CreditAssignment as CreditAssignment
    from sonde.training.train import train as train

__version__ = version("sonde")
__all__ = ["CreditAssignment", "chain", "load", "train"]

_HOME = {
    "CreditAssignment": "sonde.training.assign",
    "chain": "sonde.chains",
    "load": "sonde.store.load",
    "train": "sonde.training.train",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that reading a store needs no torch and `sonde --help` neither."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'sonde' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
