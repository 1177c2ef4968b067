"""One forward pass of a copy, operation by operation: what the modules' hooks cannot see.

Functions such as `F.relu`, `softmax` or `log` are no modules; here each is heard as it is computed, with the module it
belongs to.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn, strided
from torch.utils._python_dispatch import TorchDispatchMode

FILLS = (
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
BENDS = ("relu", "tanh", "sigmoid", "_softmax", "gelu", "silu", "elu", "leaky_relu", "hardtanh", "softplus")


class _Listening(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
        if isinstance(out, Tensor) and out.layout == strided and out.is_floating_point() and out.numel():
            if self.first_broken is None and not any(word in name for word in FILLS):
                self._judge(name, args, out)
            if name in BENDS and out.dim() > 1:
                self._look(name, args, out)
        return out

    @property
    def place(self) -> str:
        return self.where[-1] if self.where else "the loss"

    def _judge(self, name: str, args: Any, out: Tensor) -> None:
        if bool(out.isfinite().all()):
            return
        inputs = [x for x in args if isinstance(x, Tensor) and x.is_floating_point()]
        masked = any(bool(x.isinf().any()) and not bool(x.isnan().any()) for x in inputs)
        if masked and not bool(out.isnan().any()):
            return  # what was masked on purpose passes through
        first = inputs[0] if inputs else out
        self.first_broken = {
            "operation": name.strip("_"),
            "module": self.place,
            "smallest_input": _plain(float(first.double().nan_to_num(0.0, 0.0, 0.0).min())),
            "largest_input": _plain(float(first.double().nan_to_num(0.0, 0.0, 0.0).abs().max())),
        }

    def _look(self, name: str, args: Any, out: Tensor) -> None:
        units = 1 if out.dim() > 3 else out.dim() - 1
        key = f"{self.place}:{name.strip('_')}"
        if name == "relu":
            rest = [axis for axis in range(out.dim()) if axis != units]
            self.dead[key] = max(self.dead.get(key, 0.0), float((out.amax(rest) == 0).double().mean()))
        if name in ("tanh", "sigmoid"):
            low = -1.0 if name == "tanh" else 0.0
            ends = (out < low + 0.01) | (out > 0.99)
            self.saturated[key] = max(self.saturated.get(key, 0.0), float(ends.double().mean()))
        if name == "_softmax" and out.dim() >= 3 and out.shape[-1] > 1 and self.where:
            logits = args[0]
            finite = logits[logits.isfinite()]
            open_rows = logits.isfinite().sum(-1) > 1  # those that may look at more than one place
            sharp = (out.amax(-1) > 0.99)[open_rows]
            self.attention.append(
                {
                    "module": self.place,
                    "one_hot_share": float(sharp.double().mean()) if sharp.numel() else 0.0,
                    "max_logit": _plain(float(finite.abs().max())) if finite.numel() else 0.0,
                }
            )


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def trace(model: nn.Module, call: Callable[[], Any]) -> dict[str, Any]:
    """What was heard while `call` ran the model (a copy that may be hooked) and its loss."""
    listening = _Listening()
    handles: list[Any] = []
    for name, module in model.named_modules():
        label = name or "(model)"
        handles.append(module.register_forward_pre_hook(lambda m, a, label=label: listening.where.append(label)))
        handles.append(module.register_forward_hook(lambda m, a, o: listening.where.pop() and None, always_call=True))
    try:
        with listening:
            call()
    finally:
        for handle in handles:
            handle.remove()
    return {
        "first_broken": listening.first_broken,
        "dead": listening.dead,
        "saturated": listening.saturated,
        "attention": listening.attention,
    }
