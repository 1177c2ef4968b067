"""From what a step left on the device to rows: one transfer, then plain arithmetic in double precision."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.rows import WATCHED
from sonde.watching.calls import NO_GRADIENT, TWICE, Call, Gradient, Key, Output
from sonde.watching.parameters import Parameters

Vector = NDArray[np.float64]

NO_STEP = "no optimiser that was given holds the parameter"


@dataclass(slots=True)
class Sheet:
    """Everything one watched step left behind."""

    step: int
    calls: list[Call] = field(default_factory=list)
    parameters: list[Parameters] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    scale: Tensor | None = None  # of the loss, by a GradScaler
    unseen: dict[str, str] = field(default_factory=dict)  # modules that were not called → why
    unscaled_reason: str | None = None  # why gradients cannot be believed

    @property
    def expected(self) -> int:
        """About how many rows it makes."""
        return 6 * len(self.calls) + 3 * sum(len(p.names) for p in self.parameters) + len(self.losses)

    def tensors(self) -> Iterable[Tensor]:
        for call in self.calls:
            for seen in (*call.outputs, *call.inputs):
                yield from (seen.norms, *(t for t in (seen.sums, seen.tops) if t is not None))
            for gradient in call.gradients:
                yield from (t for t in (gradient.norms, gradient.halves) if t is not None)
            for stream in call.streams:
                yield from (stream.steps, stream.dots, stream.inputs, stream.outputs)
            for pair in (*call.unit_bounds, *call.attention):
                yield from pair
            yield from call.at_bounds
            if call.gram is not None:
                yield call.gram
        for known in self.parameters:
            yield from (t for t in (known.weights, known.gradients, known.updates) if t is not None)
        yield from self.losses
        if self.scale is not None:
            yield self.scale


class Values:
    """The numbers behind many small tensors, brought over at once."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._kept = {id(tensor): tensor for tensor in tensors}
        self._numbers: dict[int, Vector] = {}
        by_device: dict[torch.device, list[Tensor]] = {}
        for tensor in self._kept.values():
            by_device.setdefault(tensor.device, []).append(tensor)
        for device, members in by_device.items():
            kind = torch.float32 if device.type == "mps" else torch.float64
            flat = torch.cat([tensor.reshape(-1).to(kind) for tensor in members]).cpu().double().numpy()
            start = 0
            for tensor in members:
                end = start + tensor.numel()
                self._numbers[id(tensor)] = flat[start:end]
                start = end

    def __call__(self, tensor: Tensor) -> Vector:
        return self._numbers[id(tensor)]


@dataclass(frozen=True)
class Nonfinite:
    """The first module, in order of execution, whose output or gradient is not finite."""

    step: int
    module: str | None  # None: it cannot be told
    what: str


class Ledger:
    """Turns sheets into rows; knows the order of modules and what each measured at step 0."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.order: dict[Key, int] = {}
        self.start: dict[Key, float] = {}  # RMS of a normalisation layer's input at step 0
        self.nonfinite: Nonfinite | None = None
        self.last_finite: int | None = None

    def rows(self, sheets: Sequence[Sheet]) -> pl.DataFrame:
        values = Values(tensor for sheet in sheets for tensor in sheet.tensors())
        table = _Table(self.run)
        with np.errstate(all="ignore"):  # what is not a number becomes a row that says so
            for sheet in sheets:
                table.step, table.last_loss = sheet.step, 0.0
                self._sheet(sheet, values, table)
        return table.frame()

    def _sheet(self, sheet: Sheet, values: Values, table: "_Table") -> None:
        scale = 1.0 if sheet.scale is None else float(values(sheet.scale)[0])
        for loss in sheet.losses[:1]:
            every = [float(values(loss)[0]) for loss in sheet.losses]
            table.add(None, None, "loss", sum(every) / len(every), len(every))
        broken: dict[str, str] = {}  # module → what of it is not finite, in order of execution
        for call in sheet.calls:
            place = self.order.setdefault(call.key, len(self.order))
            name = call_name(call)
            _call(table, place, name, call, values, scale, sheet.unscaled_reason, self.start, broken)
        for call in reversed(sheet.calls):
            for gradient in call.gradients:
                if gradient.norms is not None and not np.isfinite(values(gradient.norms)).all():
                    broken.setdefault(call_name(call), "gradient")
        for name, reason in sheet.unseen.items():
            table.add(None, name, "out_rms", math.nan, 0, reason)
        weights_broken = False
        for known in sheet.parameters:
            weights_broken |= _parameters(table, known, values, scale, sheet.unscaled_reason)
        self._judge(sheet, broken, weights_broken, table)

    def _judge(self, sheet: Sheet, broken: dict[str, str], weights_broken: bool, table: "_Table") -> None:
        lost = not math.isfinite(table.last_loss)
        if not broken and not weights_broken and not lost:
            self.last_finite = sheet.step
            return
        if self.nonfinite is not None:
            return
        if weights_broken:
            since = "at the start" if self.last_finite is None else f"after step {self.last_finite}"
            why = f"weights were already not finite in step {sheet.step}: it began {since}, between two watched steps"
            self.nonfinite = Nonfinite(sheet.step, None, why)
            table.add(None, None, "nonfinite", math.nan, 0, why)
            return
        forward = next((name for name, what in broken.items() if what == "output"), None)
        module, what = (forward, "output") if forward else next(iter(broken.items()), (None, "loss"))
        self.nonfinite = Nonfinite(sheet.step, module, what)
        place = next((at for (name, _), at in self.order.items() if name == module), None)
        table.add(place, module, "nonfinite", {"output": 1.0, "gradient": 2.0, "loss": 3.0}[what], 1)


def call_name(call: Call) -> str:
    """The module's name; its second call in a pass is `name#2`."""
    return call.spot.name if call.number == 0 else f"{call.spot.name}#{call.number + 1}"


