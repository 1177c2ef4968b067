"""`sonde export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sonde.cli.options import Only, OutFolder, Quiet, RunsFolder, Seeds, Set, seeds_of
from sonde.core.errors import SondeError

if TYPE_CHECKING:
    from sonde.store.files import Place
    from sonde.store.run import Runs

PAPER = "paper"


def export(
    runs: RunsFolder = Path("runs"),
    layout: Annotated[
        str,
        typer.Option(
            metavar="paper|csv|parquet|runs|tensorboard|wandb|mlflow",
            help="The format: docs/export.md has each.",
        ),
    ] = PAPER,
    study: Annotated[
        str | None,
        typer.Option(help="Only this study (default: all that the folder holds).", show_default=False),
    ] = None,
    only: Only = None,
    out: OutFolder = Path("export"),
    scale: Annotated[
        Literal["quick", "full"] | None,
        typer.Option(help="Of the study, or of all of them in the layout paper (default: quick).", show_default=False),
    ] = None,
    seeds: Seeds = None,
    set: Set = None,
    quiet: Quiet = False,
) -> None:
    """Write stored runs as files that other tools read.

    paper: the JSON files of existing plotting scripts, by study; sonde.json beside them keeps what they have no place
    for, and `sonde figures --from` draws from them. csv, parquet: two tables, of rows and of runs.
    runs: a store without weights, to hand round.

    tensorboard, wandb (an offline run, to be synced), mlflow (a SQLite database): every run, watched ones too, with its
    configuration. Each needs its extra: pip install 'sonde\\[tensorboard]'.

    [bold]sonde export --layout parquet --only task=digits[/bold]
    """
    from sonde.core.errors import pick
    from sonde.show.exporters import LAYOUTS

    pick({PAPER: PAPER, **LAYOUTS}, layout, "layout")
    if layout == PAPER:
        from sonde.cli.paper_export import export_paper

        export_paper(
            runs,
            out,
            study=study,
            scale=scale or "quick",
            seeds=seeds_of(seeds),
            changes=set or [],
            choices=only or [],
            quiet=quiet,
        )
        return
    if study is None and (scale or seeds or set):
        raise SondeError("--scale, --seeds and --set are of a study: add --study NAME, or use --only KEY=VALUE")
    if study is None:
        stored = _chosen(runs, only or [])
    else:
        stored = _of_study(runs, study, scale or "quick", seeds_of(seeds), set or [], only or [], quiet)
    _write(stored, layout, out, quiet)


def _chosen(runs: "Place", only: list[str]) -> "Runs":
    """All runs, watched ones too, or those with the wanted values; without their rows."""
    from sonde.analysis.runs import choices, keep
    from sonde.store.load import load

    stored = keep(load(runs, metrics=()), choices(only))
    if not (stored.runs or stored.watched):
        raise SondeError(f"{runs} holds no runs: `sonde run STUDY --runs {runs}` makes them")
    return stored


def _of_study(
    runs: "Place",
    study: str,
    scale: str,
    seeds: list[int] | None,
    changes: list[str],
    only: list[str],
    quiet: bool,
) -> "Runs":
    """The complete runs of a study, whatever was swept."""
    from sonde.cli.study_evidence import from_store
    from sonde.store.run import Runs

    found = from_store(study, runs, scale=scale, seeds=seeds, changes=changes, choices=only, tell=not quiet, metrics=())
    together = {run.id: run for gathered in found.values() for run in gathered.stored.runs}
    return Runs(next(iter(found.values())).stored.rows, list(together.values()))


def _write(stored: "Runs", layout: str, out: Path, quiet: bool) -> None:
    from sonde.cli.terminal import count
    from sonde.show.exporters import LAYOUTS, writer
    from sonde.store import files
    from sonde.store.publish import marked

    write, about = writer(layout), LAYOUTS[layout]
    with (
        marked(out, layout, alone=about.alone, run_by_run=about.run_by_run),
        files.clear_errors(out),
        count("exporting runs", quiet=quiet) as on_progress,
    ):
        written = write(stored, out, on_progress)
    if quiet:
        return
    many = len(stored.runs) + len(stored.watched) if layout != "runs" else len(written)
    where = " and ".join(map(str, written)) if len(written) <= 2 else f"{written[0].parent}"
    print(f"{many} run{'s' * (many != 1)} in {where}")
    print(f"open with: {about.opened_with.format(out=out)}")
