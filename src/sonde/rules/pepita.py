"""PEPITA: a second forward pass on inputs that the error has changed, in place of a backward pass."""

import math
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt
from torch import nn

from sonde.core.errors import SondeError
from sonde.core.validated import validated
from sonde.network import Network
from sonde.rules.rule import CreditScale, Facts, Pair, Route, Rule, Signal
from sonde.rules.states import Matrices


@final
@validated
class Pepita(Rule):
    """Run the network again on inputs that the output error has changed; units learn from the change of their output.

    Dellaferrera & Kreiman (2022), arXiv:2201.11665:  h^err are the states on x + F e, F ∈ R^{d_in×C} fixed with entries
    N(0, σ²), σ = `scale`·2√(6/d_in).  Unit l gets the gradient of ⟨unit_l(h^err_l), h_{l+1} − h^err_{l+1}⟩, so
    a_l = h_l − h^err_l; the readout that of ⟨readout(h^err_L), e⟩.  Learning turns F and ∂z/∂x against each other.
    Not as in the paper: the gradient goes through the unit.  The paper leaves out the derivative of the activation, as
    `derivative: none` does for units of one linear map and an activation.
    Exact limits: for F → 0, a_l is −(∂h_l/∂x) F e; on a linear network with F = −(∂z/∂x)ᵀ it lowers the loss.
    """

    scale: Annotated[float, Gt(0)] = 0.05
    derivative: Literal["unit", "none"] = "unit"
    credit_scale: CreditScale = "none"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "PEPITA"
    needs: ClassVar[str] = "the output error; a fixed matrix to the inputs; a second forward pass"
    route: ClassVar[Route] = "states"
    reads_top_gradient: ClassVar[bool] = False
    first_options: ClassVar[tuple[str, ...]] = ("scale", "derivative", "credit_scale", "penalty")

    def prepare(self, net: Network, facts: Facts) -> None:
        if not facts.real_inputs:
            raise SondeError("pepita adds the error to the inputs, and these are integers: choose another rule")
        if self.derivative == "unit":
            return
        for name, unit in [("the embedding", net.embed), *((net.name_of(i), b) for i, b in enumerate(net.blocks))]:
            maps = [module for module in unit.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
            inside = sum(p.numel() for module in maps for p in module.parameters())
            if len(maps) > 1 or inside != sum(p.numel() for p in unit.parameters()):
                raise SondeError(
                    f"rule.derivative=none is for units of one linear map and an activation, and {name} has more: "
                    "leave it at unit"
                )

    def init(self, facts: Facts, rng: torch.Generator) -> Matrices:
        inputs = math.prod(facts.input_shape)
        f = torch.randn(inputs, math.prod(facts.output_shape), generator=rng) * (self.scale * 2 * math.sqrt(6 / inputs))
        return Matrices([f.to(facts.device, facts.dtype)])

    def pairs(self, state: Matrices, signal: Signal) -> list[Pair]:
        (f_iC,) = state.matrices
        e_NC = signal.error_NC
        x_err = signal.x + (e_NC @ f_iC.mT.to(e_NC)).view_as(signal.x)
        *units, readout = signal.run(x_err, linear=self.derivative == "none")
        changes = [h - above.input for h, above in zip(signal.states, [*units[1:], readout], strict=True)]
        for unit, change in zip(units, changes, strict=True):
            if unit.node.shape != change.shape:
                raise SondeError(
                    f"rule.derivative=none: what computes h_{unit.layer} changes the shape after its linear map, as "
                    "pooling does: leave it at unit"
                )
        return [*map(Pair, units, changes), Pair(readout, signal.error)]