class _Table:
    """Rows under way, column by column."""

    def __init__(self, run: str) -> None:
        self.run, self.step = run, 0
        self.last_loss = 0.0
        self.columns: dict[str, list[object]] = {
            name: []
            for name in ("step", "layer", "metric", "value", "defined", "reason", "samples", "module")
        }

    def add(
        self,
        layer: int | None,
        module: str | None,
        metric: str,
        value: float,
        samples: int,
        reason: str | None = None,
    ) -> None:
        if metric == "loss":
            self.last_loss = value
        if reason is None and not math.isfinite(value):
            reason = "overflow: the value is infinite" if math.isinf(value) else "not a number"
        columns = self.columns
        columns["step"].append(self.step)
        columns["layer"].append(layer)
        columns["metric"].append(metric)
        columns["value"].append(math.nan if reason else value)
        columns["defined"].append(reason is None)
        columns["reason"].append(reason)
        columns["samples"].append(samples)
        columns["module"].append(module)

    def frame(self) -> pl.DataFrame:
        many = len(self.columns["step"])
        columns = {"run": [self.run] * many, "epoch": [None] * many, **self.columns}
        return pl.DataFrame(columns, schema_overrides=dict(WATCHED)).select(list(WATCHED))


def _call(
    table: _Table,
    place: int,
    name: str,
    call: Call,
    values: Values,
    scale: float,
    unscaled_reason: str | None,
    start: dict[Key, float],
    broken: dict[str, str],
) -> None:
    if call.reason is not None or not call.outputs:
        table.add(
            place, name, "out_rms", math.nan, 0, call.reason or "the module returned no floating-point tensor"
        )
        return
    samples = sum(output.samples for output in call.outputs)
    entries = sum(output.entries for output in call.outputs)
    sums = [values(output.sums) for output in call.outputs if output.sums is not None]
    tops = [values(output.tops) for output in call.outputs if output.tops is not None]
    total = float(sum(part.sum() for part in sums))
    top = (
        float(max(part.max() for part in tops))
        if not any(np.isnan(part).any() for part in tops)
        else math.nan
    )
    if not (math.isfinite(total) and math.isfinite(top)):
        broken.setdefault(name, "output")
    table.add(place, name, "out_rms", rms(call.outputs, values), samples)
    table.add(place, name, "out_mean", total / entries, samples)
    table.add(place, name, "out_max", top, samples)
    _units(table, place, name, call, values, samples, entries)
    _gradient(table, place, name, call.gradients, values, scale, unscaled_reason)
    _stream(table, place, name, call, values)
    if call.inputs:
        value = rms(call.inputs, values)
        first = start.setdefault(call.key, value) if table.step == 0 else start.get(call.key)
        if first is None:
            table.add(place, name, "masked_growth", math.nan, samples, "it was not called at step 0")
        else:
            reason = None if first > 0 else "its input was zero or not finite at step 0"
            table.add(place, name, "masked_growth", value / first if first > 0 else math.nan, samples, reason)
    if call.gram is not None:
        _directions(table, place, name, values(call.gram))
    if call.attention:
        entropy = np.concatenate([values(entropies) for entropies, _ in call.attention])
        largest = np.concatenate([values(logits) for _, logits in call.attention])
        table.add(place, name, "attention_entropy", float(np.mean(entropy)), entropy.size)
        table.add(place, name, "attention_max_logit", float(np.max(largest)), largest.size)


def rms(outputs: Sequence[Output], values: Values) -> float:
    """√(Σx²/n) over everything that was pooled."""
    square = sum(float(np.dot(values(output.norms), values(output.norms))) for output in outputs)
    return math.sqrt(square / sum(output.entries for output in outputs)) if square == square else math.nan


def _units(
    table: _Table, place: int, name: str, call: Call, values: Values, samples: int, entries: int
) -> None:
    if call.unit_bounds:
        lows, highs = ([values(pair[side]) for pair in call.unit_bounds] for side in (0, 1))
        if len({part.size for part in highs}) > 1:
            table.add(
                place, name, "dead_share", math.nan, samples, "the number of units changed within the step"
            )
        else:
            dead = (np.max(highs, axis=0) == 0) & (np.min(lows, axis=0) == 0)
            table.add(place, name, "dead_share", float(dead.mean()), samples)
    if call.at_bounds:
        count = sum(float(values(part)[0]) for part in call.at_bounds)
        table.add(place, name, "saturated_share", count / entries, samples)


