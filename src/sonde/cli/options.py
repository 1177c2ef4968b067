"""Options that several commands share, shell completion, and the runs of a study that the options select.

Completion imports no torch: the names of a table are read from the source of its package.
"""

import ast
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sonde.core.errors import SondeError, pick, print_notice, unicode
from sonde.store.files import Place, place

if TYPE_CHECKING:
    from sonde.config import RunConfig
    from sonde.studies.study import Gathered

_TABLES = {"study": ("studies", "STUDIES"), "rule": ("rules", "RULES"), "model": ("models", "MODELS")}
_TABLES |= {"task": ("tasks", "TASKS")}


def names_of(kind: str) -> list[str]:
    """The keys of the table of studies, rules, models or tasks, in their order."""
    package, table = _TABLES[kind]
    tree = ast.parse(resources("sonde").joinpath(package, "__init__.py").read_text("utf-8"))
    tables = (node for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == table)
    return [
        str(key.value) for node in tables for key in getattr(node.value, "keys", []) if isinstance(key, ast.Constant)
    ]


def complete(kind: str) -> Callable[[str], list[str]]:
    """A function for typer: the names of a table that begin with what was typed."""
    return lambda incomplete: [name for name in names_of(kind) if name.startswith(incomplete)]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """The ids in the folder of --runs that begin or end with what was typed."""
    ids = sorted(_ids(str(ctx.params.get("runs") or "runs")))
    begun = [id for id in ids if id.startswith(incomplete)]
    return begun or [end for id in ids if (end := id.rpartition("-")[2]).startswith(incomplete)]


def _ids(root: str) -> Iterator[str]:
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and os.path.exists(f"{entry.path}/manifest.json"):
                    yield entry.name
    except OSError:
        return


def complete_term(incomplete: str) -> list[str]:
    """The names that `sonde explain` knows."""
    from sonde.analysis.explanations import EXPLANATIONS

    names = [text.name for text in EXPLANATIONS] + [
        name for kind in ("rule", "model", "task") for name in names_of(kind)
    ]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def complete_choice(incomplete: str) -> list[str]:
    """`KEY=VALUE` of --only, --set and --where: keys, and the names of a rule, model or task."""
    key, equals, start = incomplete.partition("=")
    if not equals:
        return [f"{kind}=" for kind in ("model", "rule", "task") if kind.startswith(key)]
    return [f"{key}={name}" for name in names_of(key) if name.startswith(start)] if key in _TABLES else []


def complete_metric(incomplete: str) -> list[str]:
    """The metrics of trained runs."""
    from sonde.metrics import TRAINED

    return [name for name in TRAINED if name.startswith(incomplete)]


