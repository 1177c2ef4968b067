"""gᵀ x, the gradient of a weight matrix, by the faster of two libraries that round it alike.

N samples, o outputs, i inputs.  PyTorch multiplies float32 matrices with MKL.  oneDNN, which PyTorch also contains,
takes about half the time on processors of AMD.  Both add up the samples in their order as long as there are few, so the
bits are the same.  Whether they are is tested once for every shape; where one bit differs, MKL is used.
"""

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

Product = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(g, x, out) → gᵀ x, in `out`."""

_SMALLEST = 1 << 22  # multiplications: below, a call takes longer than what it saves
_SCALES = (1.0, 1e-20)  # of the numbers that are compared: squares of the second are denormal
_TRIES = 3


def faster_product(samples: int, outputs: int, inputs: int, like: Tensor) -> Product:
    """The product for tensors of this shape, in the type and on the device of `like`."""
    suited = like.dtype == torch.float32 and like.device.type == "cpu" and samples * outputs * inputs >= _SMALLEST
    return _compared(samples, outputs, inputs, torch.get_num_threads()) if suited else by_mm


def by_mm(g_No: Tensor, x_Ni: Tensor, out_oi: Tensor) -> Tensor:
    """PyTorch's own product."""
    return torch.mm(g_No.T, x_Ni, out=out_oi)


def by_onednn(g_No: Tensor, x_Ni: Tensor, out_oi: Tensor) -> Tensor:
    """The same by oneDNN, which has no `out`; it is slow for tensors that are not contiguous, so MKL gets these."""
    if not (g_No.is_contiguous() and x_Ni.is_contiguous()):
        return by_mm(g_No, x_Ni, out_oi)
    return out_oi.copy_(torch.ops.mkldnn._linear_pointwise(g_No.T, x_Ni.T, None, "none", [], ""))


@cache
def _compared(samples: int, outputs: int, inputs: int, threads: int) -> Product:
    """oneDNN's product where it exists, gives the same bits and is faster; else `by_mm`."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return by_mm
    rng = torch.Generator().manual_seed(0)
    g_No, x_Ni = (torch.randn(samples, width, generator=rng) for width in (outputs, inputs))
    ours, theirs = torch.empty(outputs, inputs), torch.empty(outputs, inputs)
    for scale in _SCALES:
        if not torch.equal(by_onednn(scale * g_No, scale * x_Ni, ours), by_mm(scale * g_No, scale * x_Ni, theirs)):
            return by_mm
    return min((by_mm, by_onednn), key=lambda product: _seconds(product, g_No, x_Ni, ours))


def _seconds(product: Product, g_No: Tensor, x_Ni: Tensor, out_oi: Tensor) -> float:
    times = []
    for _ in range(_TRIES):
        begin = time.process_time()
        product(g_No, x_Ni, out_oi)
        times.append(time.process_time() - begin)
    return min(times)
