"""Figures drawn from tidy rows.  The table imports no plotting library; drawing does."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from sonde.figures.evidence import Evidence, NoData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "Evidence", "FigureSpec", "NoData"]


@dataclass(frozen=True, kw_only=True)
class FigureSpec:
    """A figure: the study it belongs to, where it is saved and how it is drawn."""

    study: str
    path: str  # below the output folder, without suffix
    title: str
    variant: str | None  # drawn unless another one is asked for
    draw: Callable[[Evidence], tuple["Figure", str]]  # the figure and its caption
    formats: tuple[str, ...] = ("png", "pdf")


def _draw(module: str, function: str, evidence: Evidence) -> tuple["Figure", str]:
    """Import the drawing function when it is needed, and draw in the house style."""
    from sonde.figures.style import house_style

    with house_style():
        drawn: tuple[Figure, str] = getattr(import_module(f"sonde.figures.{module}"), function)(evidence)
    return drawn


FIGURES: dict[str, FigureSpec] = {
    "training_loss": FigureSpec(
        study="residual",
        path="plots/training_loss",
        title="Training loss against steps, plain and residual",
        variant="raw",
        draw=partial(_draw, "training_loss", "draw"),
    ),
    "gradient_magnitude": FigureSpec(
        study="residual",
        path="plots/gradient_magnitude",
        title="Gradient norm against depth, plain and residual",
        variant="raw",
        draw=partial(_draw, "depth_profiles", "gradient_magnitude"),
    ),
    "activation_mean": FigureSpec(
        study="residual",
        path="plots/activation_mean",
        title="Mean of the linear outputs against depth, plain and residual",
        variant="raw",
        draw=partial(_draw, "depth_profiles", "activation_mean"),
    ),
    "activation_std": FigureSpec(
        study="residual",
        path="plots/activation_std",
        title="Spread of the linear outputs against depth, plain and residual",
        variant="raw",
        draw=partial(_draw, "depth_profiles", "activation_std"),
    ),
    "1_signal_flow": FigureSpec(
        study="residual",
        path="plots_micro/1_signal_flow",
        title="The signal going up: spread at the input and at every layer",
        variant="scaled",
        draw=partial(_draw, "signal_flow", "draw"),
    ),
    "2_gradient_flow": FigureSpec(
        study="residual",
        path="plots_micro/2_gradient_flow",
        title="The gradient coming back: its norm at every layer",
        variant="scaled",
        draw=partial(_draw, "gradient_flow", "draw"),
    ),
    "3_highway_concept": FigureSpec(
        study="residual",
        path="plots_micro/3_highway_concept",
        title="The gradient highway, drawn with the measured factors",
        variant="scaled",
        draw=partial(_draw, "highway_concept", "draw"),
    ),
    "4_chain_rule": FigureSpec(
        study="residual",
        path="plots_micro/4_chain_rule",
        title="The chain rule: cumulative gradient scale from the loss backward",
        variant="scaled",
        draw=partial(_draw, "chain_rule", "draw"),
    ),
    "5_layer_transformation": FigureSpec(
        study="residual",
        path="plots_micro/5_layer_transformation",
        title="One input vector on its way through both networks",
        variant="scaled",
        draw=partial(_draw, "layer_transformation", "draw"),
    ),
    "6_learning_comparison": FigureSpec(
        study="residual",
        path="plots_micro/6_learning_comparison",
        title="What both networks learned, side by side",
        variant="scaled",
        draw=partial(_draw, "learning_comparison", "draw"),
    ),
    "figure_snapshot_resmlp": FigureSpec(
        study="snapshots",
        path="results/figures/figure_snapshot_resmlp",
        title="The residual stream and the BP gradient over epochs, with and without terminal LN",
        variant=None,
        draw=partial(_draw, "snapshots", "resmlp"),
    ),
    "figure_snapshot_vit": FigureSpec(
        study="snapshots",
        path="results/figures/figure_snapshot_vit",
        title="The residual stream and the BP gradient over epochs, vision transformer",
        variant=None,
        draw=partial(_draw, "snapshots", "vit"),
    ),
    "fig3b_crossarch_3row": FigureSpec(
        study="snapshots",
        path="paper/figures/fig3b_crossarch_3row",
        title="Three architectures under three rules: stream, gradient and accuracy",
        variant=None,
        draw=partial(_draw, "crossarch", "draw"),
    ),
    "cifar_accuracy": FigureSpec(
        study="cifar10",
        path="report/cifar_accuracy",
        title="Train and test accuracy over epochs, per rule",
        variant=None,
        draw=partial(_draw, "accuracy", "draw"),
    ),
    "cifar_diagnostics": FigureSpec(
        study="cifar10",
        path="report/cifar_diagnostics",
        title="Credit against the BP gradient, layer by layer, beside null and ceiling",
        variant=None,
        draw=partial(_draw, "diagnostics", "draw"),
    ),
    "cifar_feature_drift": FigureSpec(
        study="cifar10",
        path="report/cifar_feature_drift",
        title="How far the weights of each block moved, per rule",
        variant=None,
        draw=partial(_draw, "feature_drift", "draw"),
    ),
    "cifar_state_vs_credit": FigureSpec(
        study="cifar10",
        path="report/cifar_state_vs_credit",
        title="State Bridge's prediction error beside the accuracy it buys",
        variant=None,
        draw=partial(_draw, "state_vs_credit", "draw"),
    ),
    "cifar_summary": FigureSpec(
        study="cifar10",
        path="report/cifar_summary",
        title="Test accuracy at the end of training, all rules",
        variant=None,
        draw=partial(_draw, "summary", "draw"),
    ),
    "rules_residual_mlp": FigureSpec(
        study="rules",
        path="report/rules_residual_mlp",
        title="Test accuracy at the end of training, every rule on a residual MLP",
        variant=None,
        draw=partial(_draw, "rules", "draw_residual_mlp"),
    ),
    "rules_conv_net": FigureSpec(
        study="rules",
        path="report/rules_conv_net",
        title="Test accuracy at the end of training, every rule on a ConvNet",
        variant=None,
        draw=partial(_draw, "rules", "draw_conv_net"),
    ),
    "audit_accuracy": FigureSpec(
        study="audit",
        path="report/audit_accuracy",
        title="Train and test accuracy over epochs, per rule",
        variant=None,
        draw=partial(_draw, "accuracy", "draw"),
    ),
    "audit_diagnostics": FigureSpec(
        study="audit",
        path="report/audit_diagnostics",
        title="Credit against the BP gradient, layer by layer, beside null and ceiling",
        variant=None,
        draw=partial(_draw, "diagnostics", "draw"),
    ),
    "audit_feature_drift": FigureSpec(
        study="audit",
        path="report/audit_feature_drift",
        title="How far the weights of each block moved, per rule",
        variant=None,
        draw=partial(_draw, "feature_drift", "draw"),
    ),
    "audit_state_vs_credit": FigureSpec(
        study="audit",
        path="report/audit_state_vs_credit",
        title="State Bridge's prediction error beside the accuracy it buys",
        variant=None,
        draw=partial(_draw, "state_vs_credit", "draw"),
    ),
    "audit_summary": FigureSpec(
        study="audit",
        path="report/audit_summary",
        title="Test accuracy at the end of training, all rules",
        variant=None,
        draw=partial(_draw, "summary", "draw"),
    ),
}
