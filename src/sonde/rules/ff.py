"""Forward-Forward: every unit tells inputs with a true label from inputs with a wrong one.  N samples, C classes."""

import math
from typing import Annotated, ClassVar, Literal, final

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.network import Network
from sonde.rules.rule import CreditScale, Evaluation, Facts, Pair, Route, Rule, Signal
from sonde.rules.states import RandomState, seeded

NEEDS_LABELS = "ff writes a label into the inputs: it needs a task with one of several labels per sample"


def with_label(x: Tensor, label_NC: Tensor) -> Tensor:
    """The inputs with a label written over the first C numbers of each sample."""
    marked = x.flatten(1).clone()
    marked[:, : label_NC.shape[-1]] = label_NC
    return marked.view_as(x)


class Neutral:
    """Writes the label 1/C of every class, which favours none."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def __call__(self, x: Tensor) -> Tensor:
        return with_label(x, x.new_full((1, self.classes), 1 / self.classes))


def normalised(h: Tensor) -> Tensor:
    """h/(RMS(h) + 1e-8), of each sample."""
    rms_N = h.flatten(1).square().mean(-1).sqrt() + 1e-8
    return h / rms_N.view(-1, *[1] * (h.ndim - 1))


def features(h: Tensor) -> int:
    """The axis of the features: the last one of vectors and tokens, the channels of maps."""
    return 1 if h.ndim == 4 else -1


def goodness(h: Tensor) -> Tensor:
    """G = Σ h² over the features, the mean of it over tokens or positions, of each sample."""
    return h.square().sum(features(h)).reshape(len(h), -1).mean(-1)


@final
@validated
class ForwardForward(Rule):
    """Let every unit make the squares of its output large for a true label and small for a wrong one.

    Hinton (2022), arXiv:2212.13345:  a label is written over the first C inputs.  It is the true one in the positive
    pass, and a wrong one that the rule draws in the negative pass.  With G = Σ h² over the d features of a state and
    θ = `threshold`, every state descends softplus(θd − G⁺) + softplus(G⁻ − θd).  G of tokens and maps is the mean over
    tokens or positions.  No gradient crosses a unit.  Units read h/RMS(h), which has lost the goodness of the unit
    below.  The prediction `goodness` is the class whose label gives the largest Σ_{l≥1} G_l, in C passes.  These sums
    are the output that loss and accuracy are measured with.  The prediction `readout` is the network's readout.  With
    both, the readout is trained on inputs with the neutral label 1/C.  The numbers that labels are written over are
    lost.  Probes see the network on neutral labels.
    Not as in the paper: wrong labels are drawn uniformly, not by how likely the network finds them.  There is no peer
    normalisation, and the readout reads the last state alone.  Blocks keep their skip connection and normalisation, so
    the input alone gives them a goodness of about d.
    Exact limit: for one layer the gradient is that of autograd for both passes.
    """

    threshold: float = 1.0
    prediction: Literal["goodness", "readout"] = "goodness"
    credit_scale: CreditScale = "none"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "FF"
    needs: ClassVar[str] = "labels among the inputs; a second and a third forward pass, C more to predict"
    route: ClassVar[Route] = "states"
    reads_top_gradient: ClassVar[bool] = False
    chance: ClassVar[None] = None
    undefined_credit: ClassVar[str] = "Forward-Forward descends a goodness of its own, not the loss"
    first_options: ClassVar[tuple[str, ...]] = ("threshold", "prediction", "credit_scale", "penalty")

    @property
    def owns_prediction(self) -> bool:
        return self.prediction == "goodness"

    def prepare(self, net: Network, facts: Facts) -> None:
        inputs, classes = math.prod(facts.input_shape), math.prod(facts.output_shape)
        if not facts.labels or len(facts.output_shape) != 1 or classes < 2:
            raise SondeError(NEEDS_LABELS)
        if not facts.real_inputs or inputs <= classes:
            raise SondeError(
                f"ff writes one of {classes} labels over the first inputs: it needs more than {classes} real numbers "
                "per sample"
            )
        net.entry, net.between = Neutral(classes), normalised

    def init(self, facts: Facts, rng: torch.Generator) -> RandomState:
        return RandomState(seeded(rng))

    def pairs(self, state: RandomState, signal: Signal) -> list[Pair]:
        classes = signal.output_NC.shape[-1]
        if signal.y.is_floating_point() or signal.y.ndim != 1:
            raise SondeError(NEEDS_LABELS)
        apart = torch.randint(1, classes, signal.y.shape, generator=state.rng).to(signal.y)
        found = []
        for label, sign in ((signal.y, 1.0), ((signal.y + apart) % classes, -1.0)):
            *units, _ = signal.run(with_label(signal.x, F.one_hot(label, classes).to(signal.x)))
            found += [Pair(unit, self._credit(unit, sign)) for unit in units]
        return found

    def _credit(self, unit: Evaluation, sign: float) -> Tensor:
        """∂/∂h of softplus(θd − G) for sign 1, of softplus(G − θd) for sign −1."""
        h = unit.output
        d = h.shape[features(h)]
        slope_N = -2 * sign * torch.sigmoid(sign * (self.threshold * d - goodness(h))) / (h[0].numel() // d)
        return slope_N.view(-1, *[1] * (h.ndim - 1)) * h

    def predict(self, net: Network, x: Tensor) -> Tensor:
        classes = net.entry.classes  # type: ignore[union-attr]
        labels_CC = torch.eye(classes, device=x.device, dtype=x.dtype)
        sums = []
        for label_C in labels_CC:
            states = net.run(with_label(x, label_C[None]), raw=True).states
            sums.append(torch.stack([goodness(h) for h in states[1:]]).sum(0))
        return torch.stack(sums, dim=-1)
