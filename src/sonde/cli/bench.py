"""`sonde bench`: the benchmark itself is `benchmarks/sonde_bench` of a checkout, and in no wheel."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import DataRoot, Json
from sonde.core.errors import SondeError

if TYPE_CHECKING:
    from sonde_bench import Row


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these: `--list` names them.", show_default=False)
    ] = None,
    list_names: Annotated[bool, typer.Option("--list", help="Name the benchmarks and measure nothing.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the rounds: seconds, and rough.")] = False,
    data_root: DataRoot = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write results.json and results.md there.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Time Sonde against bare PyTorch loops, JAX, torch.compile, BioTorch and the arithmetic's limit.

    Ratios are of variants interleaved in one process, in process time on one thread.
    """
    find_benchmark()

    from sonde.cli.terminal import console, count, print_json, table
    from sonde.core.errors import pick
    from sonde.store import files
    from sonde.training.device import one_thread
    from sonde_bench import BENCHES, Options
    from sonde_bench import table as results
    from sonde_bench.loops import NO_BIOTORCH, has_biotorch

    chosen = {name: pick(BENCHES, name, "benchmark") for name in names or BENCHES}
    if list_names:
        named = [{"name": name, "about": entry.about} for name, entry in chosen.items()]
        if json:
            print_json(named)
        else:
            columns = {"name": "left", "about": "left"}
            console().print(table("benchmarks", columns, [list(entry.values()) for entry in named]))
        return
    if not has_biotorch():
        print(f"sonde: {NO_BIOTORCH}", file=sys.stderr)
    if save is not None:
        files.make_folder(save)
    rows: list[Row] = []
    with one_thread():
        about = results.machine()
        for number, (name, entry) in enumerate(chosen.items(), start=1):
            print(f"[{number}/{len(chosen)}] {name}: {entry.about}", file=sys.stderr)
            with count(name, quiet=False) as on_round:
                rows += entry(Options(quick=quick, data_root=data_root, on_round=on_round))
        saved = [] if save is None else results.save(save, rows, about)
    if json:
        print_json([row.to_json() for row in rows])
    else:
        _print(rows)
    for file in saved:
        print(file, file=sys.stderr)


def find_benchmark() -> None:
    """Import `sonde_bench` from the checkout that this package is run from, else from the current folder's.

    By its file: its folder holds programs of common names, which have no business on the path.
    """
    for checkout in (Path(__file__).parents[3], Path.cwd()):
        file = checkout / "benchmarks" / "sonde_bench" / "__init__.py"
        spec = importlib.util.spec_from_file_location("sonde_bench", file)
        if file.is_file() and spec is not None and spec.loader is not None:
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return
    raise SondeError(
        "the benchmark is part of a checkout, and in no installed package: git clone Sonde, then `make bench` there"
    )


def _print(rows: "list[Row]") -> None:
    from sonde.cli.terminal import console, table
    from sonde_bench import table as results

    to = console()
    to.print(table("Benchmark", results.COLUMNS, results.lines(rows)))
    to.print()
    to.print(results.NOTE, style="dim", soft_wrap=not to.is_terminal)
    for line in results.profiles(rows):
        to.print(line, soft_wrap=True)