def _gradient(
    table: _Table,
    place: int,
    name: str,
    gradients: Sequence[Gradient],
    values: Values,
    scale: float,
    unscaled_reason: str | None,
) -> None:
    came = [gradient for gradient in gradients if gradient.norms is not None]
    samples = sum(values(gradient.norms).size for gradient in came if gradient.norms is not None)
    reason = None
    if any(gradient.fired > 1 for gradient in gradients):
        reason = TWICE
    elif not came:
        reason = next((gradient.reason for gradient in gradients if gradient.reason), NO_GRADIENT)
    elif unscaled_reason is not None:
        reason = unscaled_reason
    if reason is not None:
        table.add(place, name, "grad_rms", math.nan, samples, reason)
        return
    square = sum(float(np.dot(values(g.norms), values(g.norms))) for g in came if g.norms is not None)
    value = math.sqrt(square / sum(gradient.entries for gradient in came)) if square == square else math.nan
    table.add(place, name, "grad_rms", value / scale, samples)
    halves = next((gradient.halves for gradient in came if gradient.halves is not None), None)
    if halves is not None:
        dot, first, second = values(halves)
        length = math.sqrt(first * second) if first * second >= 0 else math.nan
        none = "the gradient of half the batch is zero" if length == 0 else None
        table.add(place, name, "grad_noise", 1 - dot / length if length else math.nan, samples, none)


def _stream(table: _Table, place: int, name: str, call: Call, values: Values) -> None:
    if call.stream_reason is not None:
        for metric in ("stream_step", "stream_cosine"):
            table.add(place, name, metric, math.nan, 0, call.stream_reason)
        return
    if not call.streams:
        return
    steps, dots, ins, outs = (
        np.concatenate([values(getattr(stream, part)) for stream in call.streams])
        for part in ("steps", "dots", "inputs", "outputs")
    )
    for metric, over, under, what in (
        ("stream_step", steps, ins, "every input is zero"),
        ("stream_cosine", dots, ins * outs, "every input or output is zero"),
    ):
        there = ~(under == 0)
        if not there.any():
            table.add(place, name, metric, math.nan, 0, what)
        else:
            table.add(place, name, metric, float(np.median(over[there] / under[there])), int(there.sum()))


def _directions(table: _Table, place: int, name: str, gram: Vector) -> None:
    """Effective rank (Roy & Vetterli, 2007) and mean cosine between samples, from the Gram matrix."""
    many = math.isqrt(gram.size)
    gram = gram.reshape(many, many)
    if not np.isfinite(gram).all():
        for metric in ("effective_rank", "sample_cosine"):
            table.add(place, name, metric, math.nan, many, "the output is not finite")
        return
    squares = np.linalg.eigvalsh(gram)
    noise = many * np.finfo(np.float64).eps * max(squares[-1], 0)
    singular = np.sqrt(np.where(squares > noise, squares, 0))
    if singular.sum() == 0:
        table.add(place, name, "effective_rank", math.nan, many, "the output is zero")
    else:
        share = singular / singular.sum()
        share = share[share > 0]
        table.add(place, name, "effective_rank", float(np.exp(-np.sum(share * np.log(share)))), many)
    lengths = np.sqrt(np.diag(gram))
    there = lengths > 0
    count = int(there.sum())
    if count < 2:
        table.add(place, name, "sample_cosine", math.nan, count, "fewer than two samples are not zero")
        return
    cosines = gram[np.ix_(there, there)] / np.outer(lengths[there], lengths[there])
    mean = (cosines.sum() - np.trace(cosines)) / (count * (count - 1))
    table.add(place, name, "sample_cosine", float(mean), count)


def _parameters(
    table: _Table, known: Parameters, values: Values, scale: float, unscaled_reason: str | None
) -> bool:
    """Rows of an optimiser's parameters; whether any weight is not finite."""
    weights = values(known.weights)
    gradients = (
        dict(zip(known.with_gradient, values(known.gradients), strict=True))
        if known.gradients is not None
        else {}
    )
    updates = None if known.updates is None else values(known.updates)
    divisor = scale if known.scaled else 1.0
    for place, name in enumerate(known.names):
        weight = float(weights[place])
        table.add(None, name, "weight_norm", weight, 1)
        if name not in gradients:
            table.add(None, name, "weight_grad_norm", math.nan, 0, "the parameter has no gradient")
        else:
            reason = unscaled_reason if known.scaled else None
            table.add(None, name, "weight_grad_norm", float(gradients[name]) / divisor, 1, reason)
        if updates is None:
            table.add(None, name, "update_ratio", math.nan, 0, NO_STEP)
        elif weight == 0:
            table.add(None, name, "update_ratio", math.nan, 1, "the weight is zero")
        else:
            table.add(None, name, "update_ratio", float(updates[place]) / weight, 1)
    for name, reason in known.unreadable.items():
        for metric in ("weight_norm", "weight_grad_norm", "update_ratio"):
            table.add(None, name, metric, math.nan, 0, reason)
    return not bool(np.isfinite(weights).all())
