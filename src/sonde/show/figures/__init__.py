"""Figures drawn from tidy rows, by name.

A figure is a function from evidence to a drawing and a caption: rows → summary → artists.  `FIGURES` names it once,
with its file in each of its studies.  This module imports no plotting library; drawing does.  No module here imports
torch.

The functions are in one file per family: `residual_loss`, `residual_layers`, `residual_gradient`, `snapshots`,
`accuracy` and `credit`; `contrast` has the pictures of the documentation.  They share a small grammar after seaborn's
Stat and Mark: `groups` (which runs a figure compares), `series` (mean, standard deviation and n over seeds; captions),
`marks` and `panels` (axes, and what is drawn on them) and `style`.  `render` writes files.
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
    """A figure: its title, its file in each of its studies, and the function that draws it."""

    title: str
    paths: Mapping[str, str]  # study → file below the output folder, without suffix
    drawn_by: str  # module of this package and function in it
    variant: str | None = None  # the variant that is drawn by default
    beside: bool = False  # drawn from the runs beside the study's own
    formats: tuple[str, ...] = ("png", "pdf")

    def select(self, evidence: Evidence, variant: str | None = None) -> Evidence:
        """The part of the evidence that it is drawn from."""
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
        """The figure in the house style, and its caption; NoData if its rows are missing."""
        from sonde.show.figures.style import house_style

        module, function = self.drawn_by.split(".")
        with house_style():
            drawn: tuple[Figure, str] = getattr(import_module(f"sonde.show.figures.{module}"), function)(
                self.select(evidence, variant)
            )
        return drawn


def _of_rules(name: str) -> dict[str, str]:
    """The paths of a figure that two studies share, both of one network under several rules."""
    return {"cifar10": f"report/cifar_{name}", "audit": f"report/audit_{name}"}


FIGURES: dict[str, FigureSpec] = {
    "loss_by_depth": FigureSpec(
        title="Final loss against depth, of networks that can represent the identity",
        paths={"residual": "plots/loss_by_depth"},
        drawn_by="residual_loss.draw_loss_by_depth",
        beside=True,
    ),
    "learning_comparison": FigureSpec(
        title="What both networks learned, side by side",
        paths={"residual": "plots_micro/6_learning_comparison"},
        drawn_by="residual_loss.draw_learning_comparison",
        variant="scaled",
    ),
    "signal_flow": FigureSpec(
        title="The signal going up: spread at the input and at every layer",
        paths={"residual": "plots_micro/1_signal_flow"},
        drawn_by="residual_layers.draw_signal_flow",
        variant="scaled",
    ),
    "gradient_flow": FigureSpec(
        title="The gradient coming back: its norm at every layer",
        paths={"residual": "plots_micro/2_gradient_flow"},
        drawn_by="residual_gradient.draw_gradient_flow",
        variant="scaled",
    ),
    "highway_concept": FigureSpec(
        title="The gradient highway, drawn with the measured factors",
        paths={"residual": "plots_micro/3_highway_concept"},
        drawn_by="residual_gradient.draw_highway_concept",
        variant="scaled",
    ),
    "chain_rule": FigureSpec(
        title="The chain rule: cumulative gradient scale from the loss backward",
        paths={"residual": "plots_micro/4_chain_rule"},
        drawn_by="residual_gradient.draw_chain_rule",
        variant="scaled",
    ),
    "layer_transformation": FigureSpec(
        title="One input vector on its way through both networks",
        paths={"residual": "plots_micro/5_layer_transformation"},
        drawn_by="residual_layers.draw_layer_transformation",
        variant="scaled",
    ),
    "training_loss": FigureSpec(
        title="Training loss against steps, plain and residual",
        paths={"residual": "plots/training_loss"},
        drawn_by="residual_loss.draw_training_loss",
        variant="raw",
    ),
    "gradient_magnitude": FigureSpec(
        title="Gradient norm against depth, plain and residual",
        paths={"residual": "plots/gradient_magnitude"},
        drawn_by="residual_layers.draw_gradient_magnitude",
        variant="raw",
    ),
    "activation_mean": FigureSpec(
        title="Mean of the linear outputs against depth, plain and residual",
        paths={"residual": "plots/activation_mean"},
        drawn_by="residual_layers.draw_activation_mean",
        variant="raw",
    ),
    "activation_std": FigureSpec(
        title="Spread of the linear outputs against depth, plain and residual",
        paths={"residual": "plots/activation_std"},
        drawn_by="residual_layers.draw_activation_std",
        variant="raw",
    ),
    "snapshot_resmlp": FigureSpec(
        title="The residual stream and the BP gradient over epochs, with and without terminal LN",
        paths={"snapshots": "results/figures/figure_snapshot_resmlp"},
        drawn_by="snapshots.draw_snapshot_resmlp",
    ),
    "snapshot_vit": FigureSpec(
        title="The residual stream and the BP gradient over epochs, vision transformer",
        paths={"snapshots": "results/figures/figure_snapshot_vit"},
        drawn_by="snapshots.draw_snapshot_vit",
    ),
    "crossarch": FigureSpec(
        title="Three architectures under three rules: stream, gradient and accuracy",
        paths={"snapshots": "paper/figures/fig3b_crossarch_3row"},
        drawn_by="snapshots.draw_crossarch",
    ),
    "accuracy": FigureSpec(
        title="Train and test accuracy over epochs, per rule",
        paths=_of_rules("accuracy"),
        drawn_by="accuracy.draw_accuracy",
    ),
    "diagnostics": FigureSpec(
        title="Credit against the BP gradient, layer by layer, beside null and ceiling",
        paths=_of_rules("diagnostics"),
        drawn_by="credit.draw_diagnostics",
    ),
    "feature_drift": FigureSpec(
        title="How far the weights of each block moved, per rule",
        paths=_of_rules("feature_drift"),
        drawn_by="credit.draw_feature_drift",
    ),
    "state_vs_credit": FigureSpec(
        title="State Bridge's prediction error beside the accuracy it buys",
        paths=_of_rules("state_vs_credit"),
        drawn_by="accuracy.draw_state_vs_credit",
    ),
    "summary": FigureSpec(
        title="Test accuracy at the end of training, all rules",
        paths=_of_rules("summary"),
        drawn_by="accuracy.draw_summary",
    ),
    "rules_residual_mlp": FigureSpec(
        title="Test accuracy at the end of training, every rule on a residual MLP",
        paths={"rules": "report/rules_residual_mlp"},
        drawn_by="accuracy.draw_rules_residual_mlp",
    ),
    "rules_conv_net": FigureSpec(
        title="Test accuracy at the end of training, every rule on a ConvNet",
        paths={"rules": "report/rules_conv_net"},
        drawn_by="accuracy.draw_rules_conv_net",
    ),
    "rules_credit": FigureSpec(
        title="Credit against the BP gradient, layer by layer, every rule on a residual MLP",
        paths={"rules": "report/rules_credit"},
        drawn_by="credit.draw_rules_credit",
    ),
    "rules_alignment": FigureSpec(
        title="Backward matrices against the weights over epochs",
        paths={"rules": "report/rules_alignment"},
        drawn_by="credit.draw_rules_alignment",
    ),
}


def figures_by_study() -> Iterator[tuple[str, str, FigureSpec]]:
    """Study, file name and figure, for every figure of every study."""
    for study in dict.fromkeys(study for spec in FIGURES.values() for study in spec.paths):
        for name, spec in figures_of(study).items():
            yield study, name, spec


def figures_of(study: str) -> dict[str, FigureSpec]:
    """A study's figures by the name of their file, in the order of the table."""
    return {PurePosixPath(spec.paths[study]).name: spec for spec in FIGURES.values() if study in spec.paths}
