"""`sonde verify`, `sonde recompute` and `sonde rm`: check a store and the values of a run, and remove runs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import DataRoot, Json, RunsFolder, complete_choice, complete_run
from sonde.core.errors import SondeError, print_notice

if TYPE_CHECKING:
    from sonde.analysis.recompute import MetricComparison, Recomputation
    from sonde.store.files import Place

_MOST_LISTED = 10  # runs that are named before they are removed


def verify_command(runs: RunsFolder = Path("runs"), json: Json = False) -> None:
    """Check a whole store: every file against its checksum, every id, every row, and the index.

    Other commands check the files that they read. This one reads all files, also the weights, and changes nothing.
    The exit code is 1 if something is wrong.

    Example: [bold]sonde verify --runs runs[/bold]
    """
    from dataclasses import asdict

    from sonde.cli.terminal import plural, print_json
    from sonde.core.errors import one_line
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
