"""When each question of the audit fires.  Imports little: the command line shows the defaults in its help."""

import math
from dataclasses import asdict, dataclass

from sonde.core.errors import SondeError


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """When each question fires.  docs/calibration.md says how often the defaults err."""

    growth: float = 50.0  # D1 fires above: ‖h‖ after a block over ‖h‖ before it
    stream: float = 300.0  # D1 fires above: ‖h_L‖ over its value at init
    resolution: float = 0.9  # D2 fires below: cosine of the gradient in training's precision with float64's
    deviations: float = 3.0  # D3 fires unless the credit exceeds the null by more than this many standard deviations
    ceiling: float = 0.9  # ρ of BP's gradient: below it D2 fires, and D3 does not read the credit
    confidence: float = 0.95  # of D4's interval

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not math.isfinite(value):
                raise SondeError(f"audit threshold {name} = {value}: choose a finite number")
        if not 0 < self.confidence < 1:
            raise SondeError(f"audit threshold confidence = {self.confidence}: choose one between 0 and 1")

    @property
    def words(self) -> dict[str, str]:
        """Each question with the condition under which it fires."""
        return {
            "D1": f"does the scale hold? fires where ‖h‖ grows more than {self.growth:g}× over a block, or ‖h_L‖ "
            f"to more than {self.stream:g}× its value at init, which a LayerNorm on top hides from the loss",
            "D2": "is the BP gradient resolved? fires where its cosine, in the precision training runs in, with the "
            f"one in float64 is below {self.resolution:g} at a layer, or ρ of BP's gradient (in float64) is below "
            f"{self.ceiling:g}",
            "D3": "is the credit better than chance at depth? fires where cosine or ρ at a layer l ≥ 1 is not above "
            f"chance (drawn as the rule, or the blind rule in its place, draws) by {self.deviations:g} standard "
            f"deviations (Student's t for the number of draws); not read where ρ of BP's own gradient is "
            f"below {self.ceiling:g}",
            "D4": "do the trained blocks help? test accuracy over frozen blocks, paired by seed: helps or hurts "
            f"where the {100 * self.confidence:g} % t interval over seeds excludes 0, with Holm's correction for "
            "the rules of one recipe; else undecided",
        }
