"""`sonde show`: a table of the stored runs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.cli.options import Json, RunsFolder

if TYPE_CHECKING:
    from sonde.store.lock import RunStatus
    from sonde.store.run import Runs

_WATCHED_METRICS = ("loss", "nonfinite")


def show_command(runs: RunsFolder = Path("runs"), json: Json = False) -> None:
    """List the stored runs: what each is, how far it is, and its last metrics."""
    import polars as pl

    from sonde.analysis.runs import OVERVIEW_METRICS
    from sonde.cli.terminal import plural, print_json
    from sonde.store.load import load

    last = pl.col("step") == pl.col("step").max().over("run", "metric")
    metrics = None if json else (*OVERVIEW_METRICS, *_WATCHED_METRICS)
    stored = load(runs, last | (pl.col("metric") == "nonfinite"), metrics=metrics, layers=False)
    if json:
        broken = [{"id": id, "state": "broken", "message": why} for id, why in stored.broken.items()]
        print_json(runs_as_json(stored) + _watched_as_json(stored) + broken)
        return
    if stored.runs or not stored.watched:
        print_runs(stored, f"{plural(len(stored), 'run') if len(stored) else 'no runs'} in {runs}")
    if stored.watched:
        _print_watched(stored, f"{plural(len(stored.watched), 'watched run')} in {runs}")


def runs_as_json(stored: "Runs") -> list[dict[str, Any]]:
    """What a program wants to know about each run; undefined metrics are NaN here."""
    from sonde.analysis.runs import last_metrics
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
    """Print a table of runs with the last value of the main metrics.

    A narrow terminal gets short ids and fewer metrics.
    """
    from sonde.analysis.runs import OVERVIEW_METRICS, last_metrics, last_value, untold
    from sonde.cli.terminal import fits, print_table
    from sonde.show.report.runs import session_start

    if not stored.runs:
        print(title)
        return

    metrics = last_metrics(stored)
    names = [name for name in OVERVIEW_METRICS if any(name in known for known in metrics.values())]
    keys = untold(stored)
    columns = {"id": "left", "label": "left", **dict.fromkeys(keys, "right")}
    columns |= {"seed": "right", "epochs": "right", "state": "left", **dict.fromkeys(names, "right")}
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
        short = _short_ids([run.id for run in stored.runs])
        rows = [[short[id], *cells] for id, *cells in rows]
    for name in reversed(names):
        if not fits(columns, rows, "label"):
            place = list(columns).index(name)
            rows = [[*row[:place], *row[place + 1 :]] for row in rows]
            del columns[name]
    print_table(title, columns, rows, "label")
    for line in _remarks(run.status for run in stored.runs):
        print(line)


def _remarks(states: "Iterable[RunStatus]") -> list[str]:
    """A line for each reason why runs are stalled or interrupted, with their number."""
    from sonde.cli.terminal import plural

    counted = Counter(known for known in states if known.why and known.state in ("stalled", "interrupted"))
    return [f"{plural(n, 'run')} {known.words}" for known, n in counted.items()]


def _short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Each id's last part, which commands accept too; the whole id where two ids end alike."""
    ends = Counter(id.rpartition("-")[2] for id in ids)
    return {id: end if ends[end := id.rpartition("-")[2]] == 1 else id for id in ids}


def _watched_as_json(stored: "Runs") -> list[dict[str, Any]]:
    """The watched runs: the model, the last step and loss, and where a value was not finite first."""
    import polars as pl

    found = []
    for run in stored.watched:
        rows = stored.rows.filter(pl.col("run") == run.id)
        losses = rows.filter(pl.col("metric") == "loss").sort("step")["value"]
        broken = rows.filter(pl.col("metric") == "nonfinite").select("module", "step").iter_rows()
        ended = run.manifest.state in ("complete", "failed")
        found.append(
            {
                "id": run.id,
                "kind": "watched",
                "label": run.label,
                "model": run.about["model"],
                "parameters": run.about["parameters"],
                "modules": sum(module["calls"] > 0 for module in run.facts.get("modules", [])),
                "step": run.manifest.step if ended else rows["step"].max(),
                "state": run.status.state,
                "message": run.status.why,
                "metrics": {"loss": losses[-1] if losses.len() else None},
                "nonfinite": next((f"{module or '?'}, step {step}" for module, step in broken), None),
            }
        )
    return found


def _print_watched(stored: "Runs", title: str) -> None:
    from sonde.analysis.runs import last_value
    from sonde.cli.terminal import print_table

    watched = _watched_as_json(stored)
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
