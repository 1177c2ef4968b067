"""Gates of recurrent layers, which no hook sees: recomputed from what enters a layer and what leaves it."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

BOUND = math.log(99)  # beyond ±this a sigmoid is within 1 % of 0 or 1


def gates(model: nn.Module, call: Callable[[nn.Module], Any]) -> dict[str, Any] | None:
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
    heard: list[tuple[Tensor, Tensor]] = []

    def hear(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(args[0], Tensor) and args[0].dim() == 3 and len(args) == 1:
            heard.append((args[0], output[0]))

    layer.register_forward_hook(hear)
    with torch.no_grad():
        call(model)
        if not heard:
            return None
        x, h = heard[0] if layer.batch_first else (one.transpose(0, 1) for one in heard[0])
        before = torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)
        own = dict(layer.named_parameters())
        z = x @ own["weight_ih_l0"].T + before @ own["weight_hh_l0"].T
        if layer.bias:
            z = z + own["bias_ih_l0"] + own["bias_hh_l0"]
        parts = z.chunk(4 if isinstance(layer, nn.LSTM) else 3, -1)
        chosen = (parts[0], parts[1], parts[3]) if isinstance(layer, nn.LSTM) else parts[:2]
        share = float((torch.cat(chosen, -1).abs() > BOUND).double().mean())
    return {"module": name or "(model)", "saturated": share}
