"""`sonde export`: stored runs as files for other tools."""

import json
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sonde.cli.options import Only, OutFolder, Quiet, RunsFolder, Seeds, Selection, Set, complete, seeds_of
from sonde.core.errors import SondeError, pick, unicode
from sonde.store import files

if TYPE_CHECKING:
    import polars as pl

    from sonde.show.paper.json_file import JsonFiles
    from sonde.store.files import Place
    from sonde.store.run import Runs

_PAPER = "paper"


def export_command(
    layout: Annotated[
        str,
        typer.Option(metavar="NAME", help="The format: paper, csv, parquet, runs, tensorboard, wandb or mlflow."),
    ] = _PAPER,
    out: OutFolder = Path("export"),
    runs: RunsFolder = Path("runs"),
    only: Only = None,
    study: Annotated[
        str | None,
        typer.Option(help="Only this study (default: all studies in the folder).", autocompletion=complete("study")),
    ] = None,
    scale: Annotated[
        Literal["quick", "full"] | None,
        typer.Option(help="The scale of the study, or of all studies in the layout paper (default: quick)."),
    ] = None,
    seeds: Seeds = None,
    set: Set = None,
    quiet: Quiet = False,
) -> None:
    r"""Write stored runs as files that other tools read.

    csv, parquet: two tables, of rows and of runs.

    tensorboard, wandb (an offline run, to be synced), mlflow (a SQLite database): every run, also watched ones, with
    its configuration. Each needs its extra: pip install 'sonde\[tensorboard]'.

    runs: a store without weights, to share.

    paper: the JSON files of existing plotting scripts, by study. A file sonde.json beside them has what their layout
    lacks, and `sonde figures --from` draws from them.

    Example: [bold]sonde export --layout parquet --only task=digits[/bold]
    """
    from sonde.show.exporters import LAYOUTS

    pick({_PAPER: _PAPER, **LAYOUTS}, layout, "layout")
    selection = Selection(study or "", scale or "quick", seeds_of(seeds), set or (), only or ())
    if layout == _PAPER:
        _export_paper(runs, out, selection, quiet)
        return
    if study is None and (scale or seeds or set):
        raise SondeError("--scale, --seeds and --set belong to a study: add --study NAME, or use --only KEY=VALUE")
    stored = _all_runs(runs, only or []) if study is None else _runs_of_study(runs, selection, quiet)
    _write(stored, layout, out, quiet)


def _all_runs(runs: "Place", only: list[str]) -> "Runs":
    """All runs, watched ones too, or those that --only keeps; without their rows."""
    from sonde.analysis.runs import choices, keep
    from sonde.store.load import load

    stored = keep(load(runs, metrics=()), choices(only))
    if not (stored.runs or stored.watched):
        raise SondeError(f"{runs} holds no runs: `sonde run STUDY --runs {runs}` makes them")
    return stored


def _runs_of_study(runs: "Place", selection: Selection, quiet: bool) -> "Runs":
    """The complete runs of a study, of all groups; without their rows."""
    from sonde.store.run import Runs

    found = selection.read(runs, quiet=quiet, metrics=())
    by_id = {run.id: run for gathered in found.values() for run in gathered.stored.runs}
    return Runs(next(iter(found.values())).stored.rows, list(by_id.values()))


def _write(stored: "Runs", layout: str, out: Path, quiet: bool) -> None:
    from sonde.cli.terminal import plural, progress_bar
    from sonde.show.exporters import LAYOUTS, writer
    from sonde.store.listing import marked

    write, about = writer(layout), LAYOUTS[layout]
    with (
        marked(out, layout, alone=about.alone, run_by_run=about.run_by_run),
        files.clear_errors(out),
        progress_bar("exporting runs", quiet=quiet) as on_progress,
    ):
        written = write(stored, out, on_progress)
    if quiet:
        return
    n = len(stored.runs) + len(stored.watched) if layout != "runs" else len(written)
    where = " and ".join(map(str, written)) if len(written) <= 2 else f"{written[0].parent}"
    print(f"{plural(n, 'run')} in {where}")
    print(f"open with: {about.opened_with.format(out=out)}")


# --- the layout `paper` ---------------------------------------------------------------------------------------------

_NO_PLACE = "the layout has no place for it"
_MOST_REASONS = 8


