"""Figures 24 and 25: test accuracy at the end of training, every rule of the field on one network."""

from matplotlib.figure import Figure

from sonde.figures import summary
from sonde.runs.evidence import Evidence


def draw_residual_mlp(evidence: Evidence) -> tuple[Figure, str]:
    return summary.draw(evidence.of(model="residual_mlp"))


def draw_conv_net(evidence: Evidence) -> tuple[Figure, str]:
    return summary.draw(evidence.of(model="conv_net"))
