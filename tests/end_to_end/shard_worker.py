"""Processes that train one sharded model together: `shard_worker.py STORE CASE…`.

The environment has `RANK`, `WORLD`, `MEETING` (where they find each other) and `TIMEOUT` (of their collectives).
"""

import faulthandler
import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

import sonde

STEPS, EVERY = 13, 4  # steps 0 to 9 and 12 are watched
WATCHED_STEPS = 11
SPIKE, SPIKE_STEPS, SPIKE_EVERY = 33, 60, 10  # told in step 40; steps 41 to 56 are watched


class Net(nn.Module):
    """Parameters of odd sizes, one of a single entry, and one without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 5)
        self.bend, self.cut = nn.Tanh(), nn.ReLU()
        self.norm, self.head = nn.LayerNorm(5), nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen = nn.Parameter(torch.arange(3.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.down(self.bend(4 * self.up(x)))) * self.scale
        out: Tensor = self.head(h) + self.cut(self.frozen - 4 * torch.eye(3)[0] * h[:, :3])
        return out


def made(dtype: torch.dtype) -> Net:
    torch.manual_seed(0)
    return Net().to(dtype)


def adam(model: nn.Module, kind: str = "") -> torch.optim.Optimizer:
    held = [p for p in model.parameters() if p.requires_grad]
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(held, torch.optim.Adam, lr=0.01, eps=1e-3)
    return torch.optim.Adam(held, 0.01, eps=1e-3)


LOSS = nn.MSELoss()


def train(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    dtype: torch.dtype,
    steps: range,
    part: tuple[int, int] = (0, 1),
    micro: int = 1,
) -> None:
    """Train on one of several equal parts of each batch, in micro-batches.  Some targets of one batch are too large."""
    for number in steps:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(number), dtype=torch.float64).to(dtype)
        y = torch.zeros(8, 3, dtype=dtype)
        if number == SPIKE:
            y[-2:] = 100
        optimiser.zero_grad()
        *early, last = zip(*(given.chunk(part[1])[part[0]].chunk(micro) for given in (x, y)), strict=True)
        for inputs, targets in early:
            with model.no_sync():  # type: ignore[operator]
                differentiate(model, inputs, targets, micro)
        differentiate(model, *last, micro)
        optimiser.step()


def differentiate(model: nn.Module, inputs: Tensor, targets: Tensor, micro: int) -> None:
    (LOSS(model(inputs), targets) / micro).backward()


def distributed(model: Net, kind: str) -> tuple[nn.Module, tuple[int, int]]:
    """The model as several processes train it, and the part of the batch that this process has."""
    if kind in ("ddp", "nosync", "zero"):
        return nn.parallel.DistributedDataParallel(model), (dist.get_rank(), dist.get_world_size())
    return model, shard(model, kind)


def shard(model: Net, kind: str) -> tuple[int, int]:
    """Shard the model, and return the part of the batch that this process has."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    rank, world = dist.get_rank(), dist.get_world_size()
    tensor_parallel = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if kind == "tensor":
        parallelize_module(model, init_device_mesh("cpu", (world,)), tensor_parallel)
        return 0, 1
    options: dict[str, Any] = {}
    if kind == "offload":
        options = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}
    if kind == "ignored":
        options = {"ignored_params": {model.frozen}}
    if kind == "apart":  # two halves of the processes, each with a model of its own
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("model", "inner"))["inner"]
    elif kind in ("fsdp", "offload", "ignored"):
        mesh = init_device_mesh("cpu", (world,))
    else:
        grid = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "inner"))
        mesh = grid if kind == "hybrid" else grid["data"]
        if kind == "both":
            parallelize_module(model, grid["inner"], tensor_parallel)
    fully_shard(model.up, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    if kind == "apart":
        return rank % (world // 2), world // 2
    return (rank // (world // 2), 2) if kind == "both" else (rank, world)


def parts(model: nn.Module) -> list[Tensor]:
    return [getattr(p, "to_local", p.clone)().detach().clone() for p in model.parameters()]


def entries(parameter: Tensor) -> Tensor:
    """Up to 64 entries of the part that this process holds."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    flat = local.detach().double().flatten()
    return flat[:: max(1, len(flat) // 64)][:64].clone()


def norm_over_parts(x: Tensor, parameter: Tensor) -> float:
    square = x.square().sum()
    if isinstance(parameter, DTensor):
        dist.all_reduce(square)
    return square.sqrt().item()


def twin(model: nn.Module, optimiser: torch.optim.Optimizer, found: list[dict[str, list[float]]]) -> None:
    """Gather every parameter around each step, in float64.

    Norms of weight, gradient and update; and of a few entries of every part, the relative update.
    """
    before: dict[str, Tensor] = {}
    few: dict[str, Tensor] = {}

    def whole(x: Tensor) -> Tensor:
        return (x.full_tensor() if isinstance(x, DTensor) else x).detach().double()

    def start(*_: Any) -> None:
        before.update({name: whole(p).clone() for name, p in model.named_parameters() if p.grad is not None})
        grads = {name: whole(p.grad).norm() for name, p in model.named_parameters() if p.grad is not None}
        found.append({name: [before[name].norm().item(), grad.item()] for name, grad in grads.items()})
        few.update({name: entries(p) for name, p in model.named_parameters()})

    def end(*_: Any) -> None:
        for name, p in model.named_parameters():
            if name in found[-1]:
                found[-1][name].append((whole(p) - before[name]).norm().item())
                length = norm_over_parts(few[name], p)
                moved = norm_over_parts(entries(p) - few[name], p)
                found[-1][name].append(moved / length if length else 0.0)

    optimiser.register_step_pre_hook(start)
    optimiser.register_step_post_hook(end)


class Collectives(TorchDispatchMode):
    """Counts collectives of every kind."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # what it does to its parts comes here
        name = str(func)
        self.count += name.startswith(("c10d", "_c10d_functional")) and "wait_tensor" not in name
        return func(*args, **(kwargs or {}))


def compared(case: str, runs: str) -> dict[str, Any]:
    """Train twice, without and with a watch; collectives of both, and whether the weights are the same bits."""
    kind, bits, *spike = case.split("-")
    dtype = getattr(torch, f"float{bits}")
    micro = 2 if kind == "nosync" else 1
    steps, every = (SPIKE_STEPS, SPIKE_EVERY) if spike else (STEPS, EVERY)
    kept, counts, height = [], [], 0
    for watching in (False, True):
        model, part = distributed(made(dtype), kind)
        optimiser = adam(model, kind)
        watch = sonde.watch(model, optimiser, loss=LOSS, runs=runs, name=case, every=every) if watching else None
        with Collectives() as mode:
            train(model, optimiser, dtype, range(steps), part, micro)
            if watch is not None:
                watch.close()
                height = watch.rows.height
        counts.append(mode.count)
        kept.append(parts(model))
    truth: list[dict[str, list[float]]] = []
    model, part = distributed(made(dtype), kind)
    optimiser = adam(model, kind)
    twin(getattr(model, "module", model), optimiser, truth)
    train(model, optimiser, dtype, range(steps), part, micro)
    truth = [] if dist.get_rank() else truth  # the pipe of another process is not read before the first ends
    same = all(torch.equal(a, b) for a, b in zip(*kept, strict=True))
    return {
        "case": case,
        "collectives": counts[1] - counts[0],
        "same": same,
        "height": height,
        "truth": [] if dist.get_rank() else truth,
    }


def flat(case: str, runs: str) -> dict[str, Any]:
    """FSDP1, whose parameters look like plain ones."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(made(torch.float32), use_orig_params=True, device_id=torch.device("cpu"))
    return watched(case, runs, model, adam(model))


def no_optimiser(case: str, runs: str) -> dict[str, Any]:
    model = made(torch.float32)
    shard(model, "fsdp")
    return watched(case, runs, model)


def watched(case: str, runs: str, model: nn.Module, *given: torch.optim.Optimizer) -> dict[str, Any]:
    with sonde.watch(model, *given, runs=runs, name=case, every=EVERY) as watch:
        train(model, given[0] if given else adam(model), torch.float32, range(3), (dist.get_rank(), 2))
        return {"case": case, "height": watch.rows.height}


def uneven(name: str, runs: str) -> dict[str, Any]:
    """The processes do not watch alike."""
    rank, case = dist.get_rank(), name.removeprefix("ddp_")
    inner = made(torch.float32)
    if (case, rank) == ("other_modules", 1):
        inner.more = nn.Identity()
    model, part = distributed(inner, "fsdp" if case == name else "ddp")
    optimiser = adam(model)
    watch = None
    if case not in ("only_first", "only_second") or rank == (case == "only_second"):
        every = EVERY + rank if case == "other_steps" else EVERY
        watch = sonde.watch(model, optimiser, runs=runs, name=name, every=every)
    train(model, optimiser, torch.float32, range(3), part)
    if watch is not None and (case, rank) in (("second_closes", 1), ("first_closes", 0)):
        watch.close()
    if watch is not None and (case, rank) == ("second_gives_up", 1) and watch._recorder is not None:
        watch._recorder.give_up(RuntimeError("planted"))
    if watch is not None and (case, rank) == ("second_is_silent", 1) and watch._recorder is not None:
        watch._recorder._shards.reduce = lambda *known: None  # type: ignore[method-assign]
    if (case, rank) == ("second_raises", 1):
        raise ZeroDivisionError("planted")
    train(model, optimiser, torch.float32, range(3, STEPS), part)
    if watch is not None:
        watch.close()
    return {"case": name, "height": 0 if watch is None else watch.rows.height}


PATIENCE = timedelta(seconds=300)  # for a process that a busy machine does not run


@contextmanager
def process_group(number: int) -> Iterator[None]:
    """A group for one case.  It ends when every process has done with the case: none closes connections before.

    After an exception it ends at once: no thread of it is left when the process ends with a traceback.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD"])
    store = dist.FileStore(f"{os.environ['MEETING']}-{number}", world)
    timeout = timedelta(seconds=float(os.environ.get("TIMEOUT", PATIENCE.total_seconds())))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
    try:
        yield
        store.set(f"done/{rank}", "")
        store.wait([f"done/{other}" for other in range(world)], PATIENCE)
    finally:
        gc.collect()  # what a case leaves may hold groups
        dist.destroy_process_group()


def main(runs: str, cases: list[str]) -> None:
    faulthandler.enable()
    for number, case in enumerate(cases):
        program = {"flat": flat, "no_optimiser": no_optimiser}.get(case, compared if "-" in case else uneven)
        with process_group(number):
            print(json.dumps(program(case, runs)), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2:])
