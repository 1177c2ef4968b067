"""How many operations the matrix products and convolutions of a training step are, counted as they run."""

import copy
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from sonde.network import Network
from sonde.rules import Rule
from sonde.training.assign import CreditAssignment

STEPS = 10  # of which the mean is taken: not every rule does the same in each


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts whatever runs inside, forward and back."""

    total: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=out)
        return out


def operations(net: Network, rule: Rule, x: Tensor) -> int:
    """Of one step of classification on the batch x, beside the optimiser's."""
    assignment = CreditAssignment(copy.deepcopy(net), rule, sample=x)
    y = torch.zeros(len(x), dtype=torch.int64)
    counter: Any = Counter()  # type: ignore[no-untyped-call]
    with counter:
        for _ in range(STEPS):
            assignment.backward(x, y)
    return int(counter.total) // STEPS
