"""`sonde recompute`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import DataRoot, Json, RunsFolder

if TYPE_CHECKING:
    from sonde.analysis.recompute.comparison import Line, Recomputation


def recompute(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its id, or how no other begins: `sonde show` lists them.")],
    runs: RunsFolder = Path("runs"),
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this metric: rho, rho/null, drift; may be repeated.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="The run's task, where it is a plugin: file.py:Mine, data.npz.", show_default=False),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="The run's rule, where it is a plugin: file.py:Mine; its own code computes its credit.",
            show_default=False,
        ),
    ] = None,
    data_root: DataRoot = None,
    json: Json = False,
) -> None:
    """Recompute what a run stored at its last epoch, by the plain definition of every metric.

    From the stored weights and rule, one sample at a time in float64, without the code that measured it: seconds for
    a quick run, minutes for one of a full study. Ends with exit code 1 where a value differs by more than 1e-9 of
    itself (1e-6 where the network computed in float32) and by more than rounding explains. docs/recompute.md tells how
    to do it by hand.

    No code of a store is run. A plugin that is needed is named again, and has to be the file that was stored.
    """
    from sonde.analysis.recompute.comparison import recompute as compare
    from sonde.analysis.recompute.stored import read_end
    from sonde.cli.terminal import count, print_json
    from sonde.config.stored import name_again
    from sonde.store.folder import RunFolder
    from sonde.store.listing import find
    from sonde.training.device import one_thread

    folder = RunFolder(runs / find(runs, run))
    for part, reference in (("task", task), ("rule", rule)):
        if reference is not None:
            name_again(folder.configuration(), part, reference)
    with one_thread(), count("recomputing", quiet=json) as progress:
        found = compare(read_end(folder, data_root), metric or (), progress)
    if json:
        print_json(_object(found))
    else:
        _print(found)
    if found.wrong:
        raise typer.Exit(1)


def _print(found: "Recomputation") -> None:
    from sonde.cli.terminal import console, print_table

    columns = {"metric": "left", "values": "right", "undefined": "right", "|Δ|": "right"}
    columns |= {"relative": "right", "": "left"}
    to = console()
    print_table(f"{found.run}, epoch {found.epoch}", columns, [_cells(line) for line in found.lines])
    to.print()
    for single, what in ((False, "float64"), (True, "float32")):
        worst = found.worst(single=single)
        if worst is not None:
            at = worst.metric if worst.layer is None else f"{worst.metric}, layer {worst.layer}"
            to.print(f"largest relative difference, {what}: {worst.relative:.1e} ({at})", soft_wrap=True)
    for line in found.lines:
        if line.wrong is not None:
            to.print(f"differs: {line.wrong.words}", soft_wrap=True)
    for reason, metrics in found.not_recomputed.items():
        to.print(f"not recomputed: {', '.join(metrics)} ({reason})", soft_wrap=True)
    if any(line.verdict == "rounding" for line in found.lines):
        to.print("rounding: moving every weight by its last bit changes these values as much.", soft_wrap=True)


def _cells(line: "Line") -> list[str]:
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
