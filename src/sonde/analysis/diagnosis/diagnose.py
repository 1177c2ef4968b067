"""All diagnoses of a run, ordered by cause: what another finding explains comes under it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from sonde.analysis.diagnosis import (
    flow_symptoms,
    loop_faults,
    pace_faults,
    task_faults,
    trained_faults,
    wiring_faults,
)
from sonde.analysis.diagnosis.finding import LEVELS, Finding, Findings
from sonde.analysis.diagnosis.signs import Signs

Diagnosis = Callable[[Signs], Finding | None]

DIAGNOSES: dict[str, Diagnosis] = {
    "wrong_label_shape": task_faults.wrong_label_shape,
    "wrong_output_activation": task_faults.wrong_output_activation,
    "wrong_loss": task_faults.wrong_loss,
    "wrong_labels": task_faults.wrong_labels,
    "detached_graph": loop_faults.detached_graph,
    "not_in_optimiser": loop_faults.not_in_optimiser,
    "frozen_parameters": loop_faults.frozen_parameters,
    "stale_gradients": loop_faults.stale_gradients,
    "wrong_mode": loop_faults.wrong_mode,
    "idle_branch": wiring_faults.idle_branch,
    "unnormalised_target": task_faults.unnormalised_target,
    "unnormalised_input": task_faults.unnormalised_input,
    "masked_growth": wiring_faults.masked_growth,
    "bad_init": wiring_faults.bad_init,
    "attention_collapse": wiring_faults.attention_collapse,
    "over_regularised": pace_faults.over_regularised,
    "lr_too_high": pace_faults.lr_too_high,
    "missing_activation": wiring_faults.missing_activation,
    "too_few_steps": pace_faults.too_few_steps,
    "lr_too_low": pace_faults.lr_too_low,
    "nan_origin": flow_symptoms.nan_origin,
    "saturated_units": flow_symptoms.saturated_units,
    "dead_units": flow_symptoms.dead_units,
    "vanishing_gradient": flow_symptoms.vanishing_gradient,
    "exploding_gradient": flow_symptoms.exploding_gradient,
    "rank_collapse": flow_symptoms.rank_collapse,
    "loss_spike": pace_faults.loss_spike,
    "gradient_noise": pace_faults.gradient_noise,
    "not_learning": trained_faults.not_learning,
    "growth": trained_faults.growth,
    "gradient": trained_faults.gradient,
    "credit": trained_faults.credit,
    "worth": trained_faults.worth,
}
"""By name, causes before their symptoms."""


FLOW = frozenset({"saturated_units", "dead_units", "vanishing_gradient", "exploding_gradient", "rank_collapse"})
PACE = frozenset({"lr_too_low", "lr_too_high", "too_few_steps", "wrong_labels", "missing_activation", "gradient_noise"})
CUTS = frozenset(
    {"wrong_label_shape", "wrong_output_activation", "wrong_mode", "detached_graph", "not_in_optimiser"}
    | {"frozen_parameters", "stale_gradients", "idle_branch", "over_regularised"}
)
"""Faults beside which nothing can be said of rates and steps."""

EXPLAINS: dict[str, frozenset[str]] = {
    "wrong_loss": frozenset({"nan_origin"}),
    "wrong_output_activation": FLOW | {"lr_too_low"},
    "detached_graph": FLOW,
    "not_in_optimiser": frozenset({"frozen_parameters"}),
    "frozen_parameters": FLOW,
    "stale_gradients": FLOW | {"nan_origin", "loss_spike", "masked_growth"},
    "wrong_mode": FLOW,
    "idle_branch": frozenset({"vanishing_gradient"}),
    "unnormalised_target": frozenset({"exploding_gradient", "nan_origin", "lr_too_low", "rank_collapse", "loss_spike"}),
    "unnormalised_input": FLOW | {"nan_origin", "lr_too_low", "loss_spike"},
    "bad_init": FLOW | {"nan_origin", "attention_collapse", "lr_too_low"},
    "masked_growth": frozenset({"vanishing_gradient", "exploding_gradient"}),
    "over_regularised": FLOW,
    "lr_too_high": FLOW | {"nan_origin", "loss_spike", "attention_collapse", "not_learning"},
    "too_few_steps": frozenset({"lr_too_low"}),
    "vanishing_gradient": frozenset({"not_learning", "growth"}),
    "exploding_gradient": frozenset({"nan_origin", "not_learning", "growth"}),
    "not_learning": frozenset({"worth"}),
    "growth": frozenset({"gradient", "credit", "not_learning"}),
    "gradient": frozenset({"credit"}),
    "credit": frozenset({"worth", "not_learning"}),
}
"""Causes, and the symptoms that each accounts for."""


def diagnose(signs: Signs) -> Findings:
    """Findings, the most important first; a symptom follows the cause that explains it."""
    found = {name: finding for name, look in DIAGNOSES.items() if (finding := look(signs)) is not None}
    found = {
        name: replace(finding, epoch=signs.epochs.get(finding.step)) if finding.epoch is None else finding
        for name, finding in found.items()
    }
    if signs.steps == 0:  # before training nothing can be said of its pace
        found = {name: finding for name, finding in found.items() if name not in PACE - {"missing_activation"}}
    sure = {name for name, finding in found.items() if finding.level == "certain"}
    if sure & CUTS:  # what is a matter of pace cannot be told as long as something is not connected
        found = {name: finding for name, finding in found.items() if name not in PACE or name in sure}
    if sure or any(found[name].level != "note" for name in CUTS & found.keys()):
        found.pop("lr_too_low", None)
        found.pop("too_few_steps", None)
    if "masked_growth" in found:  # the same growth under another name
        found.pop("exploding_gradient", None)
    if sure - {"masked_growth"} and "masked_growth" in found and "masked_growth" not in sure:
        found.pop("masked_growth")
    causes = sorted(
        (finding for name, finding in found.items() if _cause(name, found) is None),
        key=lambda finding: -LEVELS.index(finding.level),
    )
    ordered = []
    for cause in causes:
        ordered.append(cause)
        ordered += [
            replace(finding, explained_by=cause.name)
            for name, finding in found.items()
            if _cause(name, found) == cause.name
        ]
    return Findings(sorted(ordered, key=lambda finding: finding.level == "note"), about=signs.length)


def _cause(name: str, found: Mapping[str, Finding]) -> str | None:
    """The finding that explains this one: the surest, else the first in the table."""
    causes = [cause for cause, symptoms in EXPLAINS.items() if cause in found and name in symptoms]
    causes = [cause for cause in causes if found[cause].level != "note"]
    surest = max(causes, key=lambda cause: LEVELS.index(found[cause].level), default=None)
    return None if surest is None else _cause(surest, found) or surest
