"""`sonde predict`: signal and gradient of a model at initialisation, before there is data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.diagnose import function_of
from sonde.cli.options import Json, picture_file
from sonde.core.errors import SondeError

if TYPE_CHECKING:
    from sonde.observe.predict import Prediction


def predict_command(
    make: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="A function that returns the model, or (model, x).",
            show_default=False,
        ),
    ],
    shape: Annotated[
        str | None, typer.Option(metavar="64,3,32,32", help="Shape of a batch, if the function returns none.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Save the picture as .png, .pdf or .svg.")
    ] = None,
    json: Json = False,
) -> None:
    """Predict a model before training it: the signal and the gradient that reach every module.

    The answer follows from the architecture and from the distribution of each weight. No data is needed, and the range
    beside a number holds nine draws of the weights in ten. Where signal or gradient vanishes or explodes, the command
    names the module and one scale of the weights that prevents it. `sonde check` measures one draw.
    """
    from sonde.cli.terminal import print_json, print_table, print_text
    from sonde.observe.predict import predict

    given = function_of(make, "make")()
    model, *rest = given if isinstance(given, tuple) else (given,)
    if shape is None and not rest:
        raise SondeError(f"{make} returns no batch: use --shape, for example --shape 64,3,32,32")
    found = predict(model, sizes_of(shape) if shape is not None else rest[0])
    if out is not None:
        picture_file(out, "predict.png", found.figure)
    if json:
        print_json(_as_dict(found))
        return
    heading, *lines = found.shown()
    columns = {name + " " * place: "left" if place < 2 else "right" for place, name in enumerate(heading)}
    print_table(found.title, columns, lines)
    print_text()
    for line in found.words():
        print_text(line)
    if out is not None:
        print_text(f"The picture is {out}", dim=True, wrap=False)


def sizes_of(shape: str) -> tuple[int, ...]:
    """Parse 64,3,32,32."""
    try:
        sizes = tuple(int(n) for n in shape.replace("x", ",").replace("×", ",").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise SondeError(f"--shape {shape}: write whole numbers with commas, for example 64,3,32,32")
    return sizes


def _as_dict(found: "Prediction") -> dict[str, Any]:
    remedy = None
    if found.remedy is not None:
        remedy = {"parameters": found.remedy.parameters, "factor": found.remedy.factor, "worst": found.remedy.worst}
    return {"model": found.model, "words": found.words(), "remedy": remedy, "table": found.table.to_dicts()}
