"""A store in a program or a notebook: rows, a frame, comparisons, the audit, diagnoses, figures, a report."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from sonde.analysis.evidence import Evidence, NoData
from sonde.analysis.runs import (
    OVERVIEW_METRICS,
    choices,
    complete,
    evidence_lines,
    frame,
    keep,
    last_metrics,
    last_value,
    refuse_none,
    untold,
    value_order,
)
from sonde.core import html_parts
from sonde.core.errors import SondeError, installation, nearest, unicode
from sonde.store import files
from sonde.store.files import Place
from sonde.store.load import load as read_store
from sonde.store.run import Runs, without_machines
from sonde.store.schemas import ENDED

if TYPE_CHECKING:
    import pandas

    from sonde.analysis.audit import Audit
    from sonde.analysis.comparison import Comparison
    from sonde.analysis.diagnosis.finding import Findings
    from sonde.core.formatting import Thresholds
    from sonde.show.figures.render import Rendered

MOST_LINES = 100  # of runs that a notebook shows


@dataclass(frozen=True, repr=False)
class StoredRuns(Runs):
    """What `sonde.load` returns.

    `rows` has one measurement a row, with a column `module` where runs were watched.  `runs` are the runs that Sonde
    trained, `watched` those of other loops, and `broken` those that cannot be read: id → why.  `configs` has the
    complete configuration of each trained run; `stored[id]` is a trained run, and `len(stored)` counts them.
    """

    source: str = "runs"  # where it was read

    @classmethod
    def of(cls, runs: Runs, source: str) -> "StoredRuns":
        """The runs of a store that was read at `source`."""
        return cls(runs.rows, runs.runs, runs.watched, runs.broken, source=source)

    @property
    def store(self) -> Runs:
        """The runs themselves."""
        return self

    def only(self, *wanted: str) -> "StoredRuns":
        """The runs that have these values, written as for `--only`: `stored.only("task=parity", "model.d=64")`."""
        return StoredRuns.of(keep(self, choices(wanted)), self.source)

    def frame(self) -> pl.DataFrame:
        """Every row beside its run's model, rule, task, seed and state, and each key in which the runs differ."""
        return frame(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """The frame for pandas."""
        try:
            import pandas  # noqa: F401
            import pyarrow  # noqa: F401
        except ImportError as missing:
            raise SondeError(f"to_pandas() needs {missing.name}: {installation('pandas')}") from None
        return self.frame().to_pandas()

    def audit(self, thresholds: "Thresholds | None" = None) -> "Audit":
        """The four questions of `sonde audit`, asked of every run."""
        from sonde.analysis.audit import audit

        return audit(self, thresholds)

    def compare(
        self,
        factor: str = "rule",
        metric: str = "test_acc",
        *,
        layer: int | None = None,
        epoch: int | None = None,
        baseline: str | None = None,
        unmatched: bool = False,
    ) -> "Comparison":
        """Levels of one factor, paired by seed, as `sonde compare` has them."""
        from sonde.analysis.comparison import compare

        return compare(
            self,
            factor=factor,
            metric=metric,
            layer=layer,
            epoch=epoch,
            baseline=baseline,
            unmatched=unmatched,
        )

    def diagnose(self, run: str | None = None) -> "dict[str, Findings]":
        """Findings of each run, trained or watched, as `sonde diagnose` has them; `run` is an id or its beginning."""
        from sonde.analysis.diagnosis import diagnose, diagnose_trained
        from sonde.analysis.diagnosis.run_evidence import evidence_of_watched

        found = {one.id: diagnose(evidence_of_watched(one, self.rows)) for one in self.watched}
        if any(one.manifest.state in ENDED for one in self.runs):
            found |= diagnose_trained(self)[0]
        if run is None:
            return found
        chosen = {id: findings for id, findings in found.items() if id.startswith(run) or id.endswith(f"-{run}")}
        if not chosen:
            raise SondeError(f"no run that can be diagnosed begins with {run!r}: {nearest(run, found)}")
        return chosen

    def report(
        self,
        out: str | Path = "report.html",
        *,
        title: str = "What the runs show",
        figures: bool = True,
        with_provenance: bool = False,
    ) -> Path:
        """Write one HTML page about these runs, as `sonde report` does, and return its path.

        `with_provenance` names the machines that trained the runs and the whole path of the store.
        """
        from sonde.show.report import make_report

        stored = self if with_provenance else without_machines(self)
        source = self.source if with_provenance else self.source.rstrip("/").rpartition("/")[2]
        files.make_folder(Path(out).parent)
        files.write(Path(out), make_report(stored, source=source, title=title, figures=figures)[-1])
        return Path(out)

    def figure(self, name: str, variant: str | None = None) -> "Rendered":
        """One figure of the complete runs, by its name in `sonde list figures`; a notebook shows it.

        Runs of several recipes are refused by the keys in which they differ: `only` keeps those of one.
        """
        from sonde.show.figures import figure_named
        from sonde.show.figures.render import render_figure

        spec = figure_named(name)
        runs, left_out = complete(self)
        refuse_none(runs, left_out)
        ids = [run.id for run in runs]
        evidence = Evidence(self.rows.filter(pl.col("run").is_in(ids)), evidence_lines(runs), self.source)
        try:
            return render_figure(spec, evidence, variant)
        except NoData as missing:
            raise SondeError(f"figure {name!r} cannot be drawn: {missing}") from None

    def __repr__(self) -> str:
        return f"<{self._summary()}, {self.rows.height:,} rows>"

    def _summary(self) -> str:
        states = Counter(run.status.state for run in self.runs)
        said = ", ".join(f"{count} {state}" for state, count in states.items())
        parts = [f"{len(self)} run{'s' * (len(self) != 1)}{f' ({said})' if said else ''}"]
        if self.watched:
            many = f"{len(self.watched)} watched run{'s' * (len(self.watched) != 1)}"
            parts = [*parts, many] if self.runs else [many]
        parts += [f"{len(self.broken)} that cannot be read"] * bool(self.broken)
        return f"{', '.join(parts)} in {self.source}"

    def _repr_html_(self) -> str:
        parts = [] if self.runs or self.watched else [html_parts.small(self._summary())]
        if self.runs:
            parts.append(self._table(trained_columns(self), self._summary()))
        if self.watched:
            parts.append(self._table(watched_columns(self), "" if self.runs else self._summary()))
        if (more := max(len(self.runs), len(self.watched)) - MOST_LINES) > 0:
            parts.append(html_parts.small(f"and {more:,} more"))
        parts.append(html_parts.listing(f"cannot be read: {run} ({why})" for run, why in self.broken.items()))
        return "".join(parts)

    def _table(self, columns: "Sequence[Column]", title: str) -> str:
        lines = [list(line) for line in zip(*(one.cells[:MOST_LINES] for one in columns), strict=True)]
        return html_parts.table({one.heading: one.side for one in columns}, lines, title)


# ── tables of runs ──────────────────────────────────────────────────────────────────────────────────
class Column(NamedTuple):
    """A column of a table of runs.  Where the terminal is narrow, those of the highest `drop` go first."""

    heading: str
    side: str
    cells: list[str]
    drop: int = 0  # 0: never


def trained_columns(stored: Runs) -> list[Column]:
    """Every column, with the runs sorted by task, network and what else differs; numbers as numbers."""
    from sonde.show.report.runs import session_start

    metrics, keys = last_metrics(stored), untold(stored)
    runs = sorted(
        stored.runs,
        key=lambda run: (
            str(run.about["task_label"]),
            run.label,
            *(_order(values[run.id]) for values in keys.values()),
            run.seed,
            run.id,
        ),
    )
    names = [name for name in OVERVIEW_METRICS if any(name in known for known in metrics.values())]
    found = [
        Column("id", "left", [run.id for run in runs]),
        Column("task", "left", [str(run.about["task_label"]) for run in runs]),
        Column("label", "left", [run.label for run in runs]),
    ]
    for place, (key, values) in enumerate(keys.items()):
        found.append(Column(key, "right", [values[run.id] for run in runs], drop=10 + place if place else 5))
    reached = ("–" if run.manifest.epoch is None else run.manifest.epoch for run in runs)
    found += [
        Column("seed", "right", [str(run.seed) for run in runs], drop=4),
        Column("epochs", "right", [f"{at}/{run.epochs}" for at, run in zip(reached, runs, strict=True)], drop=8),
        Column("state", "left", [run.status.state for run in runs], drop=6),
    ]
    for place, name in enumerate(names):
        cells = [last_value(metrics[run.id].get(name)) for run in runs]
        found.append(Column(name, "right", cells, drop=(0, 1, 7)[place]))
    resumed = [", ".join(map(session_start, run.manifest.sessions[1:])) for run in runs]
    return [*found, *([Column("sessions", "left", resumed, drop=20)] if any(resumed) else [])]


def _order(text: str) -> tuple[bool, float, str]:
    try:
        return value_order(float(text))
    except ValueError:
        return value_order(text)


def described_watched(stored: Runs) -> list[dict[str, Any]]:
    """The watched runs: the model, the last step and loss, and where a value was not finite first."""
    found = []
    for run in stored.watched:
        rows = stored.rows.filter(pl.col("run") == run.id)
        losses = rows.filter(pl.col("metric") == "loss").sort("step")["value"]
        broken = rows.filter(pl.col("metric") == "nonfinite").select("module", "step").iter_rows()
        ended = run.manifest.state in ("complete", "failed")
        found.append(
            {
                "id": run.id,
                "kind": "watched",
                "label": run.label,
                "model": run.about["model"],
                "parameters": run.about["parameters"],
                "modules": sum(module["calls"] > 0 for module in run.facts.get("modules", [])),
                "step": run.manifest.step if ended else rows["step"].max(),
                "state": run.status.state,
                "message": run.status.why,
                "metrics": {"loss": losses[-1] if losses.len() else None},
                "nonfinite": next((f"{module or '?'}, step {step}" for module, step in broken), None),
            }
        )
    return found


def watched_columns(stored: Runs) -> list[Column]:
    """Every column of the table of watched runs."""
    watched = described_watched(stored)
    models = [run["label"] if run["label"] == run["model"] else f"{run['label']} ({run['model']})" for run in watched]
    states = [run["state"] if run["message"] is None else f"{run['state']}: {run['message']}" for run in watched]
    table = [
        Column("id", "left", [run["id"] for run in watched]),
        Column("model", "left", models, drop=3),
        Column("parameters", "right", [f"{run['parameters']:,}" for run in watched], drop=8),
        Column("modules", "right", [str(run["modules"]) for run in watched], drop=9),
        Column("step", "right", ["–" if run["step"] is None else str(run["step"]) for run in watched], drop=1),
        Column("state", "left", states, drop=2),
        Column("loss", "right", [last_value(run["metrics"]["loss"]) for run in watched]),
    ]
    if any(run["nonfinite"] for run in watched):
        table.append(Column("not finite", "left", [run["nonfinite"] or "" for run in watched], drop=1))
    return table


def load(
    root: str | Place = "runs",
    where: pl.Expr | None = None,
    *,
    metrics: Collection[str] | None = None,
    layers: bool = True,
    of: Collection[str] | None = None,
) -> StoredRuns:
    """Every run of a store.  `load("runs").frame()` has one measurement a row beside its rule, seed and more.

    `metrics` and `of` name the metrics and the runs whose rows are read.  `layers=False` leaves out rows of single
    layers.  A large store is then read faster and in less memory.  `metrics=()` reads no rows.  `where` keeps the rows
    for which it is true; windows in it are over run and metric.

    A run that cannot be read is left out, with a notice, and named in `.broken`; if there is no other, it is an error.
    """
    return StoredRuns.of(read_store(root, where, metrics=metrics, layers=layers, of=of), unicode(str(root)))
