"""Old module paths: importing one gives the module that replaced it, and a DeprecationWarning."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "sonde.chains": "sonde.network.chain",
    "sonde.errors": "sonde.core.errors",
    "sonde.guests": "sonde.plugins",
    "sonde.integrations": "sonde.observe",
    "sonde.integrations.lightning": "sonde.observe.lightning",
    "sonde.integrations.transformers": "sonde.observe.transformers",
    "sonde.losses": "sonde.network.losses",
    "sonde.optimisers": "sonde.core.optimisers",
    "sonde.probes": "sonde.metrics.probes",
    "sonde.rows": "sonde.metrics.rows",
}
"""Old path → new path, for the modules that the documentation of 0.1.0 names."""


class MovedModules(MetaPathFinder, Loader):
    """Finds old module paths, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for an old path, else None."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Python's default."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module at the new path in its place, so that its classes and tables exist once."""
        old = module.__name__
        warnings.warn(f"{old} is deprecated: import {MOVED[old]}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(MOVED[old])


def install() -> None:
    """Put the finder before Python's own, which would take an empty folder left by an upgrade for the package."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
