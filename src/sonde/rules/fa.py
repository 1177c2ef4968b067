"""Feedback alignment.  N samples, d width, C channels."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.rules.layers import Backward, cast, drawn
from sonde.rules.rule import CreditScale, Facts, LocalRule, Matrices, Matrix, Route, Signal


@final
@validated
class FeedbackAlignment(LocalRule):
    """Carry the exact top gradient down through fixed random matrices.

    Lillicrap et al. (2016), doi:10.1038/ncomms13276.  With `level: block`, one matrix a block:  a_L = g_L,
    a_l = a_{l+1} B_lᵀ,  B_l ~ N(0, 1/d).  B_l stands for the whole Jacobian of block l and leaves out φ′ of the layers
    inside it.  With `level: layer`, the form of the paper: a fixed matrix V for every weight matrix W of the blocks,
    normal with the size of W's initial entries, takes W's place on the way back; φ′, skip connections and
    normalisation stay.  With the same matrices on a stack of ReLU layers, the cosine between the two falls from .66
    to .07 with depth.
    Of tokens B_l acts on each; of maps it mixes channels, the same at every position, and blocks must keep the shape,
    which V need not.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`), and the default is one matrix a block.
    Exact limits: with B_l the transposed Jacobian of block l of a linear network it is backprop; with V = W, of any.
    """

    level: Literal["block", "layer"] = "block"
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    reads_top_gradient: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return "FA" if self.level == "block" else "FA by layers"

    @property
    def route(self) -> Route:
        return "local" if self.level == "block" else "layer"

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices | Backward:
        if self.level == "layer":
            return Backward(drawn(facts, rng))
        for name, below, above in facts.transitions:
            _check(name, below, above)
        widths = [shape[0] if len(shape) == 3 else shape[-1] for shape in facts.shapes]
        return Matrices(
            [
                (torch.randn(below, above, generator=rng) / above**0.5).to(facts.device, facts.dtype)
                for below, above in pairwise(widths)
            ]
        )

    def feedback(self, state: Matrices | Backward, units: Sequence[Matrix]) -> Matrix:
        return cast(state.matrices, units) if isinstance(state, Backward) else {}

    def credits(self, state: Matrices | Backward, signal: Signal) -> list[Tensor]:
        if isinstance(state, Backward):
            return super().credits(state, signal)
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
        f"fa has one matrix a block, which cannot carry credit of {after} to {before} through {name}: use dfa, or "
        f"rule.level=layer"
    )