@dataclass(frozen=True)
class _ExportedStudy:
    """The files of a study and the runs that were available for them."""

    study: str
    json_files: "JsonFiles"
    runs: "pl.DataFrame"

    @property
    def written(self) -> set[str]:
        return {run for file in self.json_files.values() for run in file.runs.values()}

    def print(self) -> None:
        """Print what was exported, and which runs the files lack."""
        import polars as pl

        from sonde.cli.terminal import plural

        inside = self.runs.filter(pl.col("run").is_in(list(self.written)))
        for (task, scale), runs in inside.group_by("task_label", "scale", maintain_order=True):
            seeds = sorted(runs["seed"].unique())
            which = f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"
            print(f"{self.study}: {plural(runs.height, 'run')} on {task} ({scale} scale, {which})")
        for path, file in self.json_files.items():
            if file.lacking:
                fix = f"no complete run (`sonde run {self.study}` trains it)"
                print(f"{path} lacks {', '.join(file.lacking)}: {fix}", file=sys.stderr)


def _export_paper(runs: "Place", out: Path, selection: Selection, quiet: bool) -> None:
    """Write the JSON files of one study or of all, and sonde.json, which records what their layout lacks."""
    import polars as pl

    from sonde.show.paper import json_file
    from sonde.store.listing import marked
    from sonde.store.schemas import checksum

    exported, left_out = _studies_in_layout(runs, selection)
    json_files = {path: file for one in exported for path, file in one.json_files.items()}
    described = pl.concat([one.runs for one in exported])
    names = [*json_files, json_file.RECORD_NAME]
    for name in names:
        files.remove_stale(files.make_folder((out / name).parent))
    with marked(out, "paper"), files.clear_errors(out), files.set_aside(*(out / name for name in names)) as aside:
        digests = {}
        for at, (path, file) in zip(aside, json_files.items(), strict=False):  # one at a time: memory for one
            digests[path] = checksum(content := _json(file.content())).sha256
            at.write_bytes(content)
        aside[-1].write_bytes(_json(json_file.record(out, json_files, digests, described)))
    if quiet:
        return
    for name in names:
        print(out / name)
    for one in exported:
        one.print()
    _print_not_exported(left_out, {run for one in exported for run in one.written})


def _studies_in_layout(runs: "Place", selection: Selection) -> tuple[list[_ExportedStudy], list[Mapping[str, str]]]:
    """The selected studies that the store has complete runs of, and the runs that each leaves out, with the reason."""
    from sonde.analysis.evidence import Evidence
    from sonde.show.paper import WRITERS
    from sonde.store.folder import read_trained
    from sonde.studies.study import NoRuns, UnknownKey

    @dataclass(frozen=True)
    class RowsInFolders(Evidence):
        """Evidence of more runs than memory holds: the rows of a run are read when they are asked for."""

        def rows_of(self, run: str) -> "pl.DataFrame":
            return read_trained(runs / run)[1]

    exported: list[_ExportedStudy] = []
    empty: list[NoRuns | UnknownKey] = []
    left_out: list[Mapping[str, str]] = []
    if selection.study:
        pick(WRITERS, selection.study, "study with a place in the paper layout,")
    for name in [selection.study] if selection.study else WRITERS:
        try:
            found = replace(selection, study=name).read(runs, quiet=True, metrics=())
        except (NoRuns, UnknownKey) as error:
            empty.append(error)
            left_out += [error.left_out] if isinstance(error, NoRuns) else []
            continue
        if len(found) > 1:
            raise SondeError(f"--set: a file holds one recipe; export {' and '.join(found)} one after the other")
        (gathered,) = found.values()
        evidence = RowsInFolders(gathered.evidence.rows, gathered.evidence.runs, unicode(str(runs)))
        exported.append(_ExportedStudy(name, WRITERS[name](evidence), evidence.runs))
        more = [*evidence.runs["run"], *(run.id for run in gathered.beside.runs)]
        left_out.append(gathered.left_out | dict.fromkeys(more, _NO_PLACE))
    if not exported:
        all_empty = SondeError(f"nothing to export: {'; '.join(map(str, empty))}")
        raise empty[0] if selection.study else all_empty
    return exported, left_out


def _print_not_exported(of_studies: Sequence[Mapping[str, str]], written: Collection[str]) -> None:
    """Print how many runs of the store are in no file, by reason.

    Of several studies, one that the run could belong to gives the reason.
    """
    from sonde.studies.study import NO_PART

    why: dict[str, str] = {}
    for left_out in of_studies:
        for run, reason in left_out.items():
            if run not in written and (run not in why or why[run].endswith(NO_PART)):
                why[run] = reason
    if not why:
        return
    counts = Counter(reason.replace(NO_PART, "is in no exported study") for reason in why.values())
    print(f"not exported: {len(why)} of {len(why) + len(written)} runs", file=sys.stderr)
    for reason, n in counts.most_common(_MOST_REASONS):
        print(f"  {n}: {reason}", file=sys.stderr)
    if rest := counts.most_common()[_MOST_REASONS:]:
        print(f"  {sum(n for _, n in rest)}: {len(rest)} other reasons", file=sys.stderr)


def _json(tree: Any) -> bytes:
    return json.dumps(tree, indent=1, allow_nan=False).encode()
