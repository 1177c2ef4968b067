"""When each question of the audit fires: configuration, printed with the verdict."""

import math
from dataclasses import asdict, dataclass

from sonde.errors import SondeError
from sonde.verdicts import GRADIENT_COLLAPSED


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The defaults are those of the recorded calibration."""

    growth: float = 50.0  # D1 fires above: ‖h‖ after a block over ‖h‖ before it
    gradient: float = GRADIENT_COLLAPSED  # D2 fires below: ‖g_L‖ over its value at init
    standard_errors: float = 3.0  # D3 fires unless credit exceeds the null by more than so many
    points: float = 2.0  # D4 fires below: test accuracy over frozen blocks, in per cent of the samples

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not math.isfinite(value):
                raise SondeError(f"audit threshold {name} = {value}: choose a finite number")

    @property
    def words(self) -> dict[str, str]:
        """Each question with the condition under which it fires."""
        return {
            "D1": f"does the scale hold? fires where ‖h‖ grows more than {self.growth:g}× over a block",
            "D2": f"is the BP gradient still meaningful? fires where ‖g_L‖ is below {self.gradient:g} of init",
            "D3": "is the credit better than chance at depth? fires where cosine or ρ at a layer l ≥ 1 is not "
            f"above a random vector's by {self.standard_errors:g} standard errors",
            "D4": f"do the blocks earn their keep? fires below {self.points:g} points over frozen blocks",
        }
