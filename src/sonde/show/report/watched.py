"""Watched runs on the page: what each was, what is wrong with it, and its rows as columns for the charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from sonde.analysis.diagnosis import diagnose
from sonde.analysis.diagnosis.run_evidence import describe_nonfinite, evidence_of_watched
from sonde.metrics import WATCHED, Metric
from sonde.show.report.charts import index_in
from sonde.show.report.runs import session_machine
from sonde.store.run import Run, Runs

MOST_WATCHED_VALUES = 1_200_000  # numbers in a page; of a run with more, steps are left out
FEWEST_STEPS = 12  # of a run that are always shown
MOST_LOSSES = 2000
NAMES_IN_REMARK = 8
WATCHED_DIGITS = 5

OF_MODULES = [metric for metric in WATCHED.values() if metric.axis == "module"]
OF_PARAMETERS = [metric for metric in WATCHED.values() if metric.axis == "parameter"]

_Findings = Sequence[Mapping[str, Any]] | None  # what a diagnosis found, the most important first; None: not asked yet
_Diagnose = Callable[[Run, pl.DataFrame], _Findings]


@dataclass(frozen=True, kw_only=True)
class WatchedSection:
    """A watched run, its rows, and what the page says about it."""

    run: Run
    rows: pl.DataFrame
    about: str
    remarks: Sequence[str]
    findings: _Findings


def _diagnosed(run: Run, rows: pl.DataFrame) -> _Findings:
    """What is wrong with a run."""
    return [finding.as_dict() for finding in diagnose(evidence_of_watched(run, rows))]


def watched_sections(stored: Runs, findings: _Diagnose = _diagnosed) -> list[WatchedSection]:
    """Every watched run, the newest first."""
    newest_first = sorted(stored.watched, key=lambda run: str(_first_session(run).get("started", "")))[::-1]
    return [_section(run, stored.rows.filter(pl.col("run") == run.id), findings) for run in newest_first]


def _first_session(run: Run) -> Mapping[str, Any]:
    return (run.manifest.sessions or [{}])[0]


def _section(run: Run, rows: pl.DataFrame, findings: _Diagnose) -> WatchedSection:
    session, about = _first_session(run), run.about
    steps = run.manifest.step if run.manifest.state != "unfinished" else len(rows) and int(str(rows["step"].max()))
    said = [
        f"{about['model']} with {about['parameters']:,} parameters, {steps} steps",
        " ".join(filter(None, ["begun", session.get("started", "at an unknown time"), session_machine(session)])),
        *([f"values {about['values']}"] if "values" in about else []),
    ]
    return WatchedSection(
        run=run,
        rows=rows,
        about="; ".join(said) + ".",
        remarks=[*_nonfinite(rows), *_remarks(run.facts)],
        findings=findings(run, rows),
    )


def _nonfinite(rows: pl.DataFrame) -> list[str]:
    return [
        f"In step {row['step']} {describe_nonfinite(row['module'], row['value'], row['reason'])}."
        for row in rows.filter(pl.col("metric") == "nonfinite").iter_rows(named=True)
    ]


def _remarks(facts: dict[str, Any]) -> list[str]:
    parameters, modules = facts.get("parameters", []), facts.get("modules", [])
    unseen = {m["name"]: m.get("reason") or "not called" for m in modules if not m["calls"]}
    said = {
        "In no optimiser": [p["name"] for p in parameters if p.get("in_optimiser") is False],
        "Ask for no gradient": [p["name"] for p in parameters if not p.get("requires_grad", True)],
        "In the other mode than the model": facts.get("in_the_other_mode", []),
        "Replaced during training": _replaced(facts),
    }
    said |= {reason.capitalize(): [n for n, r in unseen.items() if r == reason] for reason in unseen.values()}
    remarks = [f"{words}: {_few(names)}." for words, names in said.items() if names]
    remarks += [f"One parameter under several names: {', '.join(names)}." for names in facts.get("shared", [])]
    return remarks + (["Trained in eval mode."] if facts.get("training") is False else [])


def _replaced(facts: Mapping[str, Any]) -> list[str]:
    """Modules that are new, gone or other objects than in the first step; parameters where modules stayed."""
    found: dict[str, None] = {}
    for known in facts.get("replaced", []):
        found |= dict.fromkeys([*known["modules"], *known["removed"]] or known["parameters"])
    return list(found)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_IN_REMARK])
    return shown if len(names) <= NAMES_IN_REMARK else f"{shown} and {len(names) - NAMES_IN_REMARK} more"


# ── charts ──────────────────────────────────────────────────────────────────────────────────────────
def watched_data(sections: Sequence[WatchedSection]) -> dict[str, Any]:
    """What the page's script reads."""
    reasons: list[str] = []
    room = max(1, MOST_WATCHED_VALUES // max(1, len(sections)))
    runs = [packed_run(section, reasons, room) for section in sections]
    return {"digits": WATCHED_DIGITS, "runs": runs, "reasons": reasons}


def packed_run(section: WatchedSection, reasons: list[str], room: int) -> dict[str, Any]:
    """One run for the page's script, in about `room` numbers; adds the reasons it needs to the list."""
    rows = section.rows.filter(pl.col("metric") != "nonfinite")
    every = rows.filter(pl.col("module").is_not_null())["step"].unique().sort().to_list()
    modules = _modules(rows)
    parameters = _parameters(rows)
    per_step = 8 * len(modules) + 3 * len(parameters)
    steps = sampled_steps(every, max(FEWEST_STEPS, room // max(1, per_step)))
    kept = rows.filter(pl.col("step").is_in(steps))
    losses = rows.filter(pl.col("metric") == "loss").sort("step")
    loss_steps = sampled_steps(losses["step"].to_list(), MOST_LOSSES)
    types = {module["name"]: module.get("type", "") for module in section.run.facts.get("modules", [])}
    return {
        "id": section.run.id,
        "label": section.run.label,
        "steps": steps,
        "watched": len(every),
        "modules": [{"name": name, "type": types.get(name.split("#")[0], "")} for name in modules],
        "parameters": parameters,
        "of_modules": _metrics(kept, OF_MODULES, modules, steps, reasons),
        "of_parameters": _metrics(kept, OF_PARAMETERS, parameters, steps, reasons),
        "loss": _loss(losses.filter(pl.col("step").is_in(loss_steps)), reasons),
    }


def sampled_steps(steps: Sequence[int], most: int) -> list[int]:
    """At most so many steps: the first ten, the last, and between them every 2nd, 4th, 8th, …

    Strides double, so that a run that grows keeps most of the steps it was shown with.
    """
    if len(steps) <= most:
        return list(steps)
    first, rest = list(steps[: min(10, most - 1)]), list(steps[min(10, most - 1) : -1])
    room, stride = most - len(first) - 1, 1
    while room and -(-len(rest) // stride) > room:
        stride *= 2
    return [*first, *(rest[::stride] if room else []), steps[-1]]


def _modules(rows: pl.DataFrame) -> list[str]:
    """In the order in which they ran."""
    ordered = rows.filter(pl.col("layer").is_not_null()).select("layer", "module").unique().sort("layer")
    return ordered["module"].unique(maintain_order=True).to_list()


def _parameters(rows: pl.DataFrame) -> list[str]:
    metrics = [metric.name for metric in OF_PARAMETERS]
    return rows.filter(pl.col("metric").is_in(metrics))["module"].unique(maintain_order=True).to_list()


def _metrics(
    rows: pl.DataFrame,
    offered: Sequence[Metric],
    names: Sequence[str],
    steps: Sequence[int],
    reasons: list[str],
) -> list[dict[str, Any]]:
    """For each metric: v[module][step], null where there is no number; w says why, as [module, step, reason]."""
    of_name = {name: index for index, name in enumerate(names)}
    of_step = {step: index for index, step in enumerate(steps)}
    parts = rows.select("metric", "module", "step", "value", "defined", "reason").partition_by(
        "metric", as_dict=True, include_key=False
    )
    found = []
    for metric in offered:
        part = parts.get((metric.name,))
        if part is None:
            continue
        values: list[list[float | None] | None] = [None] * len(names)
        why: list[tuple[int, int, int]] = []
        rounded = part.with_columns(pl.col("value").round_sig_figs(WATCHED_DIGITS))
        for module, step, value, defined, reason in rounded.iter_rows():
            index = of_name.get(module)
            if index is None:
                continue
            line = values[index] = values[index] or [None] * len(steps)
            if defined:
                line[of_step[step]] = value
            else:
                why.append((index, of_step[step], index_in(reasons, reason or "no reason was recorded")))
        if any(line is not None for line in values):
            known = {"key": metric.name, "label": metric.label, "log": metric.log, "v": values}
            found.append(known | ({"w": why} if why else {}))
    return found


def _loss(losses: pl.DataFrame, reasons: list[str]) -> dict[str, Any]:
    lines = losses.select("step", "value", "defined", "reason").rows()
    return {
        "steps": [step for step, *_ in lines],
        "v": [value if defined else None for _, value, defined, _ in lines],
        "w": [(at, index_in(reasons, reason)) for at, (_, _, defined, reason) in enumerate(lines) if not defined],
    }
