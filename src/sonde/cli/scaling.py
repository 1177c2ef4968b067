"""`sonde scaling`: does what works at this size work at another?"""

from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.diagnose import PictureFile, function_of, save_picture, sizes_of
from sonde.cli.options import Json, Quiet, RunsFolder
from sonde.core.errors import SondeError, print_notice

DEFAULT_SIZES = {"width": (64, 128, 256, 512), "depth": (4, 8, 16, 32)}


def scaling_command(
    make: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="A function of the size: returns the model, alone or with any of optimiser, x, y and loss.",
            show_default=False,
        ),
    ],
    over: Annotated[
        list[str],
        typer.Option(metavar="NAME=64,128,256,512", help="An argument of the function and its sizes; may be repeated."),
    ],
    lr: Annotated[
        str | None,
        typer.Option(metavar="2^-12..2^-4", help="Train with each of these rates, too: does the best one move?"),
    ] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="32,64", help="Shape of a batch, if the function returns none.")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="adam or sgd, if the function returns no optimiser.")] = "adam",
    rate: Annotated[float, typer.Option(help="The rate of that optimiser.")] = 1e-3,
    seeds: Annotated[int, typer.Option(min=2, help="How many seeds at each size.")] = 6,
    promise: Annotated[
        str, typer.Option(help="mup: every part learns equally at every size. standard: signals at the start do.")
    ] = "mup",
    runs: RunsFolder = Path("runs"),
    out: PictureFile = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train a model for ten steps at several sizes, and see what depends on the size.

    Every module and parameter group gets a verdict: stable, grows or vanishes, by the power of the size that it
    follows. µP says what these powers must be for this optimiser. Where they differ, the command names the
    initialisation, rate or multiplier to change. Each size and seed is a watched run: a stopped command resumes.
    """
    from sonde.cli.terminal import print_json, print_table, print_text
    from sonde.observe.scaling import scaling

    axes = dict(_axis(text) for text in over)
    if out is not None and len(axes) > 1:
        raise SondeError("--out takes one picture: call the command once for each --over")
    found = scaling(
        function_of(make, "make"),
        axes,
        shape=None if shape is None else sizes_of(shape),
        optimizer=optimizer,
        lr=rate,
        rates=rates_of(lr) if lr is not None else (),
        seeds=seeds,
        promise=promise,
        runs=runs,
        progress=(lambda line: None) if quiet or json else print_notice,
    )
    for axis, result in found.items():
        if out is not None:
            save_picture(out, "scaling.png", result.figure)
        if not json:
            lines = [
                [
                    one.group,
                    one.about,
                    "–" if one.exponent is None else str(one.exponent),
                    f"{one.asked:g}",
                    one.verdict,
                ]
                for one in result.verdicts
            ]
            columns = {"group": "left", "what": "left", "exponent": "right", "asked": "right", "verdict": "left"}
            print_table(f"{result.factory} over {axis}", columns, lines)
            print_text()
            for line in result.words():
                print_text(line)
    if json:
        print_json({axis: result.as_dict() for axis, result in found.items()})
    elif out is not None:
        print_text(f"The picture is {out}", dim=True, wrap=False)


def _axis(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.partition("=")
    if not equals and name in DEFAULT_SIZES:
        return name, DEFAULT_SIZES[name]
    try:
        return name, tuple(int(size) for size in sizes.split(","))
    except ValueError:
        raise SondeError(f"--over {text}: write an argument and whole numbers, for example width=64,128,256") from None


def rates_of(text: str) -> list[float]:
    """Parse 2^-12..2^-4 into powers of two, or 1e-3,3e-3 into numbers."""
    first, dots, last = text.partition("..")
    try:
        if dots:
            low, high = (int(end.removeprefix("2^")) for end in (first, last))
            found = [2.0**power for power in range(low, high + 1)]
        else:
            found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if len(found) < 3 or min(found) <= 0:
        raise SondeError(f"--lr {text}: write three rates or more, as 2^-12..2^-4 or 1e-3,3e-3,1e-2")
    return found
