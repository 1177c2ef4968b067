"""`sonde bench`.  The benchmark is `benchmarks/sonde_bench` of a checkout; it is in no wheel."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import DataRoot, Json
from sonde.core.errors import SondeError, print_notice

if TYPE_CHECKING:
    from sonde_bench import Row


def bench_command(
    names: Annotated[list[str] | None, typer.Argument(help="Run only these: `--list` names them.")] = None,
    list_names: Annotated[bool, typer.Option("--list", help="List the benchmarks without running them.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run a tenth of the rounds: seconds, rough numbers.")] = False,
    data_root: DataRoot = None,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Write results.json and results.md there.")] = None,
    json: Json = False,
) -> None:
    """Time Sonde against bare PyTorch loops, JAX, torch.compile, BioTorch and the limit of the arithmetic.

    The variants of a ratio are interleaved in one process, and measured in process time on one thread.

    Example: [bold]sonde bench --quick[/bold]
    """
    find_benchmark()

    from sonde.cli.terminal import print_json, print_table, progress_bar
    from sonde.core.errors import pick
    from sonde.store import files
    from sonde.training.session import one_thread
    from sonde_bench import BENCHES, Options
    from sonde_bench import table as results
    from sonde_bench.loops import NO_BIOTORCH, has_biotorch

    chosen = {name: pick(BENCHES, name, "benchmark") for name in names or BENCHES}
    if list_names:
        named = [{"name": name, "about": entry.about} for name, entry in chosen.items()]
        if json:
            print_json(named)
        else:
            print_table("benchmarks", {"name": "left", "about": "left"}, [list(one.values()) for one in named], "about")
        return
    if not has_biotorch():
        print_notice(NO_BIOTORCH)
    if save is not None:
        files.make_folder(save)
    rows: list[Row] = []
    with one_thread():
        about = results.machine()
        for number, (name, entry) in enumerate(chosen.items(), start=1):
            print(f"[{number}/{len(chosen)}] {name}: {entry.about}", file=sys.stderr)
            with progress_bar(name, quiet=False) as on_round:
                rows += entry(Options(quick=quick, data_root=data_root, on_round=on_round))
        saved = [] if save is None else results.save(save, rows, about)
    if json:
        print_json([row.to_json() for row in rows])
    else:
        _print(rows)
    for file in saved:
        print(file, file=sys.stderr)


def find_benchmark() -> None:
    """Import `sonde_bench` from the checkout that this package is run from, else from the current folder.

    It is imported by its file: the folder has programs with common names, which must not be on the path.
    """
    for checkout in (Path(__file__).parents[3], Path.cwd()):
        file = checkout / "benchmarks" / "sonde_bench" / "__init__.py"
        spec = importlib.util.spec_from_file_location("sonde_bench", file)
        if file.is_file() and spec is not None and spec.loader is not None:
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return
    raise SondeError(
        "the benchmark is part of a checkout and of no installed package: git clone Sonde, then `make bench` there"
    )


def _print(rows: "list[Row]") -> None:
    from sonde.cli.terminal import print_table, print_text
    from sonde_bench import table as results

    print_table("Benchmark", results.COLUMNS, results.lines(rows))
    print_text()
    print_text(results.NOTE, dim=True)
    for line in results.profiles(rows):
        print_text(line, wrap=False)
