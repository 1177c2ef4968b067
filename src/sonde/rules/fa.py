"""Feedback alignment, fixed or with the signs of the weights, and backward matrices that learn the forward ones.

N or S samples, d width, C channels, i inputs, o outputs.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge, Gt
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Facts, LocalRule, Matrix, Route, Rule, Signal
from sonde.rules.states import BackwardMatrices, Matrices, StoredState, cast_like, drawn, seeded, sizes, weights_of


@final
@validated
class FeedbackAlignment(LocalRule):
    """Propagate the exact top gradient back through fixed random matrices.

    Lillicrap et al. (2016), doi:10.1038/ncomms13276.  With `level: block` there is one matrix for each block:
    a_L = g_L,  a_l = a_{l+1} B_lᵀ,  B_l ~ N(0, 1/d).  B_l replaces the whole Jacobian of block l, so φ′ of the layers
    inside it is not used.  `level: layer` is the form of the paper: a fixed matrix V replaces every weight
    matrix W of the blocks in the backward pass.  V is normal, with the size of W's initial entries; φ′, skip
    connections and normalisation stay.  On a stack of ReLU layers the credits of the two forms differ, even with the
    same matrices.
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


class Followers(BackwardMatrices):
    """V.  Until V has changed once, also the first W and V of the last step, to check that V is trained."""

    def __init__(self, matrices: dict[str, nn.Parameter]) -> None:
        super().__init__(dict(matrices))
        self.parameters = list(matrices.values())
        self.seen: tuple[Tensor, Tensor] | None = None
        self.moved = not matrices

    def follow(self, gradients: Matrix) -> None:
        """Set the gradient of V to that of W; the optimiser updates both."""
        for name, v in self.matrices.items():
            if v.grad is not None and name in gradients:
                v.grad.copy_(gradients[name])
            else:
                v.grad = gradients[name].clone() if name in gradients else None

    def check(self, weights: Matrix) -> None:
        """Refuse an optimiser that updates W but not V.  The compared values do not affect training."""
        name, v = next(iter(self.matrices.items()))
        w = weights[name]
        if self.seen is not None:
            self.moved = not torch.equal(v, self.seen[1])
            if not self.moved and not torch.equal(w, self.seen[0]):
                raise SondeError(
                    "kp: the optimiser changed the weights and not the backward matrices that follow them: make it "
                    "with assignment.parameters() in place of the network's own"
                )
        self.seen = None if self.moved else (w.clone(), v.clone())


@final
@validated
class KolenPollack(Rule):
    """Backprop through V instead of W.  V receives the same updates and weight decay as W, so it converges to W.

    Kolen & Pollack (1994); Akrout et al. (2019), arXiv:1904.05391:  W ← (1 − ηλ)W + ΔW,  V ← (1 − ηλ)V + ΔW.  V starts
    as an independent draw.  It gets the gradient of W and the same optimiser with the same weight decay; it never
    reads W itself.  Under AdamW, and under SGD without momentum, V − W shrinks by 1 − ηλ at every step; η is the
    learning rate and λ the `weight_decay` of the optimiser.  With `weight_decay` 0 it does not shrink.  The decay of
    `adam` goes through its moments, so V − W need not shrink by this factor.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`), and the studies train with AdamW, whose ηλ
    is at most 1e-5.
    Exact limits: with V = W it is backprop; with λ > 0 it becomes backprop after enough steps.
    Version 1 set V to W plus a difference that decayed by 1e-3 a step: it read W, and W did not decay with it.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "KP"
    needs: ClassVar[str] = "a backward pass through every block; matrices that get the updates and decay of the weights"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")
    version: ClassVar[int] = 2

    def init(self, facts: Facts, rng: torch.Generator) -> Followers:
        return Followers({name: nn.Parameter(v, requires_grad=False) for name, v in drawn(facts, rng).items()})

    def feedback(self, state: BackwardMatrices, units: Sequence[Matrix]) -> Matrix:
        return cast_like(state.matrices, units)

    def update(self, state: Followers, signal: Signal) -> dict[str, Tensor]:
        if not state.moved:
            state.check(weights_of(signal.units))
        state.follow(weights_of(signal.gradients_of_units))
        return {}

    def followers(self, state: Followers) -> list[nn.Parameter]:
        return state.parameters


class Mirrors(StoredState):
    """V, the generator of the noise, and the number of steps."""

    parts: ClassVar = {"matrices": "matrices", "rng": "rng", "steps": "steps"}

    def __init__(self, matrices: dict[str, Tensor], rng: torch.Generator) -> None:
        self.matrices, self.rng, self.steps = matrices, rng, 0


@final
@validated
class WeightMirror(Rule):
    """Backprop through V instead of W.  Every `every` steps V learns W from the response of W to noise.

    Akrout et al. (2019), arXiv:1904.05391:  y = W x,  V ← V + rate · cov(y, x),  and then V gets the norm of W again.
    x are `samples` normal vectors, so cov(y, x) is W in expectation.  The input of a convolution's matrix is a patch.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).  The noise passes through W alone, without
    bias and activation function.  V is rescaled to the norm of W, which the paper's rule does not read.
    Exact limit: V converges to W as the number of samples grows.
    """

    every: Annotated[int, Ge(1)] = 10
    samples: Annotated[int, Ge(2)] = 128
    rate: Annotated[float, Gt(0)] = 0.1
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "mirror"
    needs: ClassVar[str] = "a backward pass through every block; matrices that learn the weights from noise"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> Mirrors:
        return Mirrors(drawn(facts, rng), seeded(rng))

    def feedback(self, state: Mirrors, units: Sequence[Matrix]) -> Matrix:
        return cast_like(state.matrices, units)

    def update(self, state: Mirrors, signal: Signal) -> dict[str, Tensor]:
        if state.steps % self.every == 0:
            for name, w in weights_of(signal.units).items():
                v_oi, w_oi = state.matrices[name].flatten(1), w.flatten(1)
                x_Si = torch.randn(self.samples, w_oi.shape[1], generator=state.rng).to(w)
                y_So = x_Si @ w_oi.mT
                v_oi.addmm_((y_So - y_So.mean(0)).mT, x_Si - x_Si.mean(0), alpha=self.rate / (self.samples - 1))
                v_oi.mul_(w.norm() / v_oi.norm().clamp_min(torch.finfo(v_oi.dtype).tiny))
        state.steps += 1
        return {}


@final
@validated
class UniformSigns(Rule):
    """Backprop that uses only the signs of the weights in the backward pass.  Also known as sign symmetry.

    Liao, Leibo & Poggio (2016), arXiv:1510.05067:  V = s·sign(W) replaces every weight matrix W of the blocks; s is
    the standard deviation of W's initial entries.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: if all weights are ±s it is backprop.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "uSF"
    needs: ClassVar[str] = "a backward pass through every block; the signs of the weights"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> BackwardMatrices:
        return BackwardMatrices(sizes(facts))

    def feedback(self, state: BackwardMatrices, units: Sequence[Matrix]) -> Matrix:
        scale = cast_like(state.matrices, units)
        return {name: w.sign().mul_(scale[name]) for name, w in weights_of(units).items()}


