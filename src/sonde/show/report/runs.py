"""Runs on the page.

Trained runs: their labels, the families they are drawn in, their sessions, and which are shown.  Watched runs: what
each was, what is wrong with it, and its rows as columns for the charts.
"""

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from sonde.analysis.diagnosis import diagnose
from sonde.analysis.diagnosis.run_evidence import evidence_of_watched
from sonde.analysis.diagnosis.run_record import describe_nonfinite
from sonde.analysis.diagnosis.spikes import first_movers
from sonde.analysis.runs import Recipe, levels, options_of
from sonde.core.formatting import network, number
from sonde.core.run_ids import Flat, distinct_names, identity, without
from sonde.metrics import WATCHED, Metric
from sonde.store.run import Run, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_RUNS = 300  # with a line in the charts and in the table
FEWEST_RUNS = 30  # of these, however much they measured
MOST_RUN_VALUES = 1_000_000  # measured by the runs with a line: about nine bytes each
MOST_NAMED = 20  # ids or seeds in a list beside them


@dataclass(frozen=True, kw_only=True)
class LabelledRun:
    """A run and what the page calls it."""

    run: Run
    network: str  # with the options that tell it from other networks of its family
    rule: str  # the same
    family: str  # what it shares with the runs it may be drawn beside


def label_runs(runs: Sequence[Run], recipes: Sequence[Recipe]) -> list[LabelledRun]:
    """The runs by family: runs of a family differ in nothing but network, rule and seed."""
    families: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        families.setdefault(identity(_family(recipe)), []).append(recipe)
    first = [members[0] for members in families.values()]
    titles = distinct_names(
        (f"{one.runs[0].about['task_label']}, {one.runs[0].config['epochs']} epochs", _family(one)) for one in first
    )
    order = {run.id: index for index, run in enumerate(runs)}
    found = []
    for title, members in zip(titles, families.values(), strict=True):
        networks = _labels(members, "model", lambda run: network(run.about))
        rules = _labels(members, "rule", lambda run: str(run.about["rule_label"]))
        for run in sorted((run for recipe in members for run in recipe.runs), key=lambda run: order[run.id]):
            found.append(LabelledRun(run=run, network=networks[run.id], rule=rules[run.id], family=title))
    return found


def _family(recipe: Recipe) -> Flat:
    return without(recipe.flat, ("model", "rule"))


def _labels(recipes: Sequence[Recipe], factor: str, label: Callable[[Run], str]) -> dict[str, str]:
    """Run id → its label, followed by the options that tell it from other networks or rules of that label."""
    by_label: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        for name in dict.fromkeys(map(label, recipe.runs)):
            by_label.setdefault(name, []).append(recipe)
    found: dict[str, str] = {}
    for name, alike in by_label.items():
        present = levels([recipe.flat for recipe in alike], factor)
        for recipe in alike:
            level = present[identity(options_of(recipe.flat, factor))]
            options = level.label.removeprefix(level.name) if len(present) > 1 else ""
            found |= {run.id: name + options for run in recipe.runs if label(run) == name}
    return found


