"""Watched runs for the page: what each was, and its rows as columns for the charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

VALUES = 1_200_000  # numbers in a page; of a run with more, steps are left out
FEWEST = 12  # steps of a run that are shown in any case
DIGITS = 5


@dataclass(frozen=True)
class Offered:
    """A metric a reader can choose."""

    key: str
    label: str
    log: bool = False


MODULES = (
    Offered("out_rms", "RMS of the output", log=True),
    Offered("grad_rms", "RMS of ∂loss/∂output", log=True),
    Offered("out_mean", "mean of the output"),
    Offered("out_max", "largest output"),
    Offered("dead_share", "share of dead units"),
    Offered("saturated_share", "share of saturated entries"),
    Offered("stream_step", "‖out − in‖/‖in‖", log=True),
    Offered("stream_cosine", "cosine of input and output"),
    Offered("norm_in_rms", "RMS of a normalisation layer’s input", log=True),
    Offered("masked_growth", "growth of a normalisation layer’s input", log=True),
    Offered("effective_rank", "effective rank of the output"),
    Offered("sample_cosine", "cosine between samples"),
    Offered("grad_noise", "1 − cosine of the gradients of two halves"),
    Offered("attention_entropy", "entropy of attention"),
    Offered("attention_max_logit", "largest attention logit"),
)
PARAMETERS = (
    Offered("update_ratio", "‖ΔW‖/‖W‖ of a step", log=True),
    Offered("weight_norm", "‖W‖", log=True),
    Offered("weight_grad_norm", "‖∂loss/∂W‖", log=True),
    Offered("grad_left", "‖old gradient‖/‖new‖"),
)
LOSS = Offered("loss", "loss", log=True)


@dataclass(frozen=True, kw_only=True)
class WatchedPart:
    """One watched run."""

    id: str
    label: str
    about: str  # in a line
    state: str
    message: str | None
    remarks: Sequence[str]
    types: Mapping[str, str]  # module → its class
    rows: pl.DataFrame
    findings: Sequence[Mapping[str, Any]] | None = None  # what a diagnosis found, the most important first


def watched_data(parts: Sequence[WatchedPart]) -> dict[str, Any]:
    """What the page's script reads; newest runs first, as many as have room."""
    reasons: list[str] = []
    shown = list(parts)
    room = max(1, VALUES // max(1, len(shown)))
    return {"digits": DIGITS, "runs": [_run(part, reasons, room) for part in shown], "reasons": reasons}


def _run(part: WatchedPart, reasons: list[str], room: int) -> dict[str, Any]:
    rows = part.rows.filter(pl.col("metric") != "nonfinite")
    every = rows.filter(pl.col("module").is_not_null())["step"].unique().sort().to_list()
    modules = _order(rows)
    parameters = _names(rows, [metric.key for metric in PARAMETERS])
    per_step = 8 * len(modules) + 3 * len(parameters)
    steps = sampled(every, max(FEWEST, room // max(1, per_step)))
    kept = rows.filter(pl.col("step").is_in(steps))
    losses = rows.filter(pl.col("metric") == LOSS.key).sort("step")
    loss_steps = sampled(losses["step"].to_list(), 2000)
    return {
        "id": part.id,
        "label": part.label,
        "steps": steps,
        "watched": len(every),
        "modules": [{"name": name, "type": part.types.get(name.split("#")[0], "")} for name in modules],
        "parameters": parameters,
        "of_modules": _metrics(kept, MODULES, modules, steps, reasons),
        "of_parameters": _metrics(kept, PARAMETERS, parameters, steps, reasons),
        "loss": _loss(losses.filter(pl.col("step").is_in(loss_steps)), reasons),
    }


def sampled(steps: Sequence[int], most: int) -> list[int]:
    """At most so many steps: the first ten, the last, and others evenly between."""
    if len(steps) <= most:
        return list(steps)
    first, rest = list(steps[:10]), list(steps[10:])
    wanted = max(1, most - len(first))
    stride = (len(rest) - 1) / max(1, wanted - 1)
    return [*first, *sorted({rest[round(place * stride)] for place in range(wanted)})][:most]


def _order(rows: pl.DataFrame) -> list[str]:
    placed = rows.filter(pl.col("layer").is_not_null()).select("layer", "module").unique().sort("layer")
    return placed["module"].unique(maintain_order=True).to_list()


def _names(rows: pl.DataFrame, metrics: Sequence[str]) -> list[str]:
    return rows.filter(pl.col("metric").is_in(metrics))["module"].unique(maintain_order=True).to_list()


def _metrics(
    rows: pl.DataFrame,
    offered: Sequence[Offered],
    places: Sequence[str],
    steps: Sequence[int],
    reasons: list[str],
) -> list[dict[str, Any]]:
    """For each metric: v[place][step], null where there is no number; w says why, as [place, step, reason]."""
    of_place = {name: place for place, name in enumerate(places)}
    of_step = {step: place for place, step in enumerate(steps)}
    parts = rows.select("metric", "module", "step", "value", "defined", "reason").partition_by(
        "metric", as_dict=True, include_key=False
    )
    found = []
    for metric in offered:
        part = parts.get((metric.key,))
        if part is None:
            continue
        values: list[list[float | None] | None] = [None] * len(places)
        why: list[tuple[int, int, int]] = []
        rounded = part.with_columns(pl.col("value").round_sig_figs(DIGITS))
        for module, step, value, defined, reason in rounded.iter_rows():
            place = of_place.get(module)
            if place is None:
                continue
            line = values[place] or [None] * len(steps)
            values[place] = line
            if defined:
                line[of_step[step]] = value
            else:
                why.append((place, of_step[step], _place(reasons, reason or "no reason was recorded")))
        if any(line is not None for line in values):
            known = {"key": metric.key, "label": metric.label, "log": metric.log, "v": values}
            found.append(known | ({"w": why} if why else {}))
    return found


def _loss(losses: pl.DataFrame, reasons: list[str]) -> dict[str, Any]:
    steps: list[int] = []
    values: list[float | None] = []
    why: list[tuple[int, int]] = []
    for step, value, defined, reason in losses.select("step", "value", "defined", "reason").iter_rows():
        if not defined:
            why.append((len(steps), _place(reasons, reason)))
        steps.append(step)
        values.append(value if defined else None)
    return {"steps": steps, "v": values, "w": why}


def _place(table: list[str], entry: str) -> int:
    if entry not in table:
        table.append(entry)
    return table.index(entry)
