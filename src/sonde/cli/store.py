"""`sonde show`, `sonde verify`, `sonde recompute` and `sonde rm`: the runs of a store."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import DataRoot, Json, RunsFolder, complete_choice, complete_run
from sonde.core.errors import SondeError, one_line, print_notice

if TYPE_CHECKING:
    from sonde.analysis.recompute import MetricComparison, Recomputation
    from sonde.show.stored_runs import Column
    from sonde.store.files import Place
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


_MOST_LISTED = 10  # runs that are named before they are removed


def verify_command(runs: RunsFolder = Path("runs"), json: Json = False) -> None:
    """Check a whole store: every file against its checksum, every id, every row, and the index.

    Other commands check the files that they read. This one reads all files, also the weights, and changes nothing.
    The exit code is 1 if something is wrong.

    Example: [bold]sonde verify --runs runs[/bold]
    """

    from sonde.cli.terminal import plural, print_json
    from sonde.store.load import verify

    found = verify(runs)
    if json:
        print_json(asdict(found))
    else:
        for what, complaints in found.wrong.items():
            for complaint in complaints:
                print(one_line(f"wrong: {what}: {complaint}"), file=sys.stderr)
        for left in found.left_over:
            print(one_line(f"left over: {left} (it belongs to no state, and may be removed)"), file=sys.stderr)
        old = len(found.without_checksums)
        said = "everything is what was stored"
        if old:
            some = "they were" if old == found.runs else f"{old} of them were"
            said = f"ids and rows fit; {some} stored without checksums, by 0.1.0, so bytes cannot be verified"
        if found.wrong:
            said = f"{len(found.wrong)} wrong"
        read = f"{found.files:,} files, {found.bytes / 1e6:,.1f} MB, {found.indexed:,} runs in the index"
        print(f"{plural(found.runs, 'run')} in {runs}: {said} ({read})")
    if found.wrong:
        raise typer.Exit(1)


def recompute_command(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            autocompletion=complete_run,
            help="The run's id, or a unique beginning of it: `sonde show` lists them.",
        ),
    ],
    runs: RunsFolder = Path("runs"),
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this metric: rho, rho/null, drift. May be given several times."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="The run's task, where it is a plugin: file.py:Mine, data.npz.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="The run's rule, where it is a plugin: file.py:Mine. Its own code computes its credit."),
    ] = None,
    data_root: DataRoot = None,
    json: Json = False,
) -> None:
    """Recompute the values that a run stored at its last epoch, by the plain definition of every metric.

    It starts from the stored weights and the rule's state and computes one sample at a time in float64. It shares no
    code with the measurement. A quick run takes seconds, a run of a full study minutes.

    The exit code is 1 if a value differs by more than 1e-9 of itself (1e-6 if the network computed in float32) and by
    more than rounding explains. docs/recompute.md shows how to do it by hand.

    No code from the store is run. Name a plugin that the run needs; it must be the file that was stored.

    Example: [bold]sonde recompute a1b2c3d4e5 --metric rho[/bold]
    """
    from sonde.analysis.recompute import recompute
    from sonde.analysis.recompute.stored import config_of, read_last_epoch
    from sonde.cli.terminal import print_json, progress_bar
    from sonde.config.stored import name_again
    from sonde.store.listing import find_run
    from sonde.store.run import open_run
    from sonde.training.session import one_thread

    stored = open_run(runs / find_run(runs, run))
    for part, reference in (("task", task), ("rule", rule)):
        if reference is not None:
            name_again(config_of(stored), part, reference)
    with one_thread(), progress_bar("recomputing", quiet=json) as progress:
        found = recompute(read_last_epoch(stored, data_root), metric or (), progress)
    if json:
        print_json(_object(found))
    else:
        _print(found)
    if found.wrong:
        raise typer.Exit(1)


def _print(found: "Recomputation") -> None:
    from sonde.cli.terminal import print_table, print_text

    columns = {"metric": "left", "values": "right", "undefined": "right", "|Δ|": "right"}
    columns |= {"relative": "right", "": "left"}
    print_table(f"{found.run}, epoch {found.epoch}", columns, [_cells(line) for line in found.lines])
    print_text()
    for single, what in ((False, "float64"), (True, "float32")):
        worst = found.worst(single=single)
        if worst is not None:
            at = worst.metric if worst.layer is None else f"{worst.metric}, layer {worst.layer}"
            print_text(f"largest relative difference, {what}: {worst.relative:.1e} ({at})", wrap=False)
    for line in found.lines:
        if line.wrong is not None:
            print_text(f"differs: {line.wrong.words}", wrap=False)
    for reason, metrics in found.not_recomputed.items():
        print_text(f"not recomputed: {', '.join(metrics)} ({reason})", wrap=False)
    if any(line.verdict == "rounding" for line in found.lines):
        print_text("rounding: moving every weight by its last bit changes these values as much.", wrap=False)


def _cells(line: "MetricComparison") -> list[str]:
    compared = line.worst is not None
    return [
        line.metric,
        str(line.values),
        str(line.undefined) if line.undefined else "–",
        f"{line.largest:.1e}" if compared else "–",
        f"{line.worst.relative:.1e}" if line.worst is not None else "–",
        line.verdict,
    ]


def _object(found: "Recomputation") -> dict[str, Any]:
    return {
        "run": found.run,
        "epoch": found.epoch,
        "agrees": not found.wrong,
        "metrics": [
            {
                "metric": line.metric,
                "values": line.values,
                "undefined": line.undefined,
                "largest_difference": line.largest if line.worst is not None else None,
                "largest_relative": line.worst.relative if line.worst is not None else None,
                "precision": "float32" if line.single else "float64",
                "verdict": line.verdict,
                "reason": line.reason,
                "differs": None if line.wrong is None else line.wrong.words,
            }
            for line in found.lines
        ],
    }


def remove_command(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN", help="Ids of runs, or their beginnings.", show_default=False, autocompletion=complete_run
        ),
    ] = None,
    runs: RunsFolder = Path("runs"),
    interrupted: Annotated[
        bool,
        typer.Option("--interrupted", help="Select the interrupted runs: not ended, and no process works on them."),
    ] = False,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY=VALUE",
            autocompletion=complete_choice,
            help="Select the runs with this value, as --only does: rule=dfa.",
        ),
    ] = None,
    empty_trash: Annotated[
        bool, typer.Option("--empty-trash", help="Delete the runs in the trash for good instead.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove runs: they move to a folder .trash inside the store, where no command reads them.

    A run that a process trains or watches is refused. To restore a run, move its folder back.
    `sonde rm --empty-trash` deletes for good.

    Examples: [bold]sonde rm a1b2c3d4e5[/bold], [bold]sonde rm --interrupted[/bold],
    [bold]sonde rm --where rule=dfa[/bold]
    """
    from sonde.cli.terminal import plural
    from sonde.store.listing import TRASH_FOLDER, move_to_trash, refuse_url, trashed
    from sonde.store.listing import empty_trash as delete
    from sonde.store.lock import Held

    refuse_url(runs)
    assert isinstance(runs, Path)
    trash = runs / TRASH_FOLDER
    if empty_trash:
        if run or interrupted or where:
            raise SondeError("--empty-trash takes no runs: it deletes everything in the trash")
        if names := trashed(runs):
            _confirm(names, f"Delete {plural(len(names), 'run')} in {trash} for good?", yes=yes)
            delete(runs)
        print(f"{plural(len(names), 'run')} deleted from {trash}")
        return
    chosen = _chosen(runs, run or [], interrupted, where or [])
    _confirm(chosen, f"Move {plural(len(chosen), 'run')} to {trash}?", yes=yes)
    moved = []
    for id in chosen:
        try:
            moved.append(move_to_trash(runs, id))
        except Held as held:
            print_notice(str(held))
    print(f"{plural(len(moved), 'run')} moved to {trash}; `sonde rm --empty-trash --runs {runs}` deletes for good")
    raise typer.Exit(int(len(moved) < len(chosen)))


