"""What a stored configuration may ask to be built: no more than the tensors beside it have room for.

A configuration of a few bytes can ask for a network of terabytes.  The stored weights say how large it was.
"""

import json
import math
from typing import Any

from sonde.core.errors import SondeError

FREE = 50_000_000  # weights that may be built whatever is stored: 400 MB in float64
WEIGHTS = 64  # times the stored ones, at most
SAMPLES = 200_000_000  # numbers of all inputs of a task
STEPS = 1_000_000  # epochs of a schedule, directions of a probe


def refuse_large(tree: Any, weights: bytes, where: str, fix: str) -> None:
    """Raise where the network or data of a configuration would be far larger than what was stored."""
    stored = _numbers_in(weights, where, fix)
    model, task = _whole(tree.get("model")), _whole(tree.get("task"))
    deep = max((model.get(key, 1) for key in ("L", "n")), default=1)
    wide = max((value for key, value in model.items() if key not in ("L", "n")), default=1)
    _bound(deep * wide**2, WEIGHTS * stored + FREE, "model", where, fix)
    teacher = max(task.get("L", 1), 1) * task.get("d", 1) ** 2 if "inputs" in task else 1
    _bound(teacher, FREE, "task", where, fix)
    many = task.get("samples", 1) + task.get("test_samples", 1)
    one = max((value for key, value in task.items() if not key.endswith("samples")), default=1)
    _bound(many * one, SAMPLES, "task", where, fix)
    for key, value in {"epochs": tree.get("epochs"), **_whole(tree.get("probes"))}.items():
        _bound(value, STEPS, key, where, fix)
    for key, value in _whole(tree.get("rule")).items():
        _bound(value, STEPS, f"rule.{key}", where, fix)


def refuse_large_inputs(shape: tuple[int, ...], samples: int, where: str, fix: str) -> None:
    """The same of a shape that follows from the options."""
    _bound(math.prod(shape) * samples, SAMPLES, "task", where, fix)


def _bound(asked: Any, most: int, part: str, where: str, fix: str) -> None:
    if isinstance(asked, int) and asked > most:
        raise SondeError(f"{where}: its {part} is far larger than what the run stored: {fix}")


def _whole(section: Any) -> dict[str, int]:
    """The whole numbers of a section; of a list, the largest."""
    found = {}
    for key, value in section.items() if isinstance(section, dict) else ():
        numbers = [one for one in (value if isinstance(value, list) else [value]) if type(one) is int]
        if numbers:
            found[key] = max(numbers)
    return found


def _numbers_in(weights: bytes, where: str, fix: str) -> int:
    """How many numbers a safetensors file holds, from its header."""
    try:
        header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
        said = sum(math.prod(one["shape"]) for key, one in header.items() if key != "__metadata__")
        return min(int(said), len(weights))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SondeError(f"{where}: its weights cannot be read: {fix}") from None
