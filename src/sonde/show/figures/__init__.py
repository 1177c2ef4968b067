"""Figures drawn from tidy rows, by name.

A figure is a function from evidence to a drawing and a caption: rows → summary → artists.  `FIGURES` names it once;
its file is study/name, and the paper layout has other names for some.  This module imports no plotting library; drawing
does.  No module here imports torch.

The functions are in one file per family: `residual_loss`, `residual_layers`, `residual_gradient`, `accuracy`, `credit`
and `controls`.  They share a small grammar after seaborn's Stat and Mark: `groups` (which runs a figure compares),
`series` (mean, standard deviation and n over seeds; captions), `marks` and `panels` (axes, and what is drawn on them)
and `style`.  `render` writes files.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
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


_RESIDUAL = ("residual",)
_OF_RULES = ("audit", "cifar10")
_WITH_PARITY = ("audit", "cifar10", "snapshots")  # studies with a second task, on which blocks must learn
_OF_CONTROLS = ("credit_at", "random_targets", "penalty", "trained_blocks", "depth", "deep", "linear_quadratic")


_IN_PAPER = {
    "loss_by_depth": "plots/loss_by_depth",
    "learning_comparison": "plots_micro/6_learning_comparison",
    "signal_flow": "plots_micro/1_signal_flow",
    "gradient_flow": "plots_micro/2_gradient_flow",
    "gradient_highway": "plots_micro/3_highway_concept",
    "chain_rule": "plots_micro/4_chain_rule",
    "one_input": "plots_micro/5_layer_transformation",
    "training_loss": "plots/training_loss",
    "gradient_magnitude": "plots/gradient_magnitude",
    "activation_mean": "plots/activation_mean",
    "activation_std": "plots/activation_std",
    "stream_by_terminal_ln": "results/figures/figure_snapshot_resmlp",
    "stream_of_vit": "results/figures/figure_snapshot_vit",
    "three_networks": "paper/figures/fig3b_crossarch_3row",
    "accuracy": "report/{}_accuracy",
    "diagnostics": "report/{}_diagnostics",
    "weight_drift": "report/{}_feature_drift",
    "state_vs_credit": "report/{}_state_vs_credit",
    "summary": "report/{}_summary",
    "rules_residual_mlp": "report/rules_residual_mlp",
    "rules_conv_net": "report/rules_conv_net",
    "rules_credit": "report/rules_credit",
    "rules_alignment": "report/rules_alignment",
}
"""Figure → its file in the paper layout, without suffix; {} is the study."""

_RAW_IN_PAPER = ("training_loss", "gradient_magnitude", "activation_mean", "activation_std")
"""The figures that the paper layout draws of the raw variant."""


@dataclass(frozen=True)
class FigureSpec:
    """A figure: its name, its title, the function that draws it, and its studies."""

    name: str
    title: str
    drawn_by: str  # a module of this package, which has a function draw_NAME; or module.function
    studies: tuple[str, ...] = _RESIDUAL
    beside: bool = False  # drawn from the runs beside the study's own

    @property
    def variant(self) -> str | None:
        """The variant that is drawn by default: of the networks of the residual study, the scaled one."""
        return "scaled" if self.studies == _RESIDUAL and not self.beside else None

    @property
    def paths(self) -> dict[str, str]:
        """Study → file below the output folder, without suffix."""
        return {study: f"{study}/{self.name}" for study in self.studies}

    @property
    def paper(self) -> dict[str, str]:
        """Study → file in the paper layout, which does not have every figure."""
        file = _IN_PAPER.get(self.name)
        return {study: file.format(study.removesuffix("10")) for study in self.studies} if file else {}

    def path(self, study: str, layout: Layout = "study") -> str:
        """Its file in a layout; a figure that the paper layout does not have keeps its own."""
        return (self.paths | (self.paper if layout == "paper" else {}))[study]

    def variant_in(self, layout: Layout) -> str | None:
        """The variant that is drawn for a layout, if it is not the figure's own."""
        return "raw" if layout == "paper" and self.name in _RAW_IN_PAPER else None

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

        module, _, function = self.drawn_by.partition(".")
        draw = getattr(import_module(f"sonde.show.figures.{module}"), function or f"draw_{self.name}")
        with house_style():
            drawn: tuple[Figure, str] = draw(self.select(evidence, variant))
        return drawn


