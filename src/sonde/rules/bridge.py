"""The small network of State Bridge and Credit Bridge; it reads (h_l, t_l, s).  N rows, d width."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sonde.network.pooling import Pooling
from sonde.rules.rule import Facts
from sonde.rules.states import default_weights

InputNorm = Literal["layer", "none"]
HIDDEN_WIDTH = 256


class BridgeNet(nn.Module):
    """An MLP with GELU on the concatenation of a state, its depth t = l/L and the side information s.

    States of one width share all layers.  If widths differ, each state has a separate first layer.
    """

    def __init__(self, widths: Sequence[int], more: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        shared = [widths[0] + more] if alike(widths) else []
        self.entries = nn.ModuleList(nn.Linear(d + more, hidden[0]) for d in widths if not shared)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise([*shared, *hidden, outputs]))

    def forward(self, h: Tensor | Sequence[Tensor], t_lN1: Tensor, s_lNS: Tensor) -> Tensor:
        """Take the states of layers 0, 1, … stacked in one tensor, or as a sequence if their widths differ."""
        if isinstance(h, Tensor):
            x = torch.cat([h, t_lN1, s_lNS], dim=-1)
        else:
            parts = [torch.cat(part, dim=-1) for part in zip(h, t_lN1, s_lNS, strict=True)]
            first = zip(self.entries, parts, strict=False)
            x = F.gelu(torch.stack([entry(part) for entry, part in first]))
        in_place = not torch.is_grad_enabled()  # no backward pass follows
        gelu = torch.ops.aten.gelu_ if in_place else F.gelu
        for layer in self.layers[:-1]:
            x = gelu(layer(x))
        out: Tensor = self.layers[-1](x)
        return out


def alike(widths: Sequence[int]) -> bool:
    return len(set(widths)) == 1


def build_bridge(
    widths: Sequence[int], more: int, hidden: Sequence[int], outputs: int, facts: Facts, rng: torch.Generator
) -> nn.Module:
    """A bridge with PyTorch's default weights, drawn from the rule's own generator."""
    return default_weights(BridgeNet, widths, more, hidden, outputs, rng=rng).to(facts.device, facts.dtype)


def widths_of(facts: Facts) -> list[int]:
    """How many numbers the bridge reads of each state."""
    return [facts.reader.width(shape) for shape in facts.shapes]


def normalised(h_Nd: Tensor, input_norm: InputNorm) -> Tensor:
    return F.layer_norm(h_Nd, h_Nd.shape[-1:]) if input_norm == "layer" else h_Nd


class BridgeRows:
    """The input of the bridge: what is read of layers 0, 1, …, with t = l/L and the side information.

    States of one width are stacked, so that their gradient is one tensor.
    """

    def __init__(
        self, states: Sequence[Tensor], depth: int, s_NS: Tensor, reader: Pooling, input_norm: InputNorm
    ) -> None:
        self.states, self.reader, self.input_norm = states, reader, input_norm
        read = [reader.read(h).detach() for h in states]
        self.together = alike([h.shape[-1] for h in read])
        self.leaves = [torch.stack(read)] if self.together else read
        layers, samples = len(read), len(read[0])
        t_l = torch.arange(layers, device=s_NS.device, dtype=s_NS.dtype) / depth
        self.t_lN1 = t_l.view(-1, 1, 1).expand(layers, samples, 1)
        self.s_lNS = s_NS.expand(layers, *s_NS.shape)

    def through(self, net: nn.Module) -> Tensor:
        """The network's output for each row, layers first."""
        seen = [normalised(h.requires_grad_(), self.input_norm) for h in self.leaves]
        out: Tensor = net(seen[0] if self.together else seen, self.t_lN1, self.s_lNS)
        return out

    def credit(self, total: Tensor, *, keep: bool = False) -> list[Tensor]:
        """The gradient of `total` at every state, in the state's shape."""
        found = torch.autograd.grad(total, self.leaves, retain_graph=keep)
        by_layer = found[0] if self.together else found
        return [self.reader.spread(a_Nd, h) for a_Nd, h in zip(by_layer, self.states, strict=True)]
