"""What the charts read: the metrics they offer, the rows as columns, and the sweep over keys.

Each value is embedded once, with six significant digits; an undefined one with its reason.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from sonde.analysis.runs import Recipe
from sonde.core.run_ids import differing, shown
from sonde.metrics import CONTROLS, TRAINED, base_of, label_of
from sonde.show.report.runs import LabelledRun, index_in
from sonde.store.run import Run

if TYPE_CHECKING:
    from sonde.show.report.answers import StudyAnswer

CHART_DIGITS = 6
_SYMBOLS = {"o": "circle", "^": "triangle-up", "s": "square", "D": "diamond", "v": "triangle-down", "x": "x"}


@dataclass(frozen=True, kw_only=True)
class Charted:
    """A metric a reader can choose."""

    key: str
    label: str
    log: bool = False  # how it is first drawn
    layered: bool = False
    index: str = "layer"  # what its layers count


OF_FAMILIES = ("nudge[0.01]",)
"""Of a family like drift[…] there are many: figures draw the others."""

PER_STEP = ("batch_loss",)
"""Stored for every step: figures draw these."""


def charted(name: str) -> Charted:
    """A name of the table of metrics, as the charts know it."""
    metric = TRAINED[base_of(name)]
    return Charted(
        key=name,
        label=label_of(name),
        log=metric.log,
        layered=metric.axis != "network",
        index="block" if metric.axis == "block" else "layer",
    )


def known_metrics(*, layered: bool) -> list[Charted]:
    """Those of the whole network, or of its layers and blocks, in the order of the table."""
    names = [name for name in TRAINED if name not in PER_STEP and TRAINED[name].axis != "parameter"]
    every = [*names, *OF_FAMILIES]
    found = [charted(name) for name in sorted(every, key=lambda name: names.index(base_of(name)))]
    return [one for one in found if one.layered == layered]


def offered(whole: Iterable[str], layered: Iterable[str]) -> list[Charted]:
    """The metrics among these names, of the whole network and of its layers: known ones, controls, then others."""
    present = {*whole, *layered}
    if not present:
        return []
    network, layers = known_metrics(layered=False), known_metrics(layered=True)
    known = [metric for metric in (*network, *layers) if metric.key in present]
    others = [
        *_others(whole, {metric.key for metric in network} | set(PER_STEP), layered=False),
        *_others(layered, {metric.key for metric in layers}, layered=True),
    ]
    controls = [
        Charted(key=f"{metric.key}/{control}", label=metric.label, layered=True)
        for metric in (*known, *others)
        for control in reversed(CONTROLS)
        if f"{metric.key}/{control}" in present
    ]
    return known + controls + others


def _others(names: Iterable[str], known: set[str], *, layered: bool) -> list[Charted]:
    """Measurements of plugins: their names are their labels."""
    families = {metric.name for metric in TRAINED.values() if metric.index}
    return [
        Charted(key=name, label=label_of(name, {}), layered=layered)
        for name in sorted(set(names) - known)
        if base_of(name) not in families and not name.endswith(tuple(f"/{control}" for control in CONTROLS))
    ]


NO_CHARTS: dict[str, Any] = {"digits": CHART_DIGITS, "families": [], "pair": [], "runs": [], "metrics": []}
NO_CHARTS |= {"styles": {}, "series": [], "grids": [], "reasons": []}
"""What `chart_data` returns of no runs."""


def chart_data(
    rows: pl.DataFrame, runs: Sequence[LabelledRun], answers: "Sequence[StudyAnswer]" = ()
) -> dict[str, Any]:
    """What the page's script reads; see `packed_series` for how values are packed.

    The charts open on the runs and the metric of the answers.
    """
    ids = [one.run.id for one in runs]
    rows = rows.filter(pl.col("run").is_in(ids))
    metrics = _metrics(rows)
    families = _families(runs, answers)
    tables = _Tables()
    packed = packed_series(rows, ids, [metric.key for metric in metrics], tables)
    return {
        "digits": CHART_DIGITS,
        "families": list(families.values()),
        "pair": next((list(one.pair) for one in answers if one.pair and {*one.pair} <= {*ids}), []),
        "runs": [_run(one, families) for one in runs],
        "metrics": [asdict(metric) for metric in metrics],
        "styles": {name: _style(name) for name in styled_names(runs)},
        "series": packed,
        "grids": tables.grids,
        "reasons": tables.reasons,
    }


def styled_names(runs: Iterable[LabelledRun]) -> list[str]:
    """The models and rules that have a colour: those of Sonde, and the plugins among the runs.

    A name that a plugin cannot have never reaches the CSS.
    """
    from sonde.show.figures.style import COLOR

    used = (one.run.config[part]["name"] for one in runs for part in ("model", "rule"))
    return list(dict.fromkeys([*COLOR, *(name for name in used if re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name))]))


def colours(names: Iterable[str]) -> dict[str, str]:
    """Model or rule → its colour, as in the figures."""
    from sonde.show.figures.style import COLOR

    return {name: COLOR[name] for name in names}


@dataclass
class _Tables:
    """Lists and reasons that many series share."""

    grids: list[list[int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def grid(self, numbers: list[int]) -> int:
        return index_in(self.grids, numbers)

    def reason(self, text: str) -> int:
        return index_in(self.reasons, text)


def packed_series(
    rows: pl.DataFrame, runs: Sequence[str], metrics: Sequence[str], tables: _Tables
) -> list[dict[str, Any]]:
    """For every run and metric: r, m their indices; e, l the grids of epochs and layers; v the values.

    v runs over the epochs and, within each, over the layers; null where there is no number.  w says why, as
    [first index, how many, reason]; a null without a reason was not measured.  n is the number of samples,
    of all values or of each.
    """
    wanted = rows.filter(pl.col("metric").is_in(metrics)).with_columns(
        pl.when(pl.col("defined") & pl.col("value").is_finite())
        .then(pl.col("value").round_sig_figs(CHART_DIGITS))
        .alias("value"),
        pl.when(~(pl.col("defined") & pl.col("value").is_finite()))
        .then(pl.col("reason").fill_null("no reason was recorded"))
        .alias("reason"),
    )
    of_run = {name: index for index, name in enumerate(runs)}
    of_metric = {key: index for index, key in enumerate(metrics)}
    columns = ("run", "metric", "epoch", "layer", "value", "reason", "samples")
    parts = wanted.select(columns).partition_by("run", "metric", as_dict=True, maintain_order=True, include_key=False)
    return [
        {"r": of_run[run], "m": of_metric[metric], **_pack(part.rows(), tables)}
        for (run, metric), part in parts.items()
    ]


def _pack(lines: Iterable[tuple[Any, ...]], tables: _Tables) -> dict[str, Any]:
    cells = {(epoch, layer): rest for epoch, layer, *rest in lines}
    epochs = sorted({epoch for epoch, _ in cells})
    layers: list[Any] = sorted({layer for _, layer in cells if layer is not None})
    layered = bool(layers)
    layers = layers or [None]
    values: list[float | None] = []
    why: list[int | None] = []
    counts: list[int | None] = []
    for key in itertools.product(epochs, layers):
        value, reason, samples = cells.get(key, (None, None, None))
        values.append(value)
        why.append(None if reason is None else tables.reason(reason))
        counts.append(samples)
    packed: dict[str, Any] = {"e": tables.grid(epochs), "v": values}
    packed["n"] = counts[0] if len(set(counts)) == 1 else counts
    if layered:
        packed["l"] = tables.grid(layers)
    if spans := _spans(why):
        packed["w"] = spans
    return packed


def _spans(marks: Sequence[int | None]) -> list[tuple[int, int, int]]:
    """Runs of equal marks as (first index, how many, mark)."""
    found, start = [], 0
    for mark, group in itertools.groupby(marks):
        count = len(list(group))
        if mark is not None:
            found.append((start, count, mark))
        start += count
    return found


def _metrics(rows: pl.DataFrame) -> list[Charted]:
    whole = pl.col("layer").is_null()
    return offered(*(rows.filter(part)["metric"].unique().to_list() for part in (whole, ~whole)))


def _families(runs: Sequence[LabelledRun], answers: "Sequence[StudyAnswer]") -> dict[str, dict[str, Any]]:
    """The runs that may be drawn side by side: those of the answers first, then the largest families.

    `turn` counts the settings of the same rule that come before one: they share its colour.
    """
    from sonde.show.figures.style import rule_rank

    groups: dict[str, list[LabelledRun]] = {}
    for one in runs:
        groups.setdefault(one.family, []).append(one)
    of_answer = {
        title: next((at for at, one in enumerate(answers) if {run.run.id for run in members} & {*one.runs}), None)
        for title, members in groups.items()
    }

    def place_of(item: tuple[str, list[LabelledRun]]) -> tuple[int, int]:
        at = of_answer[item[0]]
        return len(answers) if at is None else at, -len(item[1])

    families: dict[str, dict[str, Any]] = {}
    for title, members in sorted(groups.items(), key=place_of):
        answer = of_answer[title]
        rules = {one.rule: one.run.config["rule"]["name"] for one in members}
        networks = {one.network: one.run.config["model"]["name"] for one in members}
        labels = sorted(rules, key=lambda label: rule_rank(rules[label]))
        opened = () if answer is None else answers[answer].runs
        families[title] = {
            "place": len(families),
            "title": title,
            "answer": answer,
            "metric": None if answer is None else answers[answer].metric,
            "open": list(dict.fromkeys(one.network for one in members if one.run.id in opened)),
            "networks": [{"label": label, "style": model} for label, model in networks.items()],
            "rules": [
                {
                    "label": label,
                    "style": rules[label],
                    "turn": sum(rules[other] == rules[label] for other in labels[:at]),
                }
                for at, label in enumerate(labels)
            ],
            "seeds": sorted({one.run.config["seed"] for one in members}),
            "epochs": max(one.run.config["epochs"] for one in members),
        }
    return families


def _run(one: LabelledRun, families: dict[str, dict[str, Any]]) -> dict[str, Any]:
    family = families[one.family]
    return {
        "id": one.run.id,
        "family": family["place"],
        "network": [network["label"] for network in family["networks"]].index(one.network),
        "rule": [rule["label"] for rule in family["rules"]].index(one.rule),
        "seed": one.run.config["seed"],
        "state": one.run.status.state,
        "depth": one.run.about["depth"],
    }


def _style(name: str) -> dict[str, str]:
    from sonde.show.figures.style import LINE, MARKER

    line: Any = LINE[name]
    dash = "none" if isinstance(line, str) else " ".join(f"{2 * length:g}" for length in line[1])
    return {"dash": dash, "symbol": _SYMBOLS.get(MARKER[name], "circle")}


# ── sweep ───────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What differs between runs, and what each measured at its end; lists are in the order of the runs."""

    keys: Sequence[str] = ()
    levels: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # key → its values: numbers, else words
    columns: Mapping[str, Sequence[int]] = field(default_factory=dict)  # key → index among its values
    runs: Sequence[str] = ()
    seeds: Sequence[int] = ()
    complete: Sequence[bool] = ()
    metrics: Sequence[Charted] = ()
    values: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # metric → value


