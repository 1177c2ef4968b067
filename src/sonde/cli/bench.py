"""`sonde bench`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import DataRoot, Json

if TYPE_CHECKING:
    from sonde.bench import Row


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these: `--list` names them.", show_default=False)
    ] = None,
    list_names: Annotated[
        bool, typer.Option("--list", help="Name the benchmarks and measure nothing.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the rounds: seconds, and rough.")
    ] = False,
    data_root: DataRoot = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write results.json and results.md there.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Time Sonde against bare PyTorch loops, BioTorch and the arithmetic's limit.

    Ratios are of variants interleaved in one process, in process time on one thread.
    """
    from sonde.bench import BENCHES, Options, biotorch, report
    from sonde.cli.output import console, print_json, table
    from sonde.cli.progress import count
    from sonde.errors import pick
    from sonde.store import files
    from sonde.training.device import one_thread

    chosen = {name: pick(BENCHES, name, "benchmark") for name in names or BENCHES}
    if list_names:
        named = [{"name": name, "about": entry.about} for name, entry in chosen.items()]
        if json:
            print_json(named)
        else:
            columns = {"name": "left", "about": "left"}
            console().print(table("benchmarks", columns, [list(entry.values()) for entry in named]))
        return
    if not biotorch.installed():
        print(f"sonde: {biotorch.ABSENT}", file=sys.stderr)
    if save is not None:
        files.make_folder(save)
    rows: list[Row] = []
    with one_thread():
        about = report.machine()
        for number, (name, entry) in enumerate(chosen.items(), start=1):
            print(f"[{number}/{len(chosen)}] {name}: {entry.about}", file=sys.stderr)
            with count(console(stderr=True), name, quiet=False) as on_round:
                rows += entry(Options(quick=quick, data_root=data_root, on_round=on_round))
        saved = [] if save is None else report.save(save, rows, about)
    if json:
        print_json([row.to_json() for row in rows])
    else:
        _print(rows)
    for file in saved:
        print(file, file=sys.stderr)


def _print(rows: "list[Row]") -> None:
    from sonde.bench import report
    from sonde.cli.output import console, table

    to = console()
    to.print(table("Benchmark", report.COLUMNS, report.lines(rows)))
    to.print()
    to.print(report.NOTE, style="dim", soft_wrap=not to.is_terminal)
    for line in report.profiles(rows):
        to.print(line, soft_wrap=True)
