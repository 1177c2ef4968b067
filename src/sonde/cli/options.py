"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sonde.store.place import Place, place

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
        help="Change a key: model.L=10. Several values, model.L=5,10, train each (a list is one value: [5,10]); "
        "probes.names+=rho adds to a list, rule+=mine.py:Mine trains that rule too.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="KEY=VALUE", help="Keep runs with this value: model=res_mlp.", show_default=False
    ),
]
RunsFolder = Annotated[
    Place,
    typer.Option(
        "--runs", metavar="DIR", parser=place, help="The folder of runs, or a URL: s3://bucket/prefix."
    ),
]
OutFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files are written.")]
DataRoot = Annotated[
    Place | None,
    typer.Option(
        metavar="DIR",
        parser=place,
        help="Where data sets are: a folder or a URL (default: SONDE_DATA, else the cache folder; each node of a "
        "cluster has its own).",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at a time, one process each (default: cores).", show_default=False),
]
Engine = Annotated[
    Literal["local", "ray"],
    typer.Option(help="Who trains: processes of this machine, or a Ray cluster (docs/cluster.md)."),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="auto|local|ray://HOST:PORT",
        help="With --engine ray: the cluster of this machine or RAY_ADDRESS (auto, the default), one started here "
        "(local), or one reached from outside.",
        show_default=False,
    ),
]
CpusPerRun = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        metavar="N",
        help="With --engine ray: processors set aside for a run, which computes on one (default: 1).",
        show_default=False,
    ),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="N", help="With --engine ray: GPUs for a run (default: 0).", show_default=False
    ),
]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to compute.")]
