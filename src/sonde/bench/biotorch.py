"""BioTorch doing the same: its layers in place of the network's own, in a loop with the same optimiser.

Sanfiz & Akrout (2021), arXiv:2108.13446.  Its own requirements (torchvision, jupyter, …) are not needed for this:

    pip install --no-deps biotorch
"""

import contextlib
import copy
import importlib
import importlib.util
import io
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from sonde.bench.bare import Batches, optimiser
from sonde.config import Optimiser
from sonde.network import Network

ABSENT = "BioTorch is not installed, its column stays empty: pip install --no-deps biotorch"


MODES = ("fa", "dfa", "usf", "frsf", "brsf")
"""Its rules that are ours, too."""


def installed() -> bool:
    return importlib.util.find_spec("biotorch") is not None


def loop(net: Network, rule: str, batches: Batches, outputs: int) -> Callable[[], None]:
    """Cross entropy by one of BioTorch's rules, over all batches at every call."""
    kind: Any = importlib.import_module("biotorch.module.biomodule").BioModule
    with contextlib.redirect_stdout(io.StringIO()):  # it tells what it converts
        model: nn.Module = kind(copy.deepcopy(net), mode=rule, output_dim=outputs)
    adam = optimiser([p for p in model.parameters() if p.requires_grad], Optimiser(), fused=True)
    loss_of = nn.functional.cross_entropy
    broadcast = {"loss_function": loss_of} if rule == "dfa" else None

    def epoch() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its hooks are of a kind PyTorch means to drop
            for x, y in batches:
                output = model(x) if broadcast is None else model(x, targets=y, **broadcast)
                loss = loss_of(output, y)
                adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                adam.step()

    return epoch
