"""Figures drawn from tidy rows: one entry each, however many studies use it.

The table imports no plotting library; drawing does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from sonde.analysis.evidence import Evidence, NoData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "Evidence", "FigureSpec", "NoData", "figures_of"]


@dataclass(frozen=True, kw_only=True)
class FigureSpec:
    """A figure: its title, where each of its studies has it, and the function that draws it."""

    title: str
    paths: Mapping[str, str]  # study → file below the output folder, without suffix
    drawn_by: str  # module of this package and function in it
    variant: str | None = None  # drawn unless another one is asked for
    beside: bool = False  # drawn from the runs beside the study's own
    formats: tuple[str, ...] = ("png", "pdf")

    def select(self, evidence: Evidence, variant: str | None = None) -> Evidence:
        """What of the evidence it is drawn from."""
        if self.beside:
            if evidence.beside is None:
                raise NoData(f"no runs beside those of the study in {evidence.source}")
            return evidence.beside
        chosen = variant or self.variant
        if chosen is None:
            return evidence
        selected = evidence.of(variant=chosen)
        if selected.runs.is_empty():
            raise NoData(f"no runs of the {chosen} variant in {evidence.source}")
        return selected

    def draw(self, evidence: Evidence, variant: str | None = None) -> tuple["Figure", str]:
        """The figure in the house style, and its caption; NoData where its rows are missing."""
        from sonde.show.figures.style import house_style

        module, function = self.drawn_by.split(".")
        with house_style():
            drawn: tuple[Figure, str] = getattr(import_module(f"sonde.show.figures.{module}"), function)(
                self.select(evidence, variant)
            )
        return drawn


def _of_rules(name: str) -> dict[str, str]:
    """Of one network under several rules, which two studies train."""
    return {"cifar10": f"report/cifar_{name}", "audit": f"report/audit_{name}"}


FIGURES: dict[str, FigureSpec] = {
    "loss_by_depth": FigureSpec(
        title="Final loss against depth, of networks that can represent the identity",
        paths={"residual": "plots/loss_by_depth"},
        drawn_by="loss_by_depth.draw",
        beside=True,
    ),
    "learning_comparison": FigureSpec(
        title="What both networks learned, side by side",
        paths={"residual": "plots_micro/6_learning_comparison"},
        drawn_by="learning_comparison.draw",
        variant="scaled",
    ),
    "signal_flow": FigureSpec(
        title="The signal going up: spread at the input and at every layer",
        paths={"residual": "plots_micro/1_signal_flow"},
        drawn_by="signal_flow.draw",
        variant="scaled",
    ),
    "gradient_flow": FigureSpec(
        title="The gradient coming back: its norm at every layer",
        paths={"residual": "plots_micro/2_gradient_flow"},
        drawn_by="gradient_flow.draw",
        variant="scaled",
    ),
    "highway_concept": FigureSpec(
        title="The gradient highway, drawn with the measured factors",
        paths={"residual": "plots_micro/3_highway_concept"},
        drawn_by="highway_concept.draw",
        variant="scaled",
    ),
    "chain_rule": FigureSpec(
        title="The chain rule: cumulative gradient scale from the loss backward",
        paths={"residual": "plots_micro/4_chain_rule"},
        drawn_by="chain_rule.draw",
        variant="scaled",
    ),
    "layer_transformation": FigureSpec(
        title="One input vector on its way through both networks",
        paths={"residual": "plots_micro/5_layer_transformation"},
        drawn_by="layer_transformation.draw",
        variant="scaled",
    ),
    "training_loss": FigureSpec(
        title="Training loss against steps, plain and residual",
        paths={"residual": "plots/training_loss"},
        drawn_by="training_loss.draw",
        variant="raw",
    ),
    "gradient_magnitude": FigureSpec(
        title="Gradient norm against depth, plain and residual",
        paths={"residual": "plots/gradient_magnitude"},
        drawn_by="depth_profiles.gradient_magnitude",
        variant="raw",
    ),
    "activation_mean": FigureSpec(
        title="Mean of the linear outputs against depth, plain and residual",
        paths={"residual": "plots/activation_mean"},
        drawn_by="depth_profiles.activation_mean",
        variant="raw",
    ),
    "activation_std": FigureSpec(
        title="Spread of the linear outputs against depth, plain and residual",
        paths={"residual": "plots/activation_std"},
        drawn_by="depth_profiles.activation_std",
        variant="raw",
    ),
    "snapshot_resmlp": FigureSpec(
        title="The residual stream and the BP gradient over epochs, with and without terminal LN",
        paths={"snapshots": "results/figures/figure_snapshot_resmlp"},
        drawn_by="stream_and_gradient.resmlp",
    ),
    "snapshot_vit": FigureSpec(
        title="The residual stream and the BP gradient over epochs, vision transformer",
        paths={"snapshots": "results/figures/figure_snapshot_vit"},
        drawn_by="stream_and_gradient.vit",
    ),
    "crossarch": FigureSpec(
        title="Three architectures under three rules: stream, gradient and accuracy",
        paths={"snapshots": "paper/figures/fig3b_crossarch_3row"},
        drawn_by="crossarch.draw",
    ),
    "accuracy": FigureSpec(
        title="Train and test accuracy over epochs, per rule",
        paths=_of_rules("accuracy"),
        drawn_by="accuracy.draw",
    ),
    "diagnostics": FigureSpec(
        title="Credit against the BP gradient, layer by layer, beside null and ceiling",
        paths=_of_rules("diagnostics"),
        drawn_by="diagnostics.draw",
    ),
    "feature_drift": FigureSpec(
        title="How far the weights of each block moved, per rule",
        paths=_of_rules("feature_drift"),
        drawn_by="feature_drift.draw",
    ),
    "state_vs_credit": FigureSpec(
        title="State Bridge's prediction error beside the accuracy it buys",
        paths=_of_rules("state_vs_credit"),
        drawn_by="state_vs_credit.draw",
    ),
    "summary": FigureSpec(
        title="Test accuracy at the end of training, all rules",
        paths=_of_rules("summary"),
        drawn_by="summary.draw",
    ),
    "rules_residual_mlp": FigureSpec(
        title="Test accuracy at the end of training, every rule on a residual MLP",
        paths={"rules": "report/rules_residual_mlp"},
        drawn_by="rules.draw_residual_mlp",
    ),
    "rules_conv_net": FigureSpec(
        title="Test accuracy at the end of training, every rule on a ConvNet",
        paths={"rules": "report/rules_conv_net"},
        drawn_by="rules.draw_conv_net",
    ),
    "rules_credit": FigureSpec(
        title="Credit against the BP gradient, layer by layer, every rule on a residual MLP",
        paths={"rules": "report/rules_credit"},
        drawn_by="rules.draw_credit",
    ),
    "rules_alignment": FigureSpec(
        title="Backward matrices against the weights over epochs",
        paths={"rules": "report/rules_alignment"},
        drawn_by="rules.draw_alignment",
    ),
}


def listed() -> Iterator[tuple[str, str, FigureSpec]]:
    """Study, name of the file and figure, of every figure of every study."""
    for study in dict.fromkeys(study for spec in FIGURES.values() for study in spec.paths):
        for name, spec in figures_of(study).items():
            yield study, name, spec


def figures_of(study: str) -> dict[str, FigureSpec]:
    """A study's figures by the name of their file, in the order of the table."""
    return {PurePosixPath(spec.paths[study]).name: spec for spec in FIGURES.values() if study in spec.paths}
