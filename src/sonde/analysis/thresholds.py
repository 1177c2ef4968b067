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
            "D1": f"does the scale hold? Fires where ‖h‖ grows more than {self.growth:g}× over a block or over all, or "
            f"where ‖h_L‖ exceeds {self.stream:g}× its value at init. A LayerNorm after h_L hides this from the loss",
            "D2": "is the BP gradient resolved? Fires where the cosine of the gradient in training's precision with "
            f"the float64 gradient is below {self.resolution:g} at a layer. It also fires where ρ of BP's gradient in "
            f"float64 is below {self.ceiling:g}",
            "D3": "is the credit better than chance at depth? Fires where cosine or ρ at a layer l ≥ 1 is not "
            f"above its null by {self.deviations:g} standard deviations (Student's t for the number of draws). Its "
            "null is the same rule with other random matrices. Layers where ρ of BP's own gradient is below "
            f"{self.ceiling:g} are skipped",
            "D4": "do the trained blocks help? The test accuracy is compared with frozen blocks, paired by seed. "
            f"Blocks help or hurt where the {100 * self.confidence:g} % t interval over seeds excludes 0, with Holm's "
            "correction for the rules of one recipe. Otherwise D4 is undecided",
        }