StudyName = Annotated[
    str | None,
    typer.Argument(
        help="The study: `sonde list studies` names them.", show_default=False, autocompletion=complete("study")
    ),
]
Scale = Annotated[
    Literal["quick", "full"],
    typer.Option(
        help="quick takes minutes on a laptop and downloads nothing. full trains on CIFAR-10, for hours or days."
    ),
]
Seeds = Annotated[str | None, typer.Option(metavar="1,2,3", help="Seeds, separated by commas.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=complete_choice,
        help="Change a key of the configuration: model.L=10. With several values, model.L=5,10, each is a run of its "
        "own; a list in brackets, [5,10], is one value. += adds to a list: probes.names+=rho.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="KEY=VALUE",
        autocompletion=complete_choice,
        help="Use only runs with this value: model=res_mlp.",
    ),
]
RunsFolder = Annotated[
    Place,
    typer.Option("--runs", metavar="DIR", parser=place, help="The folder of runs, or a URL: s3://bucket/prefix."),
]
OutFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write to.")]
FigureLayout = Annotated[
    Literal["study", "paper"],
    typer.Option(
        "--layout",
        help="How files are named. study: residual/NAME. paper: plots/NAME, drawn with weights × 1.",
    ),
]
DataRoot = Annotated[
    Place | None,
    typer.Option(
        metavar="DIR",
        parser=place,
        help="The folder or URL of the data sets (default: SONDE_DATA, else the user's cache folder; each node of a "
        "cluster has its own).",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Details = Annotated[bool, typer.Option("--details", help="Print everything behind the conclusion.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Jobs = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Number of runs to train at once (default: number of cores).")
]
EngineName = Annotated[
    Literal["local", "ray"],
    typer.Option(help="Where runs train: processes of this machine, or a Ray cluster (docs/cluster.md)."),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="With --engine ray: auto, the default, is the cluster of this machine or of RAY_ADDRESS; local starts one "
        "on this machine; ray://HOST:PORT is a remote one.",
    ),
]
CpusPerRun = Annotated[
    float | None,
    typer.Option(
        min=0.01, metavar="N", help="With --engine ray: CPUs to reserve per run; a run computes on one (default: 1)."
    ),
]
GpusPerRun = Annotated[
    float | None, typer.Option(min=0, metavar="N", help="With --engine ray: GPUs per run (default: 0).")
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"],
    typer.Option(metavar="auto|cpu|cuda|mps", help="The device to compute on."),
]


def seeds_of(text: str | None) -> list[int] | None:
    """Parse `42,123` into numbers; None where no seeds were given."""
    if text is None:
        return None
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError:
        raise SondeError(f"--seeds {text!r}: write whole numbers separated by commas, for example 42,123") from None
    if min(seeds) < 0:
        raise SondeError(f"--seeds {text!r}: a seed is 0 or more")
    return list(dict.fromkeys(seeds))


@dataclass(frozen=True)
class Selection:
    """The runs of a study at a scale, of given seeds, changed by --set (`changes`) and filtered by --only (`choices`).

    `seeds` is None where none were given: the study's own seeds for training, every seed of the store for reading.
    """

    study: str
    scale: str
    seeds: Sequence[int] | None = None
    changes: Sequence[str] = ()
    choices: Sequence[str] = ()

    def configurations(self, seeds: Sequence[int] | None = None) -> "dict[str, list[RunConfig]]":
        """The configurations by group, one group for each combination of several values in --set.

        The group's label names its values; without several values there is one group without a label.
        """
        from sonde.analysis.runs import choices
        from sonde.config import whole_tree
        from sonde.studies import STUDIES
        from sonde.studies.study import in_groups, narrowed, settings

        study = pick(STUDIES, self.study, "study")
        configs = narrowed(study.configs(self.scale, self._seeds(seeds)), choices(self.choices))
        return in_groups(map(whole_tree, configs), settings(self.changes)) if self.changes else {"": configs}

    def additional(self, seeds: Sequence[int] | None = None) -> "list[RunConfig]":
        """The runs that the study trains in addition to its own (`Study.beside`)."""
        from sonde.studies import STUDIES

        return STUDIES[self.study].beside(self.scale, self._seeds(seeds))

    def _seeds(self, seeds: Sequence[int] | None) -> Sequence[int]:
        from sonde.studies import STUDIES

        known = self.seeds if seeds is None else seeds
        return STUDIES[self.study].seeds[self.scale] if known is None else known

    def read(
        self, runs: Place, *, quiet: bool = False, metrics: Collection[str] | None = None
    ) -> "dict[str, Gathered]":
        """Read the complete runs of the study from a store, by group.

        Without --set and --only, plugin rules that were trained by the study's recipe are included.
        `metrics` limits the rows to these metrics.  Prints why runs were left out, unless `quiet`.
        """
        from sonde.store.load import load
        from sonde.studies.study import gather

        stored = load(runs, metrics=metrics)
        if not stored.runs:
            some = "only watched runs, and no run of a study" if stored.watched else "no runs"
            raise SondeError(f"{runs} holds {some}: `sonde run {self.study} --runs {runs}` makes them")
        seeds = sorted({run.config["seed"] for run in stored.runs}) if self.seeds is None else self.seeds
        groups = self.configurations(seeds)
        whole = not (self.changes or self.choices)
        found = {
            label: gather(stored, configs, unicode(str(runs)), plugins=whole, beside=self.additional(seeds))
            for label, configs in groups.items()
        }
        if not quiet:
            _print_left_out_of_groups(found, stored.broken)
        return found


def _print_left_out_of_groups(found: "dict[str, Gathered]", known: Collection[str]) -> None:
    """Print the runs that are in no group, with the reason of the first group; `known` runs are not repeated."""
    inside = {run.id for one in found.values() for run in (*one.stored.runs, *one.beside.runs)}
    print_left_out(next(iter(found.values())).left_out, {*inside, *known})


_MOST_LEFT_OUT = 6  # runs that are named for one reason


def print_left_out(left_out: Mapping[str, str], known: Collection[str] = ()) -> None:
    """Print a line for each reason why runs were left out; not about `known` runs, such as those `load` reported."""
    reasons: dict[str, list[str]] = {}
    for run, why in left_out.items():
        if run not in known:
            reasons.setdefault(why, []).append(run)
    for why, runs in reasons.items():
        more = len(runs) - _MOST_LEFT_OUT
        print_notice(f"left out: {', '.join(runs[:_MOST_LEFT_OUT])}{f' and {more} more' * (more > 0)} ({why})")
