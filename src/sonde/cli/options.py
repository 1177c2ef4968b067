"""Options that several commands share, and the runs of a study that --scale, --seeds, --set and --only ask for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sonde.core.errors import SondeError, pick
from sonde.store.files import Place, place

if TYPE_CHECKING:
    from sonde.config import RunConfig

Study = Annotated[str, typer.Argument(help="Which study: `sonde list studies` names them.", show_default=False)]
Scale = Annotated[
    Literal["quick", "full"],
    typer.Option(help="quick: minutes on a laptop, no download; full: CIFAR-10, hours or days."),
]
Seeds = Annotated[str | None, typer.Option(help="Seeds, separated by commas: 42,123,456.", show_default=False)]
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
    typer.Option("--only", metavar="KEY=VALUE", help="Keep runs with this value: model=res_mlp.", show_default=False),
]
RunsFolder = Annotated[
    Place,
    typer.Option("--runs", metavar="DIR", parser=place, help="The folder of runs, or a URL: s3://bucket/prefix."),
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
    typer.Option(min=0, metavar="N", help="With --engine ray: GPUs for a run (default: 0).", show_default=False),
]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to compute.")]


def seeds_of(text: str | None) -> list[int] | None:
    """`42,123` as numbers; None where no seeds were named."""
    if text is None:
        return None
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError:
        raise SondeError(f"--seeds {text!r}: write whole numbers separated by commas, for example 42,123") from None
    if min(seeds) < 0:
        raise SondeError(f"--seeds {text!r}: a seed is 0 or more")
    return list(dict.fromkeys(seeds))


def configurations(
    study: str, *, scale: str, seeds: Sequence[int] | None, changes: Sequence[str], choices: Sequence[str]
) -> "dict[str, list[RunConfig]]":
    """The study's runs, changed and narrowed, by the values that are swept; one group without a name where none are."""
    from sonde.analysis.runs import choices as chosen_by
    from sonde.config import whole_tree
    from sonde.studies import STUDIES
    from sonde.studies.settings import in_groups, narrowed, settings

    chosen = pick(STUDIES, study, "study")
    runs = chosen.configs(scale, chosen.seeds[scale] if seeds is None else seeds)
    runs = narrowed(runs, chosen_by(choices))
    return in_groups(map(whole_tree, runs), settings(changes)) if changes else {"": runs}


def beside(
    study: str, *, scale: str, seeds: Sequence[int] | None, changes: Sequence[str], choices: Sequence[str]
) -> "list[RunConfig]":
    """The runs that the study has beside its own, where nothing changes or narrows it."""
    from sonde.studies import STUDIES

    chosen = STUDIES[study]
    if changes or choices:
        return []
    return chosen.beside(scale, chosen.seeds[scale] if seeds is None else seeds)


def together(groups: "dict[str, list[RunConfig]]") -> "list[RunConfig]":
    """The runs of all groups, each once."""
    return list({config.id: config for group in groups.values() for config in group}.values())
