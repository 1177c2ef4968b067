"""`sonde show`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.cli.options import Json, RunsFolder
from sonde.store.status import RunStatus

if TYPE_CHECKING:
    from sonde.store.run import Runs

OF_WATCHED = ("loss", "nonfinite")


def show(runs: RunsFolder = Path("runs"), json: Json = False) -> None:
    """List stored runs: what each is, how far it came, its last metrics."""
    import polars as pl

    from sonde.analysis.frame import OVERVIEW_METRICS
    from sonde.cli.terminal import print_json
    from sonde.store.load import load

    last = pl.col("step") == pl.col("step").max().over("run", "metric")
    shown = None if json else (*OVERVIEW_METRICS, *OF_WATCHED)
    stored = load(runs, last | (pl.col("metric") == "nonfinite"), metrics=shown, layers=False)
    if json:
        broken = [{"id": id, "state": "broken", "message": why} for id, why in stored.broken.items()]
        print_json(describe(stored) + describe_watched(stored) + broken)
        return
    if stored.runs or not stored.watched:
        print_runs(stored, f"{len(stored) or 'no'} run{'s' * (len(stored) != 1)} in {runs}")
    if stored.watched:
        print_watched(stored, f"{len(stored.watched)} watched run{'s' * (len(stored.watched) != 1)} in {runs}")


def describe(stored: "Runs") -> list[dict[str, Any]]:
    """What a program wants to know of each run; undefined metrics are NaN here."""
    from sonde.analysis.frame import last_metrics
    from sonde.show.report.runs import session_machine

    metrics = last_metrics(stored)
    return [
        {
            "id": run.id,
            "label": run.label,
            "model": run.config["model"]["name"],
            "rule": run.config["rule"]["name"],
            "task": run.config["task"]["name"],
            "seed": run.config["seed"],
            "epoch": run.manifest.epoch,
            "state": run.status.state,
            "message": run.status.why,
            "sessions": [
                {key: session.get(key) for key in ("from_epoch", "started")} | {"where": session_machine(session)}
                for session in run.manifest.sessions
            ],
            "metrics": metrics[run.id],
        }
        for run in stored.runs
    ]


def print_runs(stored: "Runs", title: str) -> None:
    """A table of runs with the last value of the metrics that say most; where it is narrow, with short ids
    and fewer of those metrics.
    """
    from sonde.analysis.frame import OVERVIEW_METRICS, last_metrics, last_value, untold
    from sonde.cli.terminal import fits, print_table
    from sonde.show.report.runs import session_start

    if not stored.runs:
        print(title)
        return

    metrics = last_metrics(stored)
    names = [name for name in OVERVIEW_METRICS if any(name in known for known in metrics.values())]
    columns = {"id": "left", "label": "left"}
    keys = untold(stored)
    columns |= dict.fromkeys(keys, "right")
    columns |= {"seed": "right", "epochs": "right", "state": "left"}
    columns |= dict.fromkeys(names, "right")
    resumed = {run.id: ", ".join(map(session_start, run.manifest.sessions[1:])) for run in stored.runs}
    if any(resumed.values()):
        columns["sessions"] = "left"
    rows = [
        [
            run.id,
            run.label,
            *(values[run.id] for values in keys.values()),
            str(run.config["seed"]),
            f"{'–' if run.manifest.epoch is None else run.manifest.epoch}/{run.config['epochs']}",
            run.status.state,
            *(last_value(metrics[run.id].get(name)) for name in names),
            *([resumed[run.id]] if "sessions" in columns else []),
        ]
        for run in stored.runs
    ]
    if not fits(columns, rows):
        short = short_ids([run.id for run in stored.runs])
        rows = [[short[id], *cells] for id, *cells in rows]
    for name in reversed(names):
        if not fits(columns, rows, "label"):
            place = list(columns).index(name)
            rows = [[*row[:place], *row[place + 1 :]] for row in rows]
            del columns[name]
    print_table(title, columns, rows, "label")
    for line in _remarks(run.status for run in stored.runs):
        print(line)


def _remarks(standings: "Iterable[RunStatus]") -> list[str]:
    """What there is to say of runs that nobody works on, or that do not advance."""
    counted = Counter(known for known in standings if known.why and known.state in ("stalled", "interrupted"))
    return [f"{many} run{'s' * (many != 1)} {known.words}" for known, many in counted.items()]


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """By id, its end, which commands take too; the whole id where two end alike."""
    ends = Counter(id.rpartition("-")[2] for id in ids)
    return {id: end if ends[end := id.rpartition("-")[2]] == 1 else id for id in ids}


def describe_watched(stored: "Runs") -> list[dict[str, Any]]:
    """The runs of other people's loops: what was watched, and how far it came."""
    last = _last_of_watched(stored)
    return [
        {
            "id": run.id,
            "kind": "watched",
            "label": run.label,
            "model": run.about["model"],
            "parameters": run.about["parameters"],
            "modules": sum(module["calls"] > 0 for module in run.facts.get("modules", [])),
            "step": run.manifest.step if run.manifest.state in ("complete", "failed") else last[run.id]["step"],
            "state": run.status.state,
            "message": run.status.why,
            "metrics": {"loss": last[run.id]["loss"]},
            "nonfinite": last[run.id]["nonfinite"],
        }
        for run in stored.watched
    ]


def print_watched(stored: "Runs", title: str) -> None:
    """A table of watched runs; a run under way tells the step it was last seen at."""
    from sonde.analysis.frame import last_value
    from sonde.cli.terminal import print_table

    watched = describe_watched(stored)
    columns = {"id": "left", "model": "left", "parameters": "right", "modules": "right", "step": "right"}
    columns |= {"state": "left", "loss": "right"}
    if any(run["nonfinite"] for run in watched):
        columns["not finite"] = "left"
    rows = [
        [
            run["id"],
            run["label"] if run["label"] == run["model"] else f"{run['label']} ({run['model']})",
            f"{run['parameters']:,}",
            str(run["modules"]),
            "–" if run["step"] is None else str(run["step"]),
            run["state"] if run["message"] is None else f"{run['state']}: {run['message']}",
            last_value(run["metrics"]["loss"]),
            *([run["nonfinite"] or ""] if "not finite" in columns else []),
        ]
        for run in watched
    ]
    print_table(title, columns, rows)


def _last_of_watched(stored: "Runs") -> dict[str, dict[str, Any]]:
    """By run: the last step and loss, and where something was not finite first."""
    import polars as pl

    last: dict[str, dict[str, Any]] = {}
    for run in stored.watched:
        mine = stored.rows.filter(pl.col("run") == run.id)
        losses = mine.filter(pl.col("metric") == "loss").sort("step")
        broken = mine.filter(pl.col("metric") == "nonfinite")
        where = [f"{module or '?'}, step {step}" for module, step in broken.select("module", "step").iter_rows()]
        last[run.id] = {
            "step": mine["step"].max(),
            "loss": losses["value"][-1] if losses.height else None,
            "nonfinite": next(iter(where), None),
        }
    return last
