"""`sonde show`: a table of the stored runs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.cli.options import Json, RunsFolder

if TYPE_CHECKING:
    from sonde.show.stored_runs import Column
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
    from sonde.show.stored_runs import described_watched, watched_columns
    from sonde.store.load import load

    last = pl.col("step") == pl.col("step").max().over("run", "metric")
    metrics = None if json else (*OVERVIEW_METRICS, *_WATCHED_METRICS)
    stored = load(runs, last | (pl.col("metric") == "nonfinite"), metrics=metrics, layers=False)
    if json:
        broken = [{"id": id, "state": "broken", "message": why} for id, why in stored.broken.items()]
        print_json(runs_as_json(stored) + described_watched(stored) + broken)
        return
    if stored.runs or not stored.watched:
        print_runs(stored, f"{plural(len(stored), 'run') if len(stored) else 'no runs'} in {runs}")
    if stored.watched:
        title = f"{plural(len(stored.watched), 'watched run')} in {runs}"
        _print_columns(watched_columns(stored), title, "model", short=False)  # ids begin with the name of the run


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
    """Print a table of runs with their task and the last value of the main metrics, sorted by what differs.

    A value that all runs share is in the title.  A narrow terminal gets short ids and fewer columns; a line below the
    table names those that are left out.
    """
    from sonde.cli.terminal import print_text
    from sonde.show.stored_runs import trained_columns

    if not stored.runs:
        print(title)
        return
    _print_columns(trained_columns(stored), title, "label")
    for line in _remarks(run.status for run in stored.runs):
        print_text(line)


def _print_columns(columns: "list[Column]", title: str, wrapped: str, *, short: bool = True) -> None:
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


def _remarks(states: "Iterable[RunStatus]") -> list[str]:
    """A line for each reason why runs are stalled or interrupted, with their number."""
    from sonde.cli.terminal import plural

    counted = Counter(known for known in states if known.why and known.state in ("stalled", "interrupted"))
    return [f"{plural(n, 'run')} {known.words}" for known, n in counted.items()]


def _short_ids(ids: Sequence[str]) -> list[str]:
    """Each id's last part, which commands accept too; whole ids where two of them end alike."""
    ends = [id.rpartition("-")[2] for id in ids]
    return ends if len({*ends}) == len(ends) else list(ids)
