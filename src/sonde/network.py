"""The shape every network has: embed → blocks → readout.  All that rules and probes know of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from sonde.errors import SondeError


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What a task asks of a network: from inputs of this shape to so many outputs."""

    shape: tuple[int, ...]
    outputs: int
    classifies: bool


class Network(nn.Module):
    """h_0 = embed(x);  h_{l+1} = h_l + block_l(h_l), or block_l(h_l) where not residual;  readout(h_L)."""

    def __init__(
        self, embed: nn.Module, blocks: Iterable[nn.Module], readout: nn.Module, *, residual: bool
    ) -> None:
        super().__init__()
        self.embed = embed
        self.blocks = nn.ModuleList(blocks)
        self.readout = readout
        self.residual = residual
        self.lead = 0  # axes before the samples: 1 where several replicas are stacked

    @classmethod
    def of(cls, module: nn.Module) -> "Network":
        """The same parts as a `Network`: `embed`, `blocks`, `readout` and, if it says so, `residual`."""
        missing = [part for part in ("embed", "blocks", "readout") if not hasattr(module, part)]
        if missing:
            raise SondeError(
                f"{type(module).__name__} has no {' and no '.join(missing)}: rules and probes need them"
            )
        residual = bool(getattr(module, "residual", False))
        return cls(module.embed, module.blocks, module.readout, residual=residual)  # type: ignore[arg-type]

    def states(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """h_0 … h_L, and the output."""
        states = [self.embed(x)]
        for block in self.blocks:
            h = states[-1]
            states.append(h + block(h) if self.residual else block(h))
        return states, self.readout(states[-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.states(x)[1]
