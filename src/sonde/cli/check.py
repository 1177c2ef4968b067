"""`sonde check`: check a model before it is trained."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import Json, output_file
from sonde.core.errors import SondeError, nearest

if TYPE_CHECKING:
    from sonde.observe.check_result import Checked


def check_command(
    make: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="A function that returns the model, or (model, x), (model, x, y), (model, x, y, loss).",
            show_default=False,
        ),
    ],
    batch: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", help="A function that returns the batch: x, (x, y) or (x, y, loss)."),
    ] = None,
    inits: Annotated[
        int, typer.Option(min=1, help="Number of fresh initialisations, for a band beside the numbers.")
    ] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Save the picture as .png, .pdf or .svg.")
    ] = None,
    json: Json = False,
) -> None:
    """Check a model before training it: signal and gradient by depth, and what is missing, zero or not finite.

    The model does not change: one batch goes forward and backward through a float64 copy. With a loss, further copies
    are trained for fifty steps to find faults.
    """
    from sonde.observe.check import check

    given = _function_of(make, "make")()
    model, *rest = given if isinstance(given, tuple) else (given,)
    if batch is not None:
        known = _function_of(batch, "--batch")()
        rest = list(known if isinstance(known, tuple) else (known,))
    if not rest or len(rest) > 3:
        raise SondeError(
            f"{make} gives no batch to check with: return (model, x, y, loss), or use --batch FILE.py:FUNCTION"
        )
    found = check(model, *rest, inits=inits)
    if out is not None:
        _save(found, out)
    if json:
        _print_json(found)
    else:
        _print(found, out)


def _print_json(found: "Checked") -> None:
    from sonde.cli.terminal import print_json

    known: dict[str, Any] = {"model": found.model, "loss": found.loss_value, "remarks": found.remarks}
    known |= {"findings": [finding.as_dict() for finding in found.findings]}
    print_json(known | {"table": found.table.to_dicts(), "facts": found.facts})


def _print(found: "Checked", out: Path | None) -> None:
    from sonde.cli.terminal import print_table, print_text

    heading, *lines = found.shown()
    columns = {name: "left" if place < 3 else "right" for place, name in enumerate(heading)}
    print_table(found.title, columns, lines)
    print_text()
    for line in found.words():
        print_text(line)
    if out is not None:
        print_text(f"The picture is {out}", dim=True, wrap=False)


def _save(found: "Checked", out: Path) -> None:
    from sonde.store import files

    if out.suffix not in (".png", ".pdf", ".svg"):
        raise SondeError(f"--out {out}: name a .png, .pdf or .svg file")
    with files.clear_errors(output_file(out, "--out", "check.png")):
        found.figure().savefig(out)


def _function_of(where: str, what: str) -> Callable[[], Any]:
    """Import the function that FILE.py:FUNCTION names; the folder of the file stays on the path."""
    file, colon, name = where.rpartition(":")
    if not colon or not file.endswith(".py") or not name:
        raise SondeError(f"{what} {where!r}: write FILE.py:FUNCTION, for example train.py:make")
    path = Path(file)
    if not path.is_file():
        raise SondeError(f"{file} does not exist")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SondeError(f"{file} cannot be imported ({type(error).__name__}: {error})") from error
    found = getattr(module, name, None)
    if not callable(found):
        there = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise SondeError(f"{file} has no function {name!r}: {nearest(name, there)}")
    made: Callable[[], Any] = found
    return made