_FIGURES = (
    FigureSpec(
        "loss_by_depth",
        "Final loss against depth, of networks that can represent the identity",
        "residual_loss",
        beside=True,
    ),
    FigureSpec("learning_comparison", "What both networks learned, side by side", "residual_loss"),
    FigureSpec("signal_flow", "The signal going up: spread at the input and at every layer", "residual_layers"),
    FigureSpec("gradient_flow", "The gradient coming back: its norm at every layer", "residual_gradient"),
    FigureSpec("gradient_highway", "The gradient highway, drawn with the measured factors", "residual_gradient"),
    FigureSpec("chain_rule", "The chain rule: cumulative gradient scale from the loss backward", "residual_gradient"),
    FigureSpec("one_input", "One input vector on its way through both networks", "residual_layers"),
    FigureSpec("training_loss", "Training loss against steps, plain and residual", "residual_loss"),
    FigureSpec("gradient_magnitude", "Gradient norm against depth, plain and residual", "residual_layers"),
    FigureSpec("activation_mean", "Mean of the linear outputs against depth, plain and residual", "residual_layers"),
    FigureSpec("activation_std", "Spread of the linear outputs against depth, plain and residual", "residual_layers"),
    FigureSpec(
        "parity_summary",
        "Which rules train depth: test accuracy on parity, where the blocks must learn",
        "accuracy.draw_summary",
        _WITH_PARITY,
        beside=True,
    ),
    FigureSpec(
        "parity_accuracy",
        "Train and test accuracy on parity over epochs, per rule",
        "accuracy.draw_accuracy",
        _WITH_PARITY,
        beside=True,
    ),
    FigureSpec(
        "stream_by_terminal_ln",
        "The residual stream and the BP gradient over epochs, with and without terminal LN",
        "controls",
        ("snapshots",),
    ),
    FigureSpec(
        "stream_of_vit",
        "The residual stream and the BP gradient over epochs, vision transformer",
        "controls",
        ("snapshots",),
    ),
    FigureSpec(
        "three_networks",
        "Three architectures under three rules: stream, gradient and accuracy",
        "controls",
        ("snapshots",),
    ),
    FigureSpec("accuracy", "Train and test accuracy over epochs, per rule", "accuracy", _OF_RULES),
    FigureSpec(
        "diagnostics", "Credit against the BP gradient, layer by layer, beside null and ceiling", "credit", _OF_RULES
    ),
    FigureSpec("weight_drift", "How far the weights of each block moved, per rule", "credit", _OF_RULES),
    FigureSpec(
        "state_vs_credit", "State Bridge's prediction error beside the accuracy it reaches", "accuracy", _OF_RULES
    ),
    FigureSpec("summary", "Test accuracy at the end of training, all rules", "accuracy", _OF_RULES),
    FigureSpec(
        "rules_residual_mlp",
        "Test accuracy at the end of training, every rule on a pre-LN residual MLP",
        "accuracy",
        ("rules",),
    ),
    FigureSpec(
        "rules_conv_net", "Test accuracy at the end of training, every rule on a ConvNet", "accuracy", ("rules",)
    ),
    FigureSpec(
        "rules_credit",
        "Credit against the BP gradient, layer by layer, every rule on a pre-LN residual MLP",
        "credit",
        ("rules",),
    ),
    FigureSpec("rules_alignment", "Backward matrices against the weights over epochs", "credit", ("rules",)),
    FigureSpec(
        "accuracy_by_depth", "Test accuracy against the number of blocks, per rule", "controls", ("deep", "depth")
    ),
    FigureSpec("controls", "Every setting of a control at the end of training", "controls", _OF_CONTROLS),
    FigureSpec(
        "credit_at_layers",
        "Credit and growth by layer, with credit at a block's output and at its input",
        "controls",
        ("credit_at",),
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
