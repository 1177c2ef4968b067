"""`sonde rm`: move runs to the store's trash, or empty it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.completion import complete_choice, complete_run
from sonde.cli.options import RunsFolder
from sonde.core.errors import SondeError, print_notice

if TYPE_CHECKING:
    from sonde.store.files import Place

_MOST_LISTED = 10


def remove_command(
    run: Annotated[
        list[str] | None,
        typer.Argument(help="Ids of runs, or their beginnings.", show_default=False, autocompletion=complete_run),
    ] = None,
    runs: RunsFolder = Path("runs"),
    interrupted: Annotated[
        bool, typer.Option("--interrupted", help="The runs that no process works on and that have not ended.")
    ] = False,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY=VALUE",
            autocompletion=complete_choice,
            help="The runs with this value, as with --only: rule=dfa.",
        ),
    ] = None,
    empty_trash: Annotated[
        bool, typer.Option("--empty-trash", help="Delete the runs in the trash for good instead.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove runs: they move to a folder .trash inside the store, where no command reads them.

    [bold]sonde rm a1b2c3d4e5[/bold], [bold]sonde rm --interrupted[/bold], [bold]sonde rm --where rule=dfa[/bold]

    A run that a process trains or watches is refused. To restore a run, move its folder back.
    `sonde rm --empty-trash` deletes for good.
    """
    from sonde.cli.terminal import plural
    from sonde.store.lock import Held
    from sonde.store.trash import TRASH_FOLDER, move_to_trash, refuse_url, trashed
    from sonde.store.trash import empty_trash as delete

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
        raise SondeError(f"no run in {runs} is interrupted{' and has these values' if where else ''}")
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
