"""Figures drawn from tidy rows, by name.

A figure is a function from evidence to a drawing and a caption: rows → summary → artists.  `FIGURES` names it once;
its file is study/name, and the paper layout has other names for some.  This module imports no plotting library; drawing
does.  No module here imports torch.

The functions are in one file per family: `residual_loss`, `residual_layers`, `residual_gradient`, `snapshots`,
`accuracy`, `credit` and `controls`; `contrast` has the pictures of the documentation.  They share a small grammar after
seaborn's Stat and Mark: `groups` (which runs a figure compares), `series` (mean, standard deviation and n over seeds;
captions), `marks` and `panels` (axes, and what is drawn on them) and `style`.  `render` writes files.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.errors import pick

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "Evidence", "FigureSpec", "Layout", "NoData", "figure_named", "figures_of"]

Layout = Literal["study", "paper"]
"""How files are named: by study and figure, or as the paper layout has them."""


@dataclass(frozen=True, kw_only=True)
class FigureSpec:
    """A figure: its name, its title, its studies, and the function that draws it."""

    name: str
    title: str
    studies: tuple[str, ...]
    drawn_by: str  # module of this package and function in it
    variant: str | None = None  # the variant that is drawn by default
    beside: bool = False  # drawn from the runs beside the study's own
    paper: Mapping[str, str] = field(default_factory=dict)  # study → file in the paper layout, without suffix
    paper_variant: str | None = None  # the variant that the paper layout has, if it is another
    formats: tuple[str, ...] = ("png", "pdf")

    @property
    def paths(self) -> dict[str, str]:
        """Study → file below the output folder, without suffix."""
        return {study: f"{study}/{self.name}" for study in self.studies}

    def path(self, study: str, layout: Layout = "study") -> str:
        """Its file in a layout; a figure that the paper layout does not have keeps its own."""
        own = self.paths[study]
        return self.paper.get(study, own) if layout == "paper" else own

    def select(self, evidence: Evidence, variant: str | None = None) -> Evidence:
        """The part of the evidence that it is drawn from: the variant asked for, else its own, else the only one."""
        if self.beside:
            if evidence.beside is None:
                raise NoData(f"no runs beside those of the study in {evidence.source}")
            return evidence.beside
        chosen = variant or self.variant
        only = evidence.runs["variant"].unique()
        if chosen is None or (variant is None and only.len() == 1):
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


_OF_RULES = ("audit", "cifar10")
_WITH_PARITY = ("audit", "cifar10", "snapshots")  # studies with a second task, on which blocks must learn


def _in_report(name: str) -> dict[str, str]:
    """The files of a figure of `_OF_RULES` in the paper layout."""
    return {"audit": f"report/audit_{name}", "cifar10": f"report/cifar_{name}"}


_FIGURES = (
    FigureSpec(
        name="loss_by_depth",
        title="Final loss against depth, of networks that can represent the identity",
        studies=("residual",),
        paper={"residual": "plots/loss_by_depth"},
        drawn_by="residual_loss.draw_loss_by_depth",
        beside=True,
    ),
    FigureSpec(
        name="learning_comparison",
        title="What both networks learned, side by side",
        studies=("residual",),
        paper={"residual": "plots_micro/6_learning_comparison"},
        drawn_by="residual_loss.draw_learning_comparison",
        variant="scaled",
    ),
    FigureSpec(
        name="signal_flow",
        title="The signal going up: spread at the input and at every layer",
        studies=("residual",),
        paper={"residual": "plots_micro/1_signal_flow"},
        drawn_by="residual_layers.draw_signal_flow",
        variant="scaled",
    ),
    FigureSpec(
        name="gradient_flow",
        title="The gradient coming back: its norm at every layer",
        studies=("residual",),
        paper={"residual": "plots_micro/2_gradient_flow"},
        drawn_by="residual_gradient.draw_gradient_flow",
        variant="scaled",
    ),
    FigureSpec(
        name="gradient_highway",
        title="The gradient highway, drawn with the measured factors",
        studies=("residual",),
        paper={"residual": "plots_micro/3_highway_concept"},
        drawn_by="residual_gradient.draw_gradient_highway",
        variant="scaled",
    ),
    FigureSpec(
        name="chain_rule",
        title="The chain rule: cumulative gradient scale from the loss backward",
        studies=("residual",),
        paper={"residual": "plots_micro/4_chain_rule"},
        drawn_by="residual_gradient.draw_chain_rule",
        variant="scaled",
    ),
    FigureSpec(
        name="one_input",
        title="One input vector on its way through both networks",
        studies=("residual",),
        paper={"residual": "plots_micro/5_layer_transformation"},
        drawn_by="residual_layers.draw_one_input",
        variant="scaled",
    ),
    FigureSpec(
        name="training_loss",
        title="Training loss against steps, plain and residual",
        studies=("residual",),
        paper={"residual": "plots/training_loss"},
        drawn_by="residual_loss.draw_training_loss",
        variant="scaled",
        paper_variant="raw",
    ),
    FigureSpec(
        name="gradient_magnitude",
        title="Gradient norm against depth, plain and residual",
        studies=("residual",),
        paper={"residual": "plots/gradient_magnitude"},
        drawn_by="residual_layers.draw_gradient_magnitude",
        variant="scaled",
        paper_variant="raw",
    ),
    FigureSpec(
        name="activation_mean",
        title="Mean of the linear outputs against depth, plain and residual",
        studies=("residual",),
        paper={"residual": "plots/activation_mean"},
        drawn_by="residual_layers.draw_activation_mean",
        variant="scaled",
        paper_variant="raw",
    ),
    FigureSpec(
        name="activation_std",
        title="Spread of the linear outputs against depth, plain and residual",
        studies=("residual",),
        paper={"residual": "plots/activation_std"},
        drawn_by="residual_layers.draw_activation_std",
        variant="scaled",
        paper_variant="raw",
    ),
    FigureSpec(
        name="parity_summary",
        title="Which rules train depth: test accuracy on parity, where the blocks must learn",
        studies=_WITH_PARITY,
        drawn_by="accuracy.draw_summary",
        beside=True,
    ),
    FigureSpec(
        name="parity_accuracy",
        title="Train and test accuracy on parity over epochs, per rule",
        studies=_WITH_PARITY,
        drawn_by="accuracy.draw_accuracy",
        beside=True,
    ),
    FigureSpec(
        name="stream_by_terminal_ln",
        title="The residual stream and the BP gradient over epochs, with and without terminal LN",
        studies=("snapshots",),
        paper={"snapshots": "results/figures/figure_snapshot_resmlp"},
        drawn_by="snapshots.draw_stream_by_terminal_ln",
    ),
    FigureSpec(
        name="stream_of_vit",
        title="The residual stream and the BP gradient over epochs, vision transformer",
        studies=("snapshots",),
        paper={"snapshots": "results/figures/figure_snapshot_vit"},
        drawn_by="snapshots.draw_stream_of_vit",
    ),
    FigureSpec(
        name="three_networks",
        title="Three architectures under three rules: stream, gradient and accuracy",
        studies=("snapshots",),
        paper={"snapshots": "paper/figures/fig3b_crossarch_3row"},
        drawn_by="snapshots.draw_three_networks",
    ),
    FigureSpec(
        name="accuracy",
        title="Train and test accuracy over epochs, per rule",
        studies=_OF_RULES,
        paper=_in_report("accuracy"),
        drawn_by="accuracy.draw_accuracy",
    ),
    FigureSpec(
        name="diagnostics",
        title="Credit against the BP gradient, layer by layer, beside null and ceiling",
        studies=_OF_RULES,
        paper=_in_report("diagnostics"),
        drawn_by="credit.draw_diagnostics",
    ),
    FigureSpec(
        name="weight_drift",
        title="How far the weights of each block moved, per rule",
        studies=_OF_RULES,
        paper=_in_report("feature_drift"),
        drawn_by="credit.draw_weight_drift",
    ),
    FigureSpec(
        name="state_vs_credit",
        title="State Bridge's prediction error beside the accuracy it reaches",
        studies=_OF_RULES,
        paper=_in_report("state_vs_credit"),
        drawn_by="accuracy.draw_state_vs_credit",
    ),
    FigureSpec(
        name="summary",
        title="Test accuracy at the end of training, all rules",
        studies=_OF_RULES,
        paper=_in_report("summary"),
        drawn_by="accuracy.draw_summary",
    ),
    FigureSpec(
        name="rules_residual_mlp",
        title="Test accuracy at the end of training, every rule on a pre-LN residual MLP",
        studies=("rules",),
        paper={"rules": "report/rules_residual_mlp"},
        drawn_by="accuracy.draw_rules_residual_mlp",
    ),
    FigureSpec(
        name="rules_conv_net",
        title="Test accuracy at the end of training, every rule on a ConvNet",
        studies=("rules",),
        paper={"rules": "report/rules_conv_net"},
        drawn_by="accuracy.draw_rules_conv_net",
    ),
    FigureSpec(
        name="rules_credit",
        title="Credit against the BP gradient, layer by layer, every rule on a pre-LN residual MLP",
        studies=("rules",),
        paper={"rules": "report/rules_credit"},
        drawn_by="credit.draw_rules_credit",
    ),
    FigureSpec(
        name="rules_alignment",
        title="Backward matrices against the weights over epochs",
        studies=("rules",),
        paper={"rules": "report/rules_alignment"},
        drawn_by="credit.draw_rules_alignment",
    ),
    FigureSpec(
        name="controls",
        title="Every setting of a control at the end of training",
        studies=("credit_at", "random_targets", "penalty", "trained_blocks", "depth", "deep", "linear_quadratic"),
        drawn_by="controls.draw_controls",
    ),
    FigureSpec(
        name="credit_at_layers",
        title="Credit and growth by layer, with credit at a block's output and at its input",
        studies=("credit_at",),
        drawn_by="controls.draw_credit_at_layers",
    ),
)

FIGURES: dict[str, FigureSpec] = {spec.name: spec for spec in _FIGURES}
"""In the order of a report: the figures of the headline come first."""

_FORMER = {
    "highway_concept": "gradient_highway",
    "layer_transformation": "one_input",
    "snapshot_resmlp": "stream_by_terminal_ln",
    "snapshot_vit": "stream_of_vit",
    "crossarch": "three_networks",
    "feature_drift": "weight_drift",
} | {PurePosixPath(path).name: spec.name for spec in _FIGURES for path in spec.paper.values()}
"""Former names of figures, and their files in the paper layout → name."""


def figure_named(name: str) -> FigureSpec:
    """A figure by its name; a former name works, with a warning."""
    if name not in FIGURES and name in _FORMER:
        warnings.warn(f"figure {name} is deprecated: use {_FORMER[name]}", DeprecationWarning, stacklevel=3)
        name = _FORMER[name]
    return pick(FIGURES, name, "figure")


def figures_by_study() -> Iterator[tuple[str, str, FigureSpec]]:
    """Study, name and figure, for every figure of every study."""
    for study in dict.fromkeys(study for spec in _FIGURES for study in spec.studies):
        for name, spec in figures_of(study).items():
            yield study, name, spec


def figures_of(study: str) -> dict[str, FigureSpec]:
    """A study's figures by name, in the order of the table."""
    return {spec.name: spec for spec in _FIGURES if study in spec.studies}
