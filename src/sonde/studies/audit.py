"""Which rules train depth, and can their diagnostics be believed?"""

from collections.abc import Sequence

from sonde.analysis.audit import audit
from sonde.analysis.recipe_table import columns, lines
from sonde.analysis.verdict import sentence, verdict
from sonde.config import RunConfig
from sonde.models import ResidualMLP
from sonde.rules import Backprop, CreditBridge, DirectFeedback, FeedbackAlignment, Frozen, Rule, StateBridge
from sonde.studies.cifar10 import accuracies, prediction_against_rank
from sonde.studies.recipes import QUICK_SEEDS, SEEDS, classification, on_parity, which_train_depth
from sonde.studies.study import Gathered, Study, StudyFinding

_RULES: tuple[Rule, ...] = (
    Backprop(),
    FeedbackAlignment(),
    DirectFeedback(),
    StateBridge(),
    CreditBridge(),
    Frozen(),
)


def _configs(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """residual_mlp, four blocks, under each of the six rules."""
    model = ResidualMLP(d=256 if scale == "full" else 64, L=4)
    return [classification(model, rule, scale=scale, seed=seed) for seed in seeds for rule in _RULES]


def _findings(gathered: Gathered) -> list[StudyFinding]:
    """Which rules train depth, the audit's verdict on each, and whether a better prediction means a better network."""
    found = which_train_depth(gathered)
    for recipe in audit(gathered.stored, judge=gathered.judge).recipes:
        headings = list(columns(recipe))
        for rule, cells in zip(recipe.rules, lines(recipe), strict=True):
            found.append(
                StudyFinding(
                    sentence=sentence(rule),
                    shown=dict(zip(headings, cells, strict=True)),
                    numbers={
                        "rule": rule.rule,
                        "rule_label": rule.label,
                        "n": len(rule.seeds),
                        "verdict": verdict(rule),
                    },
                    runs=tuple(rule.ended),
                    seeds=tuple(rule.seeds),
                )
            )
    return [*found, *prediction_against_rank(accuracies(gathered.evidence))]


AUDIT_STUDY = Study(
    question="which rules train depth, and can their diagnostics be believed?",
    seeds={"quick": QUICK_SEEDS, "full": SEEDS},
    configs=_configs,
    findings=_findings,
    beside=on_parity(_RULES),
)
