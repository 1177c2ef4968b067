"""Programs that a test starts, kills or lets crash: `watch_worker.py WHAT STORE`."""

import os
import sys

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sonde

torch.set_num_threads(1)


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(15) for layer in (nn.Linear(4, 4), nn.Tanh())))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def step(model: nn.Module, optimiser: torch.optim.Optimizer, number: int) -> None:
    optimiser.zero_grad()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
    model(x).square().mean().backward()
    optimiser.step()


def forever(runs: str) -> None:
    """Train and tell, until somebody ends it."""
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=runs, every=1)
    for number in range(1_000_000):
        step(model, optimiser, number)
        print(watch.step, flush=True)


def to_the_end(runs: str) -> None:
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=runs)
    for number in range(30):
        step(model, optimiser, number)
    print(watch.id)


def crash(runs: str) -> None:
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=runs)
    for number in range(5):
        step(model, optimiser, number)
    raise ZeroDivisionError(f"after {watch.step} steps")


def together(runs: str) -> None:
    """One of two processes that train together; `RANK` and `STORE` say which, and where they meet."""
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=2)
    kept = []
    for watching in (False, True):
        model, _ = made()
        shared = DistributedDataParallel(model)
        optimiser = torch.optim.SGD(shared.parameters(), 0.1)
        watch = sonde.watch(shared, optimiser, runs=runs, every=5) if watching else None
        for number in range(12):
            step(shared, optimiser, 2 * number + rank)
        kept.append([parameter.detach().clone() for parameter in model.parameters()])
        if watch is not None:
            watch.close()
            print(rank, watch.rows.height, flush=True)
    assert all(torch.equal(a, b) for a, b in zip(*kept, strict=True)), "watching changed the weights"
    torch.distributed.destroy_process_group()


PROGRAMS = {
    "forever": forever,
    "to_the_end": to_the_end,
    "crash": crash,
    "together": together,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2])