def sweep_of(runs: Sequence[Run], recipes: Sequence[Recipe], rows: pl.DataFrame) -> Sweep:
    """Every key but the seed in which the runs differ, the value of each run, and its metrics after its last epoch."""
    recipe_of = {run.id: index for index, recipe in enumerate(recipes) for run in recipe.runs}
    order = list(dict.fromkeys(recipe_of[run.id] for run in runs))  # of recipes, by their first run
    keys = list(differing([recipe.flat for recipe in recipes]))
    levels: dict[str, list[Any]] = {}
    columns: dict[str, list[int]] = {}
    for key in keys:
        index_of: dict[str, int] = {}  # of each value
        levels[key] = []
        of_recipe = {}
        for recipe in order:
            flat = recipes[recipe].flat
            word = shown(flat[key]) if key in flat else "absent"
            if word not in index_of:
                index_of[word] = len(index_of)
                levels[key].append(flat[key] if _is_number(flat.get(key)) else word)
            of_recipe[recipe] = index_of[word]
        columns[key] = [of_recipe[recipe_of[run.id]] for run in runs]
    metrics, values = _ends(runs, rows)
    return Sweep(
        keys=keys,
        levels=levels,
        columns=columns,
        runs=[run.id for run in runs],
        seeds=[run.config["seed"] for run in runs],
        complete=[run.manifest.state == "complete" for run in runs],
        metrics=metrics,
        values=values,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _ends(runs: Sequence[Run], rows: pl.DataFrame) -> tuple[list[Charted], dict[str, list[float | None]]]:
    """Metrics of the whole network, and those of layers at the last of them; null where there is no number."""
    ends = pl.DataFrame(
        [(run.id, index, run.manifest.epoch) for index, run in enumerate(runs)],
        schema={"run": pl.String, "index": pl.Int64, "epoch": rows.schema["epoch"]},
        orient="row",
    )
    ended = rows.lazy().filter(pl.col("epoch").is_in(ends["epoch"].unique().implode()))  # few: a join copies its rows
    ended = ended.select("run", "epoch", "layer", "metric", "value", "defined")
    last = ended.join(ends.lazy(), on=["run", "epoch"], how="inner").drop("run", "epoch").collect()
    kept = [metric for metric in _metrics(last) if "/" not in metric.key]
    top = last.filter(
        pl.col("metric").is_in([metric.key for metric in kept]),
        pl.col("layer").is_null() | (pl.col("layer") == pl.col("layer").max().over("index", "metric")),
        pl.col("defined") & pl.col("value").is_finite(),
    ).with_columns(pl.col("value").round_sig_figs(CHART_DIGITS))
    values: dict[str, list[float | None]] = {metric.key: [None] * len(runs) for metric in kept}
    for metric, index, value in top.select("metric", "index", "value").iter_rows():
        values[metric][index] = value
    return kept, values
