"""`sonde check`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import Json
from sonde.core.errors import SondeError

if TYPE_CHECKING:
    from sonde.observe.precheck import Precheck

Where = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:FUNCTION",
        help="A function that returns the model, or (model, x), (model, x, y), (model, x, y, loss).",
        show_default=False,
    ),
]


def check(
    make: Where,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="A function that returns the batch: x, (x, y) or (x, y, loss).",
            show_default=False,
        ),
    ] = None,
    inits: Annotated[
        int, typer.Option(min=1, help="So many fresh initialisations, for a band beside the numbers.")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Save the picture: .png, .pdf or .svg.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Look at a model before training it: signal and gradient by depth, and what is missing, zero or not finite.

    The model stays as it is: one batch goes forward and back through a copy in float64, and with a loss other copies
    are trained for fifty steps, to find what is wrong.
    """
    from sonde.observe.check import check as look

    given = function_of(make, "make")()
    model, *rest = given if isinstance(given, tuple) else (given,)
    if batch is not None:
        known = function_of(batch, "--batch")()
        rest = list(known if isinstance(known, tuple) else (known,))
    if not rest or len(rest) > 3:
        raise SondeError(
            f"{make} gives no batch to check with: return (model, x, y, loss), or use --batch FILE.py:FUNCTION"
        )
    found = look(model, *rest, inits=inits)
    if out is not None:
        _save(found, out)
    if json:
        _print_json(found)
    else:
        _print(found, out)


def _print_json(found: "Precheck") -> None:
    from sonde.cli.terminal import print_json

    known: dict[str, Any] = {"model": found.model, "loss": found.loss_value, "remarks": found.remarks}
    known |= {"findings": [finding.as_dict() for finding in found.findings]}
    print_json(known | {"table": found.table.to_dicts(), "facts": found.facts})


def _print(found: "Precheck", out: Path | None) -> None:
    from sonde.cli.terminal import console, print_table

    heading, *lines = found.shown()
    columns = {name: "left" if place < 3 else "right" for place, name in enumerate(heading)}
    print_table(found.title, columns, lines)
    to = console()
    to.print()
    for line in found.words():
        to.print(line, soft_wrap=not to.is_terminal)
    if out is not None:
        to.print(f"The picture is {out}", style="dim", soft_wrap=True)


def _save(found: "Precheck", out: Path) -> None:
    from sonde.store import files

    if out.suffix not in (".png", ".pdf", ".svg"):
        raise SondeError(f"--out {out}: name a .png, .pdf or .svg file")
    files.make_folder(out.parent)
    with files.clear_errors(out):
        found.figure().savefig(out)


def function_of(where: str, what: str) -> Callable[[], Any]:
    """The function that FILE.py:FUNCTION names, imported as a plugin is."""
    from sonde.plugins import import_file

    file, colon, name = where.rpartition(":")
    if not colon or not file.endswith(".py") or not name:
        raise SondeError(f"{what} {where!r}: write FILE.py:FUNCTION, for example train.py:make")
    if not Path(file).is_file():
        raise SondeError(f"{file} does not exist")
    found: Callable[[], Any] = import_file(Path(file), name)
    if not callable(found):
        raise SondeError(f"{where} is a {type(found).__name__}: name a function")
    return found
