"""One pass of a copy, operation by operation: what the hooks of modules do not see.

Functions such as `F.relu`, `softmax` or `log` are no modules.  A dispatch mode reads each as it is computed, with the
module it belongs to.  Gates of recurrent layers are recomputed from a layer's input and output.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sonde.metrics.reductions import at_bounds, unit_bounds
from sonde.observe.facts import finite_or_none

_FILLS = (
    "fill",
    "full",
    "masked_fill",
    "where",
    "copy",
    "empty",
    "zeros",
    "ones",
    "constant",
    "scatter",
    "index_put",
)
_GATE_BOUND = math.log(99)  # beyond ±this a sigmoid is within 1 % of 0 or 1
_ACTIVATIONS = ("relu", "tanh", "sigmoid", "_softmax", "gelu", "silu", "elu", "leaky_relu", "hardtanh", "softplus")


class _ReadOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.where: list[str] = []
        self.first_broken: dict[str, Any] | None = None
        self.dead: dict[str, float] = {}
        self.saturated: dict[str, float] = {}
        self.attention: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.").split(".")[0]
        if isinstance(out, Tensor) and out.layout == torch.strided and out.is_floating_point() and out.numel():
            if self.first_broken is None and not any(word in name for word in _FILLS):
                self._find_nonfinite(name, args, out)
            if name in _ACTIVATIONS and out.dim() > 1:
                self._read_activation(name, args, out)
        return out

    @property
    def place(self) -> str:
        return self.where[-1] if self.where else "the loss"

    def _find_nonfinite(self, name: str, args: Any, out: Tensor) -> None:
        if bool(out.isfinite().all()):
            return
        inputs = [x for x in args if isinstance(x, Tensor) and x.is_floating_point()]
        masked = any(bool(x.isinf().any()) and not bool(x.isnan().any()) for x in inputs)
        if masked and not bool(out.isnan().any()):
            return  # −∞ of a mask
        first = inputs[0] if inputs else out
        self.first_broken = {
            "operation": name.strip("_"),
            "module": self.place,
            "smallest_input": finite_or_none(float(first.double().nan_to_num(0.0, 0.0, 0.0).min())),
            "largest_input": finite_or_none(float(first.double().nan_to_num(0.0, 0.0, 0.0).abs().max())),
        }

    def _read_activation(self, name: str, args: Any, out: Tensor) -> None:
        units = 1 if out.dim() > 3 else out.dim() - 1
        key = f"{self.place}:{name.strip('_')}"
        if name == "relu":
            _, high = unit_bounds(out, units, never_negative=True)
            self.dead[key] = max(self.dead.get(key, 0.0), float((high == 0).double().mean()))
        if name in ("tanh", "sigmoid"):
            count = at_bounds(out, (-1.0 if name == "tanh" else 0.0, 1.0))
            self.saturated[key] = max(self.saturated.get(key, 0.0), float(count) / out.numel())
        if name == "_softmax" and out.dim() >= 3 and out.shape[-1] > 1 and self.where:
            logits = args[0]
            finite = logits[logits.isfinite()]
            open_rows = logits.isfinite().sum(-1) > 1  # with more than one key that is not masked
            sharp = (out.amax(-1) > 0.99)[open_rows]
            self.attention.append(
                {
                    "module": self.place,
                    "one_hot_share": float(sharp.double().mean()) if sharp.numel() else 0.0,
                    "max_logit": finite_or_none(float(finite.abs().max())) if finite.numel() else 0.0,
                }
            )


def traced(model: nn.Module, call: Callable[[], Any]) -> dict[str, Any]:
    """Read every operation while `call` runs the model (a copy that may be hooked) and its loss."""
    reading = _ReadOperations()
    handles: list[Any] = []
    for name, module in model.named_modules():
        label = name or "(model)"
        handles.append(module.register_forward_pre_hook(lambda m, a, label=label: reading.where.append(label)))
        handles.append(module.register_forward_hook(lambda m, a, o: reading.where.pop() and None, always_call=True))
    try:
        with reading:
            call()
    finally:
        for handle in handles:
            handle.remove()
    return {
        "first_broken": reading.first_broken,
        "dead": reading.dead,
        "saturated": reading.saturated,
        "attention": reading.attention,
    }


def gate_saturation(model: nn.Module, call: Callable[[nn.Module], Any]) -> dict[str, Any] | None:
    """The share of the first LSTM's or GRU's sigmoid gates that are at a bound, over samples and places; None if none.

    z_t = W_ih x_t + b_ih + W_hh h_{t−1} + b_hh, with h from the layer's own output; a GRU's candidate and an LSTM's
    cell input are no gates.
    """
    name, layer = next(
        ((name, module) for name, module in model.named_modules() if isinstance(module, nn.LSTM | nn.GRU)),
        ("", None),
    )
    if layer is None or layer.num_layers > 1 or layer.bidirectional or layer.proj_size:
        return None
    seen: list[tuple[Tensor, Tensor]] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(args[0], Tensor) and args[0].dim() == 3 and len(args) == 1:
            seen.append((args[0], output[0]))

    layer.register_forward_hook(record)
    with torch.no_grad():
        call(model)
        if not seen:
            return None
        x, h = seen[0] if layer.batch_first else (one.transpose(0, 1) for one in seen[0])
        before = torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)
        own = dict(layer.named_parameters())
        z = x @ own["weight_ih_l0"].T + before @ own["weight_hh_l0"].T
        if layer.bias:
            z = z + own["bias_ih_l0"] + own["bias_hh_l0"]
        parts = z.chunk(4 if isinstance(layer, nn.LSTM) else 3, -1)
        chosen = (parts[0], parts[1], parts[3]) if isinstance(layer, nn.LSTM) else parts[:2]
        share = float((torch.cat(chosen, -1).abs() > _GATE_BOUND).double().mean())
    return {"module": name or "(model)", "saturated": share}
