"""The runs of a study from a store, with a line for every run that is left out."""

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from sonde.cli.options import beside, configurations
from sonde.core.errors import SondeError, unicode
from sonde.store.files import Place

if TYPE_CHECKING:
    from sonde.studies.study import Gathered


def from_store(
    study: str,
    runs: Place,
    *,
    scale: str,
    seeds: Sequence[int] | None = None,
    changes: Sequence[str] = (),
    choices: Sequence[str] = (),
    tell: bool = True,
    metrics: Collection[str] | None = None,
) -> "dict[str, Gathered]":
    """The complete runs of a study in a store, by the values that are swept: of the given seeds, else of every seed.

    Where nothing narrows the study, plugin rules that were trained by its recipe belong to it.  `metrics` names those
    whose rows are wanted, where not all are.
    """
    from sonde.store.load import load
    from sonde.studies.study import gather

    stored = load(runs, metrics=metrics)
    if not stored.runs:
        some = "only watched runs, and no run of a study" if stored.watched else "no runs"
        raise SondeError(f"{runs} holds {some}: `sonde run {study} --runs {runs}` makes them")
    present = sorted({run.config["seed"] for run in stored.runs})
    seeds = present if seeds is None else seeds
    groups = configurations(study, scale=scale, seeds=seeds, changes=changes, choices=choices)
    aside = beside(study, scale=scale, seeds=seeds, changes=(), choices=())
    found = {}
    for label, wanted in groups.items():
        found[label] = gather(stored, wanted, unicode(str(runs)), plugins=not (changes or choices), beside=aside)
    if tell:
        _tell(found, stored.broken)
    return found


def _tell(found: "dict[str, Gathered]", told: Collection[str]) -> None:
    """Of the runs that no group has, why the first leaves them out."""
    inside = {run.id for one in found.values() for run in (*one.stored.runs, *one.beside.runs)}
    reasons: dict[str, list[str]] = {}
    for run, why in next(iter(found.values())).left_out.items():
        if run not in inside and run not in told:
            reasons.setdefault(why, []).append(run)
    for why, left in reasons.items():
        print(f"sonde: left out: {', '.join(left)} ({why})", file=sys.stderr)
