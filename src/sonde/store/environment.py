"""What a run was made with: versions, machine, threads, the state of the source tree."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from sonde.core.errors import unicode

_PACKAGES = ("sonde", "torch", "numpy", "polars", "safetensors")


def describe(threads: int, device: str, *, provenance: bool = True) -> dict[str, Any]:
    """Versions, machine, thread count, device and git state, as plain values.

    `provenance`: with the name of the machine and the arguments of the command line, which may hold secrets.
    """
    command = [unicode(word) for word in (Path(sys.argv[0]).name, *sys.argv[1:])]
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "machine": {
            **({"host": platform.node()} if provenance else {}),
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
        },
        "threads": threads,
        "device": device,
        "git": _git(),
        "command": command if provenance else command[:1],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


@cache
def _git() -> dict[str, Any] | None:
    """Commit and cleanliness of the tree Sonde runs from; None when it is installed without one."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", __file__) is None:
        return None
    return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
