"""What the charts are given: the metrics they offer, and the rows as columns.

Each value once, with six significant digits; an undefined one with its reason.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from sonde.metrics import CONTROLS, TRAINED, base_of, label_of
from sonde.show.figures.style import COLOR, LINE, MARKER, RULE_ORDER
from sonde.show.report.runs import RunLine

DIGITS = 6
SYMBOLS = {"o": "circle", "^": "triangle-up", "s": "square", "D": "diamond", "v": "triangle-down", "x": "x"}


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


def chart_data(rows: pl.DataFrame, runs: Sequence[RunLine]) -> dict[str, Any]:
    """What the page's script reads; see `series` for how values are packed."""
    rows = rows.filter(pl.col("run").is_in([run.id for run in runs]))
    metrics = _metrics(rows)
    families = _families(runs)
    tables = _Tables()
    packed = series(rows, [run.id for run in runs], [metric.key for metric in metrics], tables)
    return {
        "digits": DIGITS,
        "families": list(families.values()),
        "runs": [_run(run, families) for run in runs],
        "metrics": [asdict(metric) for metric in metrics],
        "styles": {name: _style(name) for name in styled(runs)},
        "series": packed,
        "grids": tables.grids,
        "reasons": tables.reasons,
    }


def styled(runs: Iterable[RunLine]) -> list[str]:
    """The models and rules whose looks the page needs: ours, and the strangers among the runs.

    A name that could not be that of a guest never reaches the style sheet.
    """
    strangers = (name for run in runs for name in (run.model, run.rule))
    return list(dict.fromkeys([*COLOR, *(name for name in strangers if re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name))]))


def as_script(value: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


class _Tables:
    """Lists and reasons that many series share."""

    def __init__(self) -> None:
        self.grids: list[list[int]] = []
        self.reasons: list[str] = []

    def grid(self, numbers: list[int]) -> int:
        return index_in(self.grids, numbers)

    def reason(self, text: str) -> int:
        return index_in(self.reasons, text)


def index_in(table: list[Any], entry: Any) -> int:
    """Where the table has the entry, which is added if need be."""
    if entry not in table:
        table.append(entry)
    return table.index(entry)


def series(rows: pl.DataFrame, runs: Sequence[str], metrics: Sequence[str], tables: _Tables) -> list[dict[str, Any]]:
    """For every run and metric: r, m their places; e, l the grids of epochs and layers; v the values.

    v runs over the epochs and, within each, over the layers; null where there is no number.  w says why, as
    [first place, how many, reason]; what has no reason was not measured.  n is the number of samples,
    of all values or of each.
    """
    wanted = rows.filter(pl.col("metric").is_in(metrics)).with_columns(
        pl.when(pl.col("defined") & pl.col("value").is_finite())
        .then(pl.col("value").round_sig_figs(DIGITS))
        .alias("value"),
        pl.when(~(pl.col("defined") & pl.col("value").is_finite()))
        .then(pl.col("reason").fill_null("no reason was recorded"))
        .alias("reason"),
    )
    place = {name: index for index, name in enumerate(runs)}, {key: i for i, key in enumerate(metrics)}
    columns = ("run", "metric", "epoch", "layer", "value", "reason", "samples")
    parts = wanted.select(columns).partition_by("run", "metric", as_dict=True, maintain_order=True, include_key=False)
    return [
        {"r": place[0][run], "m": place[1][metric], **_pack(part.rows(), tables)}
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
    """Equal neighbours as (first place, how many, mark)."""
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


def _families(runs: Sequence[RunLine]) -> dict[str, dict[str, Any]]:
    """The runs that may be drawn side by side; the largest family first."""
    groups: dict[str, list[RunLine]] = {}
    for run in runs:
        groups.setdefault(run.family, []).append(run)
    families: dict[str, dict[str, Any]] = {}
    for title, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        rules = {run.rule_label: run.rule for run in members}
        order = sorted(
            rules, key=lambda label: RULE_ORDER.index(rules[label]) if rules[label] in RULE_ORDER else len(RULE_ORDER)
        )
        families[title] = {
            "place": len(families),
            "title": title,
            "networks": [
                {"label": label, "style": model} for label, model in {run.network: run.model for run in members}.items()
            ],
            "rules": [
                {"label": label, "style": rules[label], "turn": _turn(order[:at], rules, label)}
                for at, label in enumerate(order)
            ],
            "seeds": sorted({run.seed for run in members}),
            "epochs": max(run.epochs for run in members),
        }
    return families


def _turn(before: Sequence[str], rules: Mapping[str, str], label: str) -> int:
    """How many settings of the same rule come before this one: they share its colour."""
    return sum(rules[other] == rules[label] for other in before)


def _run(run: RunLine, families: dict[str, dict[str, Any]]) -> dict[str, Any]:
    family = families[run.family]
    return {
        "id": run.id,
        "family": family["place"],
        "network": [network["label"] for network in family["networks"]].index(run.network),
        "rule": [rule["label"] for rule in family["rules"]].index(run.rule_label),
        "seed": run.seed,
        "state": run.state,
        "depth": run.depth,
    }


def _style(name: str) -> dict[str, str]:
    line: Any = LINE[name]
    dash = "none" if isinstance(line, str) else " ".join(f"{2 * length:g}" for length in line[1])
    return {"dash": dash, "symbol": SYMBOLS.get(MARKER[name], "circle")}