def _chosen(runs: "Place", named: list[str], interrupted: bool, where: list[str]) -> list[str]:
    """The ids of the runs to remove."""
    from sonde.analysis.runs import choices, keep
    from sonde.store.listing import find_run
    from sonde.store.load import load

    if named:
        if interrupted or where:
            raise SondeError("name runs, or select them with --interrupted and --where: not both")
        return list(dict.fromkeys(find_run(runs, name) for name in named))
    if not (interrupted or where):
        raise SondeError("name the runs to remove, or use --interrupted or --where KEY=VALUE; `sonde show` lists them")
    stored = keep(load(runs, metrics=()), choices(where))
    found = [one.id for one in stored.every if not interrupted or one.status.state == "interrupted"]
    if not found:
        wanted = " and ".join(["is interrupted"] * interrupted + ["has these values"] * bool(where))
        raise SondeError(f"no run in {runs} {wanted}")
    return found


def _confirm(names: list[str], question: str, *, yes: bool) -> None:
    """List what is concerned and ask; without a terminal, --yes has to be given."""
    if yes:
        return
    for name in names[:_MOST_LISTED]:
        print(f"  {name}")
    if len(names) > _MOST_LISTED:
        print(f"  … and {len(names) - _MOST_LISTED} more")
    if not sys.stdin.isatty():
        raise SondeError(f"{question} Nothing is done without an answer: add --yes")
    if not typer.confirm(question):
        raise typer.Exit(1)
