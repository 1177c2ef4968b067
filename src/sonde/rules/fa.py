"""Feedback alignment.  N samples, d width, C channels."""

from itertools import pairwise
from typing import Annotated, ClassVar, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge
from torch import Tensor

from sonde.checked import checked
from sonde.errors import SondeError
from sonde.rules.rule import CreditScale, Facts, Matrices, Route, Rule, Signal


@final
@checked
class FeedbackAlignment(Rule):
    """Carry the exact top gradient down through fixed random matrices, one a block.

    Lillicrap et al. (2016), doi:10.1038/ncomms13276:  a_L = g_L,  a_l = a_{l+1} B_lᵀ,  B_l ~ N(0, 1/d).
    This is feedback at the level of blocks: B_l stands for the whole Jacobian of block l and leaves out φ′ of the
    layers inside it.  So it is not the layer-wise form, which has a matrix for every linear layer and keeps φ′: with
    the same matrices on a stack of ReLU layers, the cosine between the two falls from .66 to .07 with depth.
    Of tokens B_l acts on each; of maps it mixes channels, the same at every position, and blocks must keep the shape.
    Exact limit: with B_l the transposed Jacobian of block l of a linear network it is backprop.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "FA"
    route: ClassVar[Route] = "local"
    reads_top_gradient: ClassVar[bool] = True

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        for name, below, above in facts.transitions:
            _check(name, below, above)
        widths = [shape[0] if len(shape) == 3 else shape[-1] for shape in facts.shapes]
        return Matrices(
            [
                (torch.randn(below, above, generator=rng) / above**0.5).to(facts.device, facts.dtype)
                for below, above in pairwise(widths)
            ]
        )

    def credits(self, state: Matrices, signal: Signal) -> list[Tensor]:
        credits = [signal.top_gradient]
        for b_dd in reversed(state.matrices):
            above, b_dd = credits[-1], b_dd.to(credits[-1].dtype)
            credits.append(above @ b_dd.mT if above.ndim < 4 else F.conv2d(above, b_dd[:, :, None, None]))
        return credits[::-1]


def _check(name: str, below: tuple[int, ...], above: tuple[int, ...]) -> None:
    """A matrix a block carries vectors, tokens one by one, or the channels of a map position by position."""
    maps = 3 in (len(below), len(above))
    if below == above or (len(below) == len(above) and not maps and below[:-1] == above[:-1]):
        return
    before, after = ("×".join(map(str, shape)) for shape in (below, above))
    raise SondeError(
        f"fa has one matrix a block, which cannot carry credit of {after} to {before} through {name}: use dfa, or a "
        f"rule of the route 'layer'"
    )
