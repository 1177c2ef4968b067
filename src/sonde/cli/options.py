"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Study = Annotated[
    str, typer.Argument(help="Which study: `sonde list studies` names them.", show_default=False)
]
Scale = Annotated[
    Literal["quick", "full"],
    typer.Option(help="quick: minutes on a laptop, no download; full: the recipe of the papers."),
]
Seeds = Annotated[
    str | None, typer.Option(help="Seeds, separated by commas: 42,123,456.", show_default=False)
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key of the configuration: model.L=10.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="KEY=VALUE", help="Keep runs with this value: model=res_mlp.", show_default=False
    ),
]
RunsFolder = Annotated[Path, typer.Option("--runs", metavar="DIR", help="The folder of runs.")]
OutFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files are written.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(metavar="DIR", envvar="SONDE_DATA", help="Where data sets are.", show_default=False),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at a time, one process each (default: cores).", show_default=False),
]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to compute.")]
