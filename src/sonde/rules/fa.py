"""Feedback alignment.  N samples, d width, C channels."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Facts, LocalRule, Matrix, Route, Signal
from sonde.rules.states import BackwardMatrices, Matrices, cast_like, drawn


@final
@validated
class FeedbackAlignment(LocalRule):
    """Propagate the exact top gradient back through fixed random matrices.

    Lillicrap et al. (2016), doi:10.1038/ncomms13276.  With `level: block` there is one matrix for each block:
    a_L = g_L,  a_l = a_{l+1} B_lᵀ,  B_l ~ N(0, 1/d).  B_l replaces the whole Jacobian of block l, so φ′ of the layers
    inside it is not used.  `level: layer` is the form of the paper: a fixed matrix V, normal with the size of W's
    initial entries, replaces every weight matrix W of the blocks in the backward pass; φ′, skip connections and
    normalisation stay.  With the same matrices on a stack of ReLU layers, the cosine between the two falls from .66 to
    .07 with depth.
    B_l acts on each token by itself.  For maps it mixes channels, in the same way at every position, and blocks must
    keep the shape; `level: layer` has no such limit.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`), and the default is one matrix per block.
    Exact limits: on a linear network, with B_l the transposed Jacobian of block l, it is backprop; with V = W it is
    backprop on any network.
    """

    level: Literal["block", "layer"] = "block"
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    @property
    def label(self) -> str:
        return "FA" if self.level == "block" else "FA by layers"

    @property
    def needs(self) -> str:
        if self.level == "block":
            return "the top gradient; one fixed matrix for each block"
        return "a backward pass through every block; fixed matrices in place of the weights"

    @property
    def route(self) -> Route:
        return "local" if self.level == "block" else "layer"

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices | BackwardMatrices:
        if self.level == "layer":
            return BackwardMatrices(drawn(facts, rng))
        for name, below, above in facts.transitions:
            _check(name, below, above)
        widths = [shape[0] if len(shape) == 3 else shape[-1] for shape in facts.shapes]
        return Matrices(
            [
                (torch.randn(below, above, generator=rng) / above**0.5).to(facts.device, facts.dtype)
                for below, above in pairwise(widths)
            ]
        )

    def feedback(self, state: Matrices | BackwardMatrices, units: Sequence[Matrix]) -> Matrix:
        return cast_like(state.matrices, units) if isinstance(state, BackwardMatrices) else {}

    def credits(self, state: Matrices | BackwardMatrices, signal: Signal) -> list[Tensor]:
        if isinstance(state, BackwardMatrices):
            return super().credits(state, signal)
        credits = [signal.top_gradient]
        for b_dd in reversed(state.matrices):
            above, b_dd = credits[-1], b_dd.to(credits[-1].dtype)
            credits.append(above @ b_dd.mT if above.ndim < 4 else F.conv2d(above, b_dd[:, :, None, None]))
        return credits[::-1]


def _check(name: str, below: tuple[int, ...], above: tuple[int, ...]) -> None:
    """Refuse a block whose states one matrix cannot map: it maps vectors, single tokens, or the channels of a map."""
    maps = 3 in (len(below), len(above))
    if below == above or (len(below) == len(above) and not maps and below[:-1] == above[:-1]):
        return
    before, after = ("×".join(map(str, shape)) for shape in (below, above))
    raise SondeError(
        f"fa has one matrix a block, which cannot carry credit of {after} to {before} through {name}: use dfa, or "
        f"rule.level=layer"
    )
