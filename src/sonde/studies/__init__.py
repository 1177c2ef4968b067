"""Studies, chosen by name."""

from sonde.studies.audit import AUDIT_STUDY
from sonde.studies.cifar10 import CIFAR10_STUDY
from sonde.studies.residual import RESIDUAL_STUDY
from sonde.studies.rules import RULES_STUDY
from sonde.studies.snapshots import SNAPSHOTS_STUDY
from sonde.studies.study import Study, StudyFinding

STUDIES: dict[str, Study] = {
    "residual": RESIDUAL_STUDY,
    "snapshots": SNAPSHOTS_STUDY,
    "audit": AUDIT_STUDY,
    "cifar10": CIFAR10_STUDY,
    "rules": RULES_STUDY,
}

__all__ = ["STUDIES", "Study", "StudyFinding"]