def sample(runs: Sequence[LabelledRun], values: int = 0, most: int = MOST_RUNS) -> list[LabelledRun]:
    """At most `most` runs, in their order: the first seed of every network, rule and state, then the second, …

    Fewer where all runs together have so many `values` that a page could not hold those of `most`.
    """
    most = min(most, max(FEWEST_RUNS, MOST_RUN_VALUES * len(runs) // max(1, values)))
    if len(runs) <= most:
        return list(runs)
    seen: dict[tuple[str, ...], int] = {}
    turns = []
    for index, one in enumerate(runs):
        key = (one.family, one.network, one.rule, one.run.status.state)
        seen[key] = seen.get(key, 0) + 1
        turns.append((seen[key], index))
    return [runs[index] for index in sorted(index for _, index in sorted(turns)[:most])]


def comma_list(values: Iterable[object], most: int | None) -> str:
    """The values with commas; of more than `most` the first ones, and how many there are."""
    values = list(values)
    shown = ", ".join(str(value) for value in values[:most])
    return shown if most is None or len(values) <= most else f"{shown}, … ({len(values):,} in all)"


# ── sessions ────────────────────────────────────────────────────────────────────────────────────────
def session_text(session: Mapping[str, Any]) -> str:
    """A session in one line: from which epoch, when, where and with which code it trained."""
    environment = session.get("environment") or {}
    machine, packages = environment.get("machine") or {}, environment.get("packages", {})
    git, threads = environment.get("git"), environment.get("threads")
    where = [session_machine(session), machine.get("processor"), environment.get("device")]
    where.append(f"threads: {threads}" if threads else None)
    made_with = [f"{name} {packages[name]}" for name in ("sonde", "torch") if name in packages]
    if git:
        changed = " with uncommitted changes" * bool(git.get("dirty"))
        made_with.append(f"commit {str(git.get('commit'))[:10]}{changed}")
    return "; ".join(
        (
            f"{session_start(session)}, {session_time(session) or 'time not recorded'}",
            ", ".join(str(part) for part in where if part) or "place not recorded",
            ", ".join(made_with) or "versions not recorded",
        )
    )


def session_time(session: Mapping[str, Any]) -> str | None:
    """When the session began, to the minute in UTC; as it was recorded where that is no date."""
    started = session.get("started")
    try:
        return None if started is None else f"{datetime.fromisoformat(started).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except (TypeError, ValueError):
        return str(started)


def session_machine(session: Mapping[str, Any]) -> str | None:
    """The machine, with the node of a cluster as the engine named it; None where nothing was recorded."""
    host = ((session.get("environment") or {}).get("machine") or {}).get("host")
    node = session.get("node")
    return ", ".join(str(part) for part in (host, node and f"node {node}") if part) or None


def session_start(session: Mapping[str, Any]) -> str:
    """From the start, or the epoch after which the session resumed, and on which machine."""
    epoch = session.get("from_epoch")
    if epoch is None:
        return "from the start"
    machine = session_machine(session)
    return f"resumed after epoch {epoch}" + (f" on {machine}" if machine else "")


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
    around: tuple[int, list[tuple[str, str, str]]] | None = None  # the step of a spike, and what moved first


def _diagnosed(run: Run, rows: pl.DataFrame) -> _Findings:
    """What is wrong with a run."""
    return [finding.as_dict() for finding in diagnose(evidence_of_watched(run, rows))]


def watched_sections(stored: Runs, findings: _Diagnose = _diagnosed) -> list[WatchedSection]:
    """Every watched run, the newest first."""
    newest_first = sorted(stored.watched, key=lambda run: str(_first_session(run).get("started", "")))[::-1]
    return [_section(run, _rows_of(run, stored), findings) for run in newest_first]


def _rows_of(run: Run, stored: Runs) -> pl.DataFrame:
    """The rows of a watched run, from its folder where they were not loaded."""
    rows = stored.rows.filter(pl.col("run") == run.id)
    return rows if rows.height else run.rows


@dataclass(frozen=True, kw_only=True)
class ScalingSection:
    """A study of several sizes: what it says, and its figure as data: URIs for light and dark pages."""

    title: str
    words: Sequence[str]
    light: str
    dark: str


def scaling_sections(watched: Sequence[WatchedSection]) -> list[ScalingSection]:
    """Every study of `sonde scaling` among the watched runs."""
    known = [one for one in watched if one.run.facts.get("scaling") and one.run.manifest.state == "complete"]
    if not known:
        return []
    from sonde.analysis.scaling import studies_of
    from sonde.analysis.scaling_result import Measured
    from sonde.show.figures.scaling import scaling_figure

    found = studies_of(Measured(one.run.facts, one.rows) for one in known if one.rows.height)
    return [
        ScalingSection(
            title=f"{one.factory} over {one.axis} = {', '.join(map(str, one.sizes))}",
            words=one.words(),
            light=_image(scaling_figure(one)),
            dark=_image(scaling_figure(one), dark=True),
        )
        for one in found
    ]


def _image(figure: "Figure", *, dark: bool = False) -> str:
    from sonde.show.figures.style import recolour_for_dark

    if dark:
        recolour_for_dark(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _first_session(run: Run) -> Mapping[str, Any]:
    return (run.manifest.sessions or [{}])[0]


def _section(run: Run, rows: pl.DataFrame, findings: _Diagnose) -> WatchedSection:
    session, about = _first_session(run), run.about
    steps = run.manifest.step if run.manifest.state != "unfinished" else len(rows) and int(str(rows["step"].max()))
    said = [
        f"{about['model']} with {about['parameters']:,} parameters, {steps} steps",
        " ".join(filter(None, ["began", session_time(session) or "at an unknown time", session_machine(session)])),
        *([f"values {about['values']}"] if "values" in about else []),
        *(
            [f"values of {ranks} ranks" if ranks > 1 else "values of rank 0"]
            if (ranks := run.facts.get("ranks"))
            else []
        ),
    ]
    return WatchedSection(
        run=run,
        rows=rows,
        about="; ".join(said) + ".",
        remarks=[*_nonfinite(rows), *_remarks(run.facts)],
        findings=findings(run, rows),
        around=_around(run, rows),
    )


def _around(run: Run, rows: pl.DataFrame) -> tuple[int, list[tuple[str, str, str]]] | None:
    """Which parameters moved first around a spike of the loss: name, step, and times their usual movement."""
    known = first_movers(evidence_of_watched(run, rows)) if run.facts.get("spikes") else None
    return (
        None if known is None else (known[0], [(name, str(at), f"{number(times)} ×") for name, at, times in known[1]])
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


def index_in(table: list[Any], entry: Any) -> int:
    """The index of the entry in the table; adds it if it is missing."""
    if entry not in table:
        table.append(entry)
    return table.index(entry)
