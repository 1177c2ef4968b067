"""Sharded parameters: the part that this process holds, and whether it counts it."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_ELSEWHERE = "the parameter is sharded over other processes than rank 0"


def is_sharded(x: Tensor) -> bool:
    """Whether the tensor is a DTensor.  Its module is not imported for that: it takes long, and few programs use it."""
    known = sys.modules.get("torch.distributed.tensor")
    return known is not None and isinstance(x, known.DTensor)


def is_flat(x: Tensor) -> bool:
    """Whether a plain parameter is, or may be, a part of a flat parameter of FSDP1, which tells nothing of the rest."""
    return getattr(x, "_fsdp_flattened", False) and is_initialised() and dist.get_world_size() > 1


def unreadable_part(x: Any) -> str | None:
    """Why the norm of a DTensor is not the root of a sum of squares over its parts, or None."""
    odd = [repr(placement) for placement in x.placements if not (_is_split(placement) or placement.is_replicate())]
    if odd:
        return f"a DTensor with the placement {', '.join(odd)} is not read: its parts are not entries of the whole"
    local = x.detach().to_local()
    if local.layout != torch.strided or local.is_complex():
        return "a sparse or complex DTensor is not read"
    if local.is_meta:
        return "a DTensor on the device meta has no values"
    return _ELSEWHERE if is_initialised() and dist.get_rank() == 0 and not _counts(x) else None


def own_part(x: Tensor) -> Tensor:
    """The entries that this process counts: of a DTensor its part, or none if another process counts that part."""
    x = x.detach()
    if not is_sharded(x):
        return x
    held: Any = x
    part: Tensor = held.to_local()
    return part if _counts(held) else part.new_zeros(0)


def _is_split(placement: Any) -> bool:
    return bool(placement.is_shard()) or type(placement).__name__ == "_StridedShard"


def _counts(x: Any) -> bool:
    """Of several copies of a part, the one that counts has the place of rank 0 on the axes that are replicated."""
    mesh = x.device_mesh
    first = (mesh.mesh == 0).nonzero().tolist()
    here = mesh.get_coordinate()
    if not first or here is None:
        return False
    pairs = zip(x.placements, here, first[0], strict=True)
    return all(mine == its for placement, mine, its in pairs if placement.is_replicate())


def is_initialised() -> bool:
    """Whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()
