"""Watched runs of a store, diagnosed."""

import polars as pl

from sonde.diagnosis.diagnose import diagnose
from sonde.diagnosis.finding import Findings
from sonde.diagnosis.signs import Signs
from sonde.errors import SondeError
from sonde.store.load import WatchedRun, find, load, load_some
from sonde.store.place import Place


def diagnosed(root: Place, name: str | None) -> dict[str, Findings]:
    """Findings of one watched run, or of every one, by id."""
    stored = load(root) if name is None else load_some(root, [find(root, name)])
    if not stored.watched:
        what = f"{name} was not watched" if name is not None else f"{root} holds no watched run"
        raise SondeError(
            f"{what}: `sonde.watch(model, optimizer)` in a training loop makes one; `sonde audit` asks of other runs"
        )
    return {run.id: diagnose(signs_of(run, stored.rows)) for run in stored.watched}


def signs_of(run: WatchedRun, rows: pl.DataFrame) -> Signs:
    """What a store holds of a watched run."""
    own = rows.filter(pl.col("run") == run.id)
    steps = max(run.manifest.step or 0, 0 if own.is_empty() else int(str(own["step"].max())) + 1)
    return Signs(rows=own, facts=run.facts, steps=steps, trials=run.facts.get("experiments"))
