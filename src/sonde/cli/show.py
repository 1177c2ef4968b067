"""`sonde show`: a table of the stored runs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sonde.cli.options import Json, RunsFolder

if TYPE_CHECKING:
    from sonde.store.lock import RunStatus
    from sonde.store.run import Runs

_WATCHED_METRICS = ("loss", "nonfinite")


def show_command(runs: RunsFolder = Path("runs"), json: Json = False) -> None:
    """List the stored runs: what each is, how far it is, and its last metrics.

    Example: [bold]sonde show --runs runs[/bold]
    """
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


class _Column(NamedTuple):
    """A column of the table of runs.  Where the terminal is narrow, those of the highest `drop` go first."""

    heading: str
    side: str
    cells: list[str]
    drop: int = 0  # 0: never


def print_runs(stored: "Runs", title: str) -> None:
    """Print a table of runs with their task and the last value of the main metrics, sorted by what differs.

    A value that all runs share is in the title.  A narrow terminal gets short ids and fewer columns; a line below the
    table names those that are left out.
    """
    from sonde.cli.terminal import print_text

    if not stored.runs:
        print(title)
        return
    _print_columns(_columns(stored), title, "label")
    for line in _remarks(run.status for run in stored.runs):
        print_text(line)


def _print_columns(columns: list[_Column], title: str, wrapped: str, *, short: bool = True) -> None:
    """Print as many columns as fit, first with `short` ids; a value that all rows share is in the title."""
    from sonde.cli.terminal import fits, print_table, print_text

    shared = [one for one in columns if one.drop and len(one.cells) > 1 and len({*one.cells}) == 1]
    columns = [one for one in columns if one not in shared]
    if shared:
        title += f": all with {', '.join(f'{one.heading} {one.cells[0]}' for one in shared)}"

    def table() -> tuple[dict[str, str], list[list[str]]]:
        rows = [list(row) for row in zip(*(one.cells for one in columns), strict=True)]
        return {one.heading: one.side for one in columns}, rows

    if short and not fits(*table()):
        columns[0] = columns[0]._replace(cells=_short_ids(columns[0].cells))
    left_out = []
    while not fits(*table(), wrapped) and any(one.drop for one in columns):
        least = max(columns, key=lambda one: one.drop)
        left_out.append(least.heading)
        columns.remove(least)
    print_table(title, *table(), wrapped)
    if left_out:
        print_text(f"left out: {', '.join(left_out)}; a wider terminal or --json shows them", dim=True)


def _columns(stored: "Runs") -> list[_Column]:
    """Every column, with the runs sorted by task, network and what else differs; numbers as numbers."""
    from sonde.analysis.runs import OVERVIEW_METRICS, last_metrics, last_value, untold
    from sonde.show.report.runs import session_start

    metrics, keys = last_metrics(stored), untold(stored)
    runs = sorted(
        stored.runs,
        key=lambda run: (
            str(run.about["task_label"]),
            run.label,
            *(_order(values[run.id]) for values in keys.values()),
            run.seed,
            run.id,
        ),
    )
    names = [name for name in OVERVIEW_METRICS if any(name in known for known in metrics.values())]
    found = [
        _Column("id", "left", [run.id for run in runs]),
        _Column("task", "left", [str(run.about["task_label"]) for run in runs]),
        _Column("label", "left", [run.label for run in runs]),
    ]
    for place, (key, values) in enumerate(keys.items()):
        found.append(_Column(key, "right", [values[run.id] for run in runs], drop=10 + place if place else 5))
    reached = ("–" if run.manifest.epoch is None else run.manifest.epoch for run in runs)
    found += [
        _Column("seed", "right", [str(run.seed) for run in runs], drop=4),
        _Column("epochs", "right", [f"{at}/{run.epochs}" for at, run in zip(reached, runs, strict=True)], drop=8),
        _Column("state", "left", [run.status.state for run in runs], drop=6),
    ]
    for place, name in enumerate(names):
        cells = [last_value(metrics[run.id].get(name)) for run in runs]
        found.append(_Column(name, "right", cells, drop=(0, 1, 7)[place]))
    resumed = [", ".join(map(session_start, run.manifest.sessions[1:])) for run in runs]
    return [*found, *([_Column("sessions", "left", resumed, drop=20)] if any(resumed) else [])]


def _order(text: str) -> tuple[bool, float, str]:
    """Numbers in their order, before texts in theirs."""
    try:
        return False, float(text), ""
    except ValueError:
        return True, 0.0, text


def _remarks(states: "Iterable[RunStatus]") -> list[str]:
    """A line for each reason why runs are stalled or interrupted, with their number."""
    from sonde.cli.terminal import plural

    counted = Counter(known for known in states if known.why and known.state in ("stalled", "interrupted"))
    return [f"{plural(n, 'run')} {known.words}" for known, n in counted.items()]


def _short_ids(ids: Sequence[str]) -> list[str]:
    """Each id's last part, which commands accept too; whole ids where two of them end alike."""
    ends = [id.rpartition("-")[2] for id in ids]
    return ends if len({*ends}) == len(ends) else list(ids)


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

    watched = _watched_as_json(stored)

    def column(heading: str, side: str, cells: Iterable[str], drop: int = 0) -> _Column:
        return _Column(heading, side, list(cells), drop)

    models = (run["label"] if run["label"] == run["model"] else f"{run['label']} ({run['model']})" for run in watched)
    states = (run["state"] if run["message"] is None else f"{run['state']}: {run['message']}" for run in watched)
    columns = [
        column("id", "left", (run["id"] for run in watched)),
        column("model", "left", models, 3),
        column("parameters", "right", (f"{run['parameters']:,}" for run in watched), 8),
        column("modules", "right", (str(run["modules"]) for run in watched), 9),
        column("step", "right", ("–" if run["step"] is None else str(run["step"]) for run in watched), 1),
        column("state", "left", states, 2),
        column("loss", "right", (last_value(run["metrics"]["loss"]) for run in watched)),
    ]
    if any(run["nonfinite"] for run in watched):
        columns.append(column("not finite", "left", (run["nonfinite"] or "" for run in watched), 1))
    _print_columns(columns, title, "model", short=False)  # ids begin with the name of the run
