"""Studies, chosen by name."""

from sonde.studies import audit, cifar10, residual, rules, snapshots
from sonde.studies.study import Study, StudyFinding

STUDIES: dict[str, Study] = {
    "residual": residual.STUDY,
    "snapshots": snapshots.STUDY,
    "audit": audit.STUDY,
    "cifar10": cifar10.STUDY,
    "rules": rules.STUDY,
}

__all__ = ["STUDIES", "Study", "StudyFinding"]