@final
@validated
class FixedMagnitudes(Rule):
    """Backprop that uses the signs of the weights and fixed random magnitudes in the backward pass.

    Liao, Leibo & Poggio (2016), arXiv:1510.05067:  V = |M| ∘ sign(W); M is drawn once, normal, with the size of W's
    initial entries.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).
    Exact limit: with |M| = |W| it is backprop.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "frSF"
    needs: ClassVar[str] = "a backward pass through every block; the signs of the weights, fixed random magnitudes"
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> BackwardMatrices:
        return BackwardMatrices({name: m.abs_() for name, m in drawn(facts, rng).items()})

    def feedback(self, state: BackwardMatrices, units: Sequence[Matrix]) -> Matrix:
        magnitudes = cast_like(state.matrices, units)
        return {name: w.sign().mul_(magnitudes[name]) for name, w in weights_of(units).items()}


class DrawnMagnitudes(StoredState):
    """The sizes of the magnitudes, and the generator they are drawn from."""

    parts: ClassVar = {"scale": "scale", "rng": "rng"}

    def __init__(self, scale: BackwardMatrices, rng: torch.Generator) -> None:
        self.scale, self.rng = scale, rng


@final
@validated
class BatchMagnitudes(Rule):
    """Backprop that uses the signs of the weights and draws new magnitudes at every step for the backward pass.

    Liao, Leibo & Poggio (2016), arXiv:1510.05067:  V = |M| ∘ sign(W); |M| is uniform between 0 and √3·s, and s is the
    standard deviation of W's initial entries.  So V has the size of W's initial matrix.  Magnitudes have 15 bits.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`), and the first draw is discarded, because
    the check of the products before training takes it.
    Exact limit: in expectation it is `usf`, times √3/2.
    """

    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "brSF"
    needs: ClassVar[str] = (
        "a backward pass through every block; the signs of the weights, magnitudes drawn at every step"
    )
    route: ClassVar[Route] = "layer"
    chance: ClassVar[Rule] = FeedbackAlignment(level="layer")

    def init(self, facts: Facts, rng: torch.Generator) -> DrawnMagnitudes:
        return DrawnMagnitudes(BackwardMatrices(sizes(facts)), seeded(rng))

    def feedback(self, state: DrawnMagnitudes, units: Sequence[Matrix]) -> Matrix:
        weights, scale = weights_of(units), cast_like(state.scale.matrices, units)
        draw = Magnitudes(max((w.numel() for w in weights.values()), default=0), state.rng)
        to_size = math.sqrt(3) / LARGEST_MAGNITUDE
        return {name: w.sign().mul_(draw(w)).mul_(scale[name] * to_size) for name, w in weights.items()}


LARGEST_MAGNITUDE = 2**15


class Magnitudes:
    """Draws integers, uniform from 0 to `LARGEST_MAGNITUDE`, four from every 64 random bits.

    All draws are written to the same memory: the result of a call is valid until the next call.
    """

    def __init__(self, most: int, rng: torch.Generator) -> None:
        self.bits, self.rng = torch.empty(-(-most // 4), dtype=torch.int64), rng
        self.numbers = torch.empty(most)

    def __call__(self, like: Tensor) -> Tensor:
        count = like.numel()
        self.bits[: -(-count // 4)].random_(generator=self.rng)
        drawn = self.numbers[:count].copy_(self.bits.view(torch.int16)[:count]).abs_()
        return drawn.view(like.shape).to(like)
