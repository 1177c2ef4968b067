"""Whether planted faults harm: programs and their mended twins, trained without a watch.

python benchmarks/arena/harm.py judged_2026_11_19        three seeds of each fault; a line each
"""

import argparse
import functools
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from recipes import Program

HERE = Path(__file__).parent
HARM = 0.1  # of what the loss of the repaired twin fell

Measure = Callable[[Program, Program], float]
Ends = Sequence[float | None]


def mean(losses: list[float]) -> float | None:
    """The mean, if it is finite."""
    of = sum(losses) / len(losses)
    return of if abs(of) < float("inf") else None


def harms(losses: Ends, twin: Ends) -> bool:
    """Whether a run ends clearly above its repaired twin: by a tenth of what the twin's loss fell."""
    end, (first, last) = losses[1], twin
    return end is None or first is None or last is None or end > last + HARM * abs(first - last)


def by_twin(program: Program, twin: Program) -> float:
    """The twin's loss of a program's model, on the twin's last batches."""
    losses = [float(twin.loss(twin.before_loss(program.outputs(x)), y)) for x, y in twin.batches[-20:]]
    return sum(losses) / len(losses)


@functools.cache
def ends(module: Any, recipe: str, fault: str | None, seed: int, measure: Measure | None) -> Ends:
    """What a run begins with and ends at: its losses, or what is measured before and after."""
    program = module.GROUP.build(recipe, fault, seed)
    if measure is None:
        losses = [float(program.step(x, y).detach()) for x, y in program.batches]
        return [mean(losses[:3]), mean(losses[-10:])]
    with torch.no_grad():
        first = measure(module.GROUP.build(recipe, fault, seed), module.GROUP.build(recipe, None, seed))
    for x, y in program.batches:
        program.step(x, y)
    with torch.no_grad():
        return [first, mean([measure(program, module.GROUP.build(recipe, None, seed))])]


def verify(module: Any, wanted: list[str]) -> None:
    for recipe, fault in module.GROUP.faulty:
        if wanted and not any(f"{recipe}-{fault}".startswith(one) for one in wanted):
            continue
        measure = None if module.FAULTS[fault].same_loss else getattr(module, "MEASURES", {}).get(fault, by_twin)
        pairs = [[ends(module, recipe, one, seed, measure) for one in (fault, None)] for seed in range(3)]
        told = ["harms" if harms(*pair) else "HARMLESS" for pair in pairs]
        print(f"{recipe}-{fault}: {told} {json.dumps(pairs)}", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("names", nargs="*", help="beginnings of names of programs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    verify(importlib.import_module(given.module), given.names)
