"""What the charts offer: metrics by name, in the words of their axes."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric a reader can choose."""

    key: str
    label: str
    log: bool = False  # how it is first drawn
    layered: bool = False
    index: str = "layer"  # what its layers count


NETWORK = (
    Metric(key="test_acc", label="test accuracy"),
    Metric(key="train_acc", label="training accuracy"),
    Metric(key="test_loss", label="test loss", log=True),
    Metric(key="train_loss", label="training loss", log=True),
    Metric(key="loss", label="loss of the probe batch", log=True),
    Metric(key="state_pred_error", label="State Bridge's prediction error", log=True),
)
"""Measurements of the whole network; others follow under their own names."""

LAYERED = (
    Metric(key="hidden_norm", label="‖h‖, hidden state", log=True, layered=True),
    Metric(key="grad_norm", label="‖g‖, BP gradient", log=True, layered=True),
    Metric(key="credit_norm", label="‖a‖, credit", log=True, layered=True),
    Metric(key="credit_cosine", label="cosine of credit and BP gradient", layered=True),
    Metric(key="rho", label="ρ, predicted and true loss change", layered=True),
    Metric(key="nudge[0.01]", label="loss change after a nudge, η = 0.01", layered=True),
    Metric(key="growth", label="growth of ‖h‖ over a block", log=True, layered=True, index="block"),
    Metric(key="branch_ratio", label="‖f‖/‖h‖ of the branch", log=True, layered=True, index="block"),
    Metric(key="branch_cosine", label="cosine of branch and stream", layered=True, index="block"),
    Metric(key="activation_mean", label="mean of the linear output", layered=True),
    Metric(key="activation_std", label="spread of the linear output", log=True, layered=True),
    Metric(key="preact_grad_norm", label="gradient at the linear output", log=True, layered=True),
    Metric(
        key="weight_alignment",
        label="cosine of backward matrices and weights",
        layered=True,
        index="block",
    ),
    Metric(key="weight_ratio", label="‖V‖/‖W‖ of backward matrices", log=True, layered=True, index="block"),
)
"""Measurements of every layer or block."""

CONTROLS = ("/null", "/bp")
"""Measured in the same snapshot, drawn beside the rule's own value."""

PER_STEP = ("batch_loss",)
"""Stored for every step: figures draw these."""


FAMILIES = ("drift", "nudge", "state", "weight_alignment", "weight_ratio")
"""Metrics with an index of which there are many, like drift[…]: figures draw these."""


def offered(whole: Iterable[str], layered: Iterable[str]) -> list[Metric]:
    """The metrics among these names, of the whole network and of its layers: known ones, controls, then strangers."""
    present = {*whole, *layered}
    known = [metric for metric in (*NETWORK, *LAYERED) if metric.key in present]
    strangers = [
        *_strangers(whole, {metric.key for metric in NETWORK} | set(PER_STEP), layered=False),
        *_strangers(layered, {metric.key for metric in LAYERED}, layered=True),
    ]
    controls = [
        Metric(key=metric.key + control, label=metric.label, layered=True)
        for metric in (*known, *strangers)
        for control in CONTROLS
        if metric.key + control in present
    ]
    return known + controls + strangers


def _strangers(names: Iterable[str], known: set[str], *, layered: bool) -> list[Metric]:
    """Measurements that have no words of their own here: their names are their words."""
    return [
        Metric(key=name, label=name.replace("_", " "), layered=layered)
        for name in sorted(set(names) - known)
        if name.partition("[")[0] not in FAMILIES and not name.endswith(CONTROLS)
    ]
