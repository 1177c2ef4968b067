"""Studies, chosen by name."""

from sonde.studies import residual
from sonde.studies.study import Finding, Study

STUDIES: dict[str, Study] = {
    "residual": residual.STUDY,
}

__all__ = ["STUDIES", "Finding", "Study"]
