"""Chains of units out of ordinary modules."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.network.chained import Chain
from sonde.network.names import example, grouped, named
from sonde.network.pooling import ReaderName


def chain(
    module: nn.Module,
    units: Sequence[str] | None = None,
    *,
    readout: str | Callable[[Any], Tensor] | None = None,
    sample: Tensor | None = None,
    reader: ReaderName | None = None,
) -> Chain:
    """Let rules and probes see a module as h_0 = embed(x), h_{l+1} = unit_l(h_l), output = readout(h_L).

        net = sonde.chain(gpt, units=["transformer.h.*"], sample=tokens)

    `units` names submodules in the order in which they run; `*` stands for any name between two dots.  Those of an
    `nn.Sequential` need not be named: one begins at every child that has a weight matrix, the first of them is the
    embedding and the last the readout (of two, the first is the unit).  `readout` may name the submodule with which
    the readout begins, or be a function from what the module returns to the output.  `reader` says which vector of a
    sample is read; by default it is found out on the first samples.

    It is checked on the sample batch, or on the first that is seen, that the units are a chain and give the module's
    own output.  A copy is run for it: the module, its mode, its statistics and all generators stay as they are.

    A unit that returns a tuple returns the state first.  Where a rule cuts the graph between units, what a unit is
    told beside the state is cut as well.
    """
    begins = readout if isinstance(readout, str) else None
    if units is not None:
        spans = [(name, name) for name in named(module, units)]
    elif isinstance(module, nn.Sequential):
        spans = grouped(module, begins)
    else:
        raise SondeError(
            f"{type(module).__name__} is no nn.Sequential: name the units, such as units=[{example(module)!r}]"
        )
    made = Chain(module, spans, None if isinstance(readout, str) else readout, begins, reader)
    if sample is not None:
        made.check(sample)
    return made


__all__ = ["Chain", "chain"]
