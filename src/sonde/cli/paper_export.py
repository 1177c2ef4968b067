"""The layout `paper` of `sonde export`: the JSON files that existing plotting scripts read, study by study."""

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.core.atomic import remove_stale
from sonde.core.errors import SondeError, unicode
from sonde.store.files import Place

if TYPE_CHECKING:
    import polars as pl

    from sonde.show.paper.json_file import JsonFiles


def export_paper(
    runs: Place,
    out: Path,
    *,
    study: str | None,
    scale: str,
    seeds: Sequence[int] | None,
    changes: Sequence[str],
    choices: Sequence[str],
    quiet: bool,
) -> None:
    """Beside the layout's files, sonde.json records what it has no place for."""
    import polars as pl

    from sonde.cli.stored_rows import RowsInFolders
    from sonde.cli.study_evidence import from_store
    from sonde.core.atomic import set_aside
    from sonde.core.errors import pick
    from sonde.show.paper import WRITERS, json_file
    from sonde.store import files
    from sonde.store.publish import marked
    from sonde.studies.settings import UnknownKey
    from sonde.studies.study import NoRuns

    exported: list[Exported] = []
    empty: list[NoRuns | UnknownKey] = []
    left_out: list[Mapping[str, str]] = []
    if study is not None:
        pick(WRITERS, study, "study with a place in the paper layout,")
    for name in WRITERS if study is None else [study]:
        try:
            found = from_store(
                name,
                runs,
                scale=scale,
                seeds=seeds,
                changes=changes,
                choices=choices,
                tell=False,
                metrics=(),
            )
        except (NoRuns, UnknownKey) as error:
            empty.append(error)
            left_out += [error.left_out] if isinstance(error, NoRuns) else []
            continue
        if len(found) > 1:
            raise SondeError(f"--set: a file holds one recipe; export {' and '.join(found)} one after the other")
        (gathered,) = found.values()
        evidence = RowsInFolders(gathered.evidence.rows, gathered.evidence.runs, unicode(str(runs)), runs)
        exported.append(Exported(name, WRITERS[name](evidence), evidence.runs))
        more = [*evidence.runs["run"], *(run.id for run in gathered.beside.runs)]
        left_out.append(gathered.left_out | dict.fromkeys(more, NO_PLACE))
    if not exported:
        raise (empty[0] if study else SondeError(f"nothing to export: {'; '.join(str(error) for error in empty)}"))
    sheets = {path: sheet for one in exported for path, sheet in one.sheets.items()}
    described = pl.concat([one.runs for one in exported])
    for path in [*sheets, json_file.RECORD_NAME]:
        remove_stale(files.make_folder((out / path).parent))
    with (
        marked(out, "paper"),
        files.clear_errors(out),
        set_aside(*(out / path for path in [*sheets, json_file.RECORD_NAME])) as aside,
    ):
        digests = {}
        for at, (path, sheet) in zip(aside, sheets.items(), strict=False):  # one after the other: memory for one
            digests[path] = json_file.content_digest(content := _json(sheet.content()))
            at.write_bytes(content)
        aside[-1].write_bytes(_json(json_file.record(out, sheets, digests, described)))
    for path in [*sheets, json_file.RECORD_NAME] if not quiet else []:
        print(out / path)
    for one in exported if not quiet else []:
        one.tell()
    if not quiet:
        _tell_left_out(left_out, {run for one in exported for run in one.written})


NO_PLACE = "the layout has no place for it"
MOST_REASONS = 8


def _tell_left_out(of_studies: Sequence[Mapping[str, str]], written: Collection[str]) -> None:
    """How many runs of the store are in no file, by reason; of several studies the one that comes closest says why."""
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
    for reason, count in counts.most_common(MOST_REASONS):
        print(f"  {count}: {reason}", file=sys.stderr)
    if rest := counts.most_common()[MOST_REASONS:]:
        print(f"  {sum(count for _, count in rest)}: {len(rest)} other reasons", file=sys.stderr)


def _json(tree: Any) -> bytes:
    import json

    return json.dumps(tree, indent=1, allow_nan=False).encode()


@dataclass(frozen=True)
class Exported:
    """A study's files and the runs that were there for them."""

    study: str
    sheets: "JsonFiles"
    runs: "pl.DataFrame"

    @property
    def written(self) -> set[str]:
        return {run for sheet in self.sheets.values() for run in sheet.runs.values()}

    def tell(self) -> None:
        """What was exported, and which runs its files lack."""
        import polars as pl

        inside = self.runs.filter(pl.col("run").is_in(list(self.written)))
        for (task, scale), runs in inside.group_by("task_label", "scale", maintain_order=True):
            seeds = sorted(runs["seed"].unique())
            which = f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"
            count = f"{runs.height} run{'s' * (runs.height != 1)}"
            print(f"{self.study}: {count} on {task} ({scale} scale, {which})")
        for path, sheet in self.sheets.items():
            if sheet.lacking:
                lacking = ", ".join(sheet.lacking)
                print(
                    f"{path} lacks {lacking}: no complete run (`sonde run {self.study}` trains it)",
                    file=sys.stderr,
                )
