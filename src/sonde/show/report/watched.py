"""Watched runs for the page: what each was, and its rows as columns for the charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from sonde.analysis.diagnosis.diagnose import diagnose
from sonde.analysis.diagnosis.run_evidence import describe_nonfinite, evidence_of_watched
from sonde.core.formatting import listed
from sonde.metrics import WATCHED, Metric
from sonde.show.report.charts import index_in
from sonde.show.report.runs import place_of
from sonde.store.run import Run, Runs

MOST_VALUES = 1_200_000  # numbers in a page; of a run with more, steps are left out
FEWEST_STEPS = 12  # of a run that are shown in any case
NAMES_IN_REMARK = 8
DIGITS = 5


MODULES = [metric for metric in WATCHED.values() if metric.axis == "module"]
PARAMETERS = [metric for metric in WATCHED.values() if metric.axis == "parameter"]
LOSS = WATCHED["loss"]


@dataclass(frozen=True, kw_only=True)
class WatchedPart:
    """One watched run."""

    id: str
    label: str
    about: str  # in a line
    state: str
    message: str | None
    remarks: Sequence[str]
    types: Mapping[str, str]  # module → its class
    rows: pl.DataFrame
    findings: Sequence[Mapping[str, Any]] | None = None  # what a diagnosis found, the most important first


Findings = Sequence[Mapping[str, Any]] | None


def diagnosed(run: Run, rows: pl.DataFrame) -> Findings:
    """What is wrong with a run."""
    return [finding.as_dict() for finding in diagnose(evidence_of_watched(run, rows))]


def watched_parts(stored: Runs, findings: Callable[[Run, pl.DataFrame], Findings] = diagnosed) -> list[WatchedPart]:
    """Every watched run, the newest first."""
    return [
        _part(run, stored.rows.filter(pl.col("run") == run.id), findings) for run in reversed(_by_time(stored.watched))
    ]


def _by_time(runs: Sequence[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: str((run.manifest.sessions or [{}])[0].get("started", "")))


def _part(run: Run, rows: pl.DataFrame, findings: Callable[[Run, pl.DataFrame], Findings]) -> WatchedPart:
    facts = run.facts
    session = (run.manifest.sessions or [{}])[0]
    steps = run.manifest.step if run.manifest.state != "unfinished" else len(rows) and int(str(rows["step"].max()))
    about = [
        f"{run.about['model']} with {run.about['parameters']:,} parameters, {steps} steps",
        " ".join(filter(None, ["begun", session.get("started", "at an unknown time"), place_of(session)])),
    ]
    if "values" in run.about:
        about.append(f"values {run.about['values']}")
    return WatchedPart(
        id=run.id,
        label=run.label,
        about="; ".join(about) + ".",
        state=run.status.state,
        message=run.status.why,
        remarks=[*_nonfinite(rows), *_remarks(facts)],
        types={module["name"]: module.get("type", "") for module in facts.get("modules", [])},
        rows=rows,
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
    remarks = [f"{words}: {listed(names, NAMES_IN_REMARK, last=', ')}." for words, names in said.items() if names]
    remarks += [f"One parameter under several names: {', '.join(names)}." for names in facts.get("shared", [])]
    return remarks + (["Trained in eval mode."] if facts.get("training") is False else [])


def _replaced(facts: Mapping[str, Any]) -> list[str]:
    """Modules that are others than in the first step, gone or new; parameters where modules stayed."""
    found: dict[str, None] = {}
    for known in facts.get("replaced", []):
        found |= dict.fromkeys([*known["modules"], *known["removed"]] or known["parameters"])
    return list(found)


def watched_data(parts: Sequence[WatchedPart]) -> dict[str, Any]:
    """What the page's script reads; newest runs first, as many as have room."""
    reasons: list[str] = []
    room = max(1, MOST_VALUES // max(1, len(parts)))
    return {"digits": DIGITS, "runs": [packed_run(part, reasons, room) for part in parts], "reasons": reasons}


def packed_run(part: WatchedPart, reasons: list[str], room: int) -> dict[str, Any]:
    """One run for the page's script, in about so many numbers; reasons it needs are added to the list."""
    rows = part.rows.filter(pl.col("metric") != "nonfinite")
    every = rows.filter(pl.col("module").is_not_null())["step"].unique().sort().to_list()
    modules = _order(rows)
    parameters = _names(rows, [metric.name for metric in PARAMETERS])
    per_step = 8 * len(modules) + 3 * len(parameters)
    steps = sampled(every, max(FEWEST_STEPS, room // max(1, per_step)))
    kept = rows.filter(pl.col("step").is_in(steps))
    losses = rows.filter(pl.col("metric") == LOSS.name).sort("step")
    loss_steps = sampled(losses["step"].to_list(), 2000)
    return {
        "id": part.id,
        "label": part.label,
        "steps": steps,
        "watched": len(every),
        "modules": [{"name": name, "type": part.types.get(name.split("#")[0], "")} for name in modules],
        "parameters": parameters,
        "of_modules": _metrics(kept, MODULES, modules, steps, reasons),
        "of_parameters": _metrics(kept, PARAMETERS, parameters, steps, reasons),
        "loss": _loss(losses.filter(pl.col("step").is_in(loss_steps)), reasons),
    }


def sampled(steps: Sequence[int], most: int) -> list[int]:
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


def _order(rows: pl.DataFrame) -> list[str]:
    placed = rows.filter(pl.col("layer").is_not_null()).select("layer", "module").unique().sort("layer")
    return placed["module"].unique(maintain_order=True).to_list()


def _names(rows: pl.DataFrame, metrics: Sequence[str]) -> list[str]:
    return rows.filter(pl.col("metric").is_in(metrics))["module"].unique(maintain_order=True).to_list()


def _metrics(
    rows: pl.DataFrame,
    offered: Sequence[Metric],
    places: Sequence[str],
    steps: Sequence[int],
    reasons: list[str],
) -> list[dict[str, Any]]:
    """For each metric: v[place][step], null where there is no number; w says why, as [place, step, reason]."""
    of_place = {name: place for place, name in enumerate(places)}
    of_step = {step: place for place, step in enumerate(steps)}
    parts = rows.select("metric", "module", "step", "value", "defined", "reason").partition_by(
        "metric", as_dict=True, include_key=False
    )
    found = []
    for metric in offered:
        part = parts.get((metric.name,))
        if part is None:
            continue
        values: list[list[float | None] | None] = [None] * len(places)
        why: list[tuple[int, int, int]] = []
        rounded = part.with_columns(pl.col("value").round_sig_figs(DIGITS))
        for module, step, value, defined, reason in rounded.iter_rows():
            place = of_place.get(module)
            if place is None:
                continue
            line = values[place] or [None] * len(steps)
            values[place] = line
            if defined:
                line[of_step[step]] = value
            else:
                why.append((place, of_step[step], index_in(reasons, reason or "no reason was recorded")))
        if any(line is not None for line in values):
            known = {"key": metric.name, "label": metric.label, "log": metric.log, "v": values}
            found.append(known | ({"w": why} if why else {}))
    return found


def _loss(losses: pl.DataFrame, reasons: list[str]) -> dict[str, Any]:
    steps: list[int] = []
    values: list[float | None] = []
    why: list[tuple[int, int]] = []
    for step, value, defined, reason in losses.select("step", "value", "defined", "reason").iter_rows():
        if not defined:
            why.append((len(steps), index_in(reasons, reason)))
        steps.append(step)
        values.append(value if defined else None)
    return {"steps": steps, "v": values, "w": why}
