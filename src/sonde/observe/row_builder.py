"""Builds rows from step records: one transfer from the device, then plain arithmetic in double precision."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl
import torch
from torch import Tensor

from sonde.analysis.diagnosis.run_record import HAS_NO_GRADIENT
from sonde.metrics.reductions import Vector, cosine_of, effective_rank, mean_cosine, rms_of_sum
from sonde.metrics.rows import WATCHED
from sonde.observe.step_record import (
    NO_GRADIENT,
    TWICE,
    CallKey,
    ModuleCall,
    Output,
    RouterChoices,
    StepRecord,
    loss_of_step,
)
from sonde.observe.updates import ParameterNorms

_NO_STEP = "no optimiser that was given holds the parameter"
_NO_GATES = "no gradient came back to the gates, or no module around the router returns a vector for each token"
_OUTPUT, _GRADIENT, _LOSS = 1.0, 2.0, 3.0  # values of `nonfinite`: sonde.metrics.watched.NONFINITE

_Median = tuple[float, int, str | None]  # value, number of samples, why it is undefined


class _Values:
    """The numbers of many short tensors, in one transfer from each device; sums over each are taken in one go."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._kept = {id(tensor): tensor for tensor in tensors}  # kept, so that identities stay unique
        by_device: dict[torch.device, list[Tensor]] = {}
        for tensor in self._kept.values():
            if tensor.numel():
                by_device.setdefault(tensor.device, []).append(tensor)
        ordered = [tensor for members in by_device.values() for tensor in members]
        self._place = {id(tensor): place for place, tensor in enumerate(ordered)}
        self._flat = _joined([_transferred(members) for members in by_device.values()] or [np.zeros(0)])
        self._ends = list(itertools.accumulate(tensor.numel() for tensor in ordered))
        self._starts = [0, *self._ends[:-1]] if ordered else []
        self._squares = self._over_each(np.add, self._flat * self._flat)
        self._totals = self._over_each(np.add, self._flat)
        self._zeros = self._over_each(np.add, (self._flat == 0).astype(np.float64))
        self._maxima = self._over_each(np.maximum, self._flat)

    def _over_each(self, what: np.ufunc, numbers: Vector) -> list[float]:
        found: list[float] = what.reduceat(numbers, self._starts).tolist() if self._starts else []
        return found

    def __call__(self, tensor: Tensor) -> Vector:
        place = self._place.get(id(tensor))
        return self._flat[:0] if place is None else self._flat[self._starts[place] : self._ends[place]]

    def square(self, tensor: Tensor) -> float:
        """Σx²."""
        return self._squares[self._place[id(tensor)]]

    def total(self, tensor: Tensor) -> float:
        """Σx."""
        return self._totals[self._place[id(tensor)]]

    def maximum(self, tensor: Tensor) -> float:
        """max x; NaN where one is."""
        return self._maxima[self._place[id(tensor)]]

    def zeros(self, tensor: Tensor) -> int:
        """How many are exactly zero."""
        return int(self._zeros[self._place[id(tensor)]])


def _transferred(tensors: Sequence[Tensor]) -> Vector:
    """All numbers of tensors on one device, one after the other."""
    flat = torch.cat([tensor if tensor.dim() == 1 else tensor.reshape(-1) for tensor in tensors])
    found: Vector = flat.cpu().double().numpy()
    return found


def _joined(parts: Sequence[Vector]) -> Vector:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class _Streams:
    """Medians over samples of ‖out − in‖/‖in‖ and cos(in, out)."""

    def __init__(self, calls: Iterable[ModuleCall], values: _Values) -> None:
        """Calls of one pass without a zero among their norms are computed together, those of one length at once."""
        self._values = values
        self._known: dict[int, tuple[_Median, _Median]] = {}
        by_length: dict[int, list[ModuleCall]] = {}
        for call in calls:
            if len(call.streams) == 1:
                stream = call.streams[0]
                if not values.zeros(stream.inputs) and not values.zeros(stream.outputs):
                    by_length.setdefault(stream.steps.numel(), []).append(call)
        for length, group in by_length.items():
            steps, dots, ins, outs = (
                np.concatenate([values(getattr(call.streams[0], part)) for call in group]).reshape(-1, length)
                for part in ("steps", "dots", "inputs", "outputs")
            )
            medians = _medians(steps / ins), _medians(cosine_of(dots, ins, outs))
            for call, step, turn in zip(group, *medians, strict=True):
                self._known[id(call)] = (step, length, None), (turn, length, None)

    def __call__(self, call: ModuleCall) -> tuple[_Median, _Median]:
        return self._known.get(id(call)) or self._alone(call)

    def _alone(self, call: ModuleCall) -> tuple[_Median, _Median]:
        """Where passes were pooled, or an input or output is zero."""
        steps, dots, ins, outs = (
            _joined([self._values(getattr(stream, part)) for stream in call.streams])
            for part in ("steps", "dots", "inputs", "outputs")
        )
        return (
            _median_ratio(steps, ins, "every input is zero"),
            _median_ratio(dots, ins * outs, "every input or output is zero"),
        )


def _median_ratio(over: Vector, under: Vector, none: str) -> _Median:
    there = under != 0
    if not there.any():
        return math.nan, 0, none
    ratios = over[there] / under[there]
    return _medians(ratios.reshape(1, -1))[0], ratios.size, None


def _medians(lines: Vector) -> list[float]:
    """The median of each line; NaN where one of its numbers is."""
    ordered = np.sort(lines, axis=1)
    many = ordered.shape[1]
    middle = (ordered[:, (many - 1) // 2] + ordered[:, many // 2]) / 2
    found: list[float] = np.where(np.isnan(ordered[:, -1]), np.nan, middle).tolist()
    return found


class RowBuilder:
    """Builds the rows of a watch.  Keeps the order of modules, values of step 0, and when all was finite."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.order: dict[CallKey, int] = {}
        self.start: dict[CallKey, float] = {}  # RMS of a normalisation layer's input at step 0
        self.nonfinite_seen = False
        self.last_finite: int | None = None
        self.masked: list[str] = []  # calls whose output held −∞, in the last step that has calls
        self.called = -1  # that step

    def rows(self, records: Sequence[StepRecord]) -> pl.DataFrame:
        """The rows of several steps, after one transfer from the device."""
        values = _Values(tensor for record in records for tensor in record.tensors())
        lines: list[tuple[object, ...]] = []
        with np.errstate(all="ignore"):  # a value that is not finite becomes a row with its reason
            streams = _Streams((call for record in records for call in record.calls), values)
            for record in records:
                lines += _StepRows(self, record, values, streams).lines
        return self._frame(lines)

    def _frame(self, lines: Sequence[tuple[object, ...]]) -> pl.DataFrame:
        names = ("step", "layer", "metric", "value", "defined", "reason", "samples", "module")
        columns = list(zip(*lines, strict=True)) if lines else [()] * len(names)
        known: dict[str, Sequence[object]] = dict(zip(names, columns, strict=True))
        known |= {"run": [self.run] * len(lines), "epoch": [None] * len(lines)}
        return pl.DataFrame([pl.Series(name, known[name], kind) for name, kind in WATCHED.items()])


def _call_name(key: CallKey) -> str:
    """The module's name; its second call in a pass is `name#2`."""
    module, number = key
    return module if number == 0 else f"{module}#{number + 1}"


class _StepRows:
    """The rows of one step."""

    def __init__(self, builder: RowBuilder, record: StepRecord, values: _Values, streams: _Streams) -> None:
        self.builder, self.record, self.values, self.streams = builder, record, values, streams
        self.lines: list[tuple[object, ...]] = []
        self.place: int | None = None
        self.name: str | None = None
        self.scale = 1.0 if record.scale is None else float(values(record.scale)[0])
        loss = self._loss()
        if record.traces or record.measured:
            self._traces()
            for one in record.measured:
                self._at(None, None).add(one.metric, one.value, one.samples or 0, one.reason)
            return
        outputs = {_call_name(call.key): self._call(call) for call in record.calls}
        gradients = [_call_name(call.key) for call in reversed(record.calls) if not self._is_finite(call)]
        for name, reason in record.unseen.items():
            self._at(name, None).add("out_rms", math.nan, 0, reason)
        weights = [self._parameters(known) for known in record.parameters]
        self._stale()
        self._targets()
        self._nonfinite(outputs, gradients, weights=all(weights), loss=loss)

    def _at(self, name: str | None, place: int | None) -> "_StepRows":
        self.name, self.place = name, place
        return self

    def add(self, metric: str, value: float, samples: int, reason: str | None = None) -> None:
        if reason is None and not math.isfinite(value):
            reason = "overflow: the value is infinite" if math.isinf(value) else "not a number"
        value = value if reason is None else math.nan
        self.lines.append((self.record.step, self.place, metric, value, reason is None, reason, samples, self.name))

    def _loss(self) -> bool:
        """Add the row of the loss; whether it is finite or there is none."""
        losses = self.record.losses
        if losses:
            value, reason = loss_of_step(losses, self._number, self.scale, self.record.unscaled_reason)
            self.add("loss", value, len(losses), reason)
        return all(math.isfinite(self._number(loss.value)) for loss in losses)

    def _targets(self) -> None:
        """Add the rows of targets, pooled over the calls of the loss, and of metrics that the loop logs."""
        known = [self.values(one) for one in self.record.targets]
        if known:
            mean = math.fsum(float(one[0]) for one in known) / len(known)
            square = math.fsum(float(one[1] ** 2 + (one[0] - mean) ** 2) for one in known) / len(known)
            self._at(None, None).add("target_mean", mean, len(known))
            self.add("target_spread", math.sqrt(square), len(known))
        for name, value in self.record.success.items():
            self._at(name, None).add("success", self._number(value), 1)

    def _number(self, tensor: Tensor) -> float:
        return float(self.values(tensor)[0])

    def _call(self, call: ModuleCall) -> float:
        """Add the rows of a call; return NaN, ∞ or −∞ if its output holds one, else 0."""
        self._at(_call_name(call.key), self.builder.order.setdefault(call.key, len(self.builder.order)))
        if not call.outputs:
            self.add("out_rms", math.nan, 0, call.reason)
            return 0.0
        samples = sum(output.samples for output in call.outputs)
        entries = sum(output.entries for output in call.outputs)
        total = sum(self.values.total(output.sums) for output in call.outputs if output.sums is not None)
        maxima = [self.values.maximum(output.maxima) for output in call.outputs if output.maxima is not None]
        top = math.nan if any(one != one for one in maxima) else max(maxima)
        self.add("out_rms", self._rms(call.outputs), samples)
        self.add("out_mean", total / entries, samples)
        self.add("out_max", top, samples)
        self._units(call, samples, entries)
        self._gradient(call)
        self._stream(call)
        if call.inputs:
            self._growth(call, samples)
        if call.gram is not None:
            self._directions(self.values(call.gram))
        if call.tails is not None:
            massive, kurtosis = self.values(call.tails).tolist()
            flat = "all entries are equal" if math.isnan(kurtosis) else None
            self.add("massive_share", massive, samples)
            self.add("out_kurtosis", kurtosis, samples, flat)
        if call.attention:
            self._attention(call)
        if call.router is not None:
            self._router(call.router)
        return next((worst for worst in (top, total) if not math.isfinite(worst)), 0.0)

    def _router(self, router: RouterChoices) -> None:
        for expert, value in enumerate(self.values(router.load).tolist()):
            self.add(f"router_load[{expert}]", value, 1)
        self.add("router_entropy", float(self.values(router.entropy)[0]), 1)
        dropped, choices = (0.0, 0.0) if router.dropped is None else self.values(router.dropped).tolist()
        none = None if choices else _NO_GATES
        self.add("dropped_share", dropped / choices if choices else math.nan, int(choices), none)

    def _attention(self, call: ModuleCall) -> None:
        entropy, largest = (np.concatenate([self.values(p[i]) for p in call.attention]) for i in (0, 1))
        self.add("attention_entropy", float(np.mean(entropy)), entropy.size)
        self.add("attention_max_logit", float(np.max(largest)), largest.size)
        read = call.attention[0][2:] if len(call.attention) == 1 else ()
        if read and read[0].shape[1] > 1:
            entropy, largest = (self.values(x).reshape(x.shape) for x in read)
            for head in range(entropy.shape[1]):
                self.add(f"attention_entropy[{head}]", float(np.mean(entropy[:, head])), len(entropy))
                self.add(f"attention_max_logit[{head}]", float(np.max(largest[:, head])), len(largest))

    def _rms(self, outputs: Sequence[Output]) -> float:
        """√(Σx²/n) over everything that was pooled."""
        squares = sum(self.values.square(output.norms) for output in outputs)
        return rms_of_sum(squares, sum(output.entries for output in outputs))

    def _units(self, call: ModuleCall, samples: int, entries: int) -> None:
        if call.unit_bounds:
            units = {high.numel() for _, high in call.unit_bounds}
            if len(units) > 1:
                self.add("dead_share", math.nan, samples, "the number of units changed within the step")
            else:
                self.add("dead_share", self._dead(call) / units.pop(), samples)
        if call.at_bounds:
            count = sum(self.values.total(part) for part in call.at_bounds)
            self.add("saturated_share", count / entries, samples)

    def _dead(self, call: ModuleCall) -> int:
        """Units whose smallest and largest value are both zero."""
        low, high = call.unit_bounds[0]
        if len(call.unit_bounds) == 1 and low is high:
            return self.values.zeros(high)
        lows, highs = ([self.values(pair[side]) for pair in call.unit_bounds] for side in (0, 1))
        return int(np.count_nonzero((np.max(highs, axis=0) == 0) & (np.min(lows, axis=0) == 0)))

    def _gradient(self, call: ModuleCall) -> None:
        came = [(g, g.norms) for g in call.gradients if g.norms is not None]
        samples = sum(gradient.samples for gradient, _ in came)
        reason = None
        if any(gradient.fired > 1 for gradient in call.gradients):
            reason = TWICE
        elif not came:
            reason = next((gradient.reason for gradient in call.gradients if gradient.reason), NO_GRADIENT)
        elif self.record.unscaled_reason is not None:
            reason = self.record.unscaled_reason
        if reason is not None:
            self.add("grad_rms", math.nan, samples, reason)
            return
        squares = sum(self.values.square(norms) for _, norms in came)
        value = rms_of_sum(squares, sum(gradient.entries for gradient, _ in came))
        self.add("grad_rms", value / self.scale, samples)
        halved = next((gradient for gradient, _ in came if gradient.halves is not None), None)
        if halved is not None and halved.halves is not None:
            samples = samples if halved.halves_samples is None else halved.halves_samples
            dot, first, second = self.values(halved.halves)
            length = float(np.sqrt(first * second))
            none = "the gradient of half the batch is zero" if length == 0 else None
            self.add("grad_noise", 1 - dot / length if length else math.nan, samples, none)

    def _stream(self, call: ModuleCall) -> None:
        if call.stream_reason is not None:
            for metric in ("stream_step", "stream_cosine"):
                self.add(metric, math.nan, 0, call.stream_reason)
        elif call.streams:
            step, cosine = self.streams(call)
            self.add("stream_step", *step)
            self.add("stream_cosine", *cosine)

    def _growth(self, call: ModuleCall, samples: int) -> None:
        start, value = self.builder.start, self._rms(call.inputs)
        first = start.setdefault(call.key, value) if self.record.step == 0 else start.get(call.key)
        if first is None:
            self.add("masked_growth", math.nan, samples, "it was not called at step 0")
        elif not first > 0:
            self.add("masked_growth", math.nan, samples, "its input was zero or not finite at step 0")
        else:
            self.add("masked_growth", value / first, samples)
        self.add("norm_in_rms", value, samples)

    def _directions(self, gram: Vector) -> None:
        """Effective rank and mean cosine between samples, from the Gram matrix."""
        many = math.isqrt(gram.size)
        gram = gram.reshape(many, many)
        if not np.isfinite(gram).all():
            for metric in ("effective_rank", "sample_cosine"):
                self.add(metric, math.nan, many, "the output is not finite")
            return
        rank = effective_rank(gram)
        self.add("effective_rank", rank, many, "the output is zero" if math.isnan(rank) else None)
        mean, count = mean_cosine(gram)
        self.add("sample_cosine", mean, count, "fewer than two samples are not zero" if count < 2 else None)

    def _is_finite(self, call: ModuleCall) -> bool:
        norms = [gradient.norms for gradient in call.gradients if gradient.norms is not None]
        return all(math.isfinite(self.values.total(norm)) for norm in norms)

    def _parameters(self, known: ParameterNorms) -> bool:
        """Add the rows of an optimiser's parameters; whether every weight is finite."""
        weights = self.values(known.weights)
        came = [] if known.gradients is None else self.values(known.gradients).tolist()
        gradients = dict(zip(known.with_gradient, came, strict=True))
        updates = None if known.updates is None else self.values(known.updates).tolist()
        scale, unscaled = (self.scale, self.record.unscaled_reason) if known.scaled else (1.0, None)
        for place, (name, weight) in enumerate(zip(known.names, weights.tolist(), strict=True)):
            self._at(name, None).add("weight_norm", weight, 1)
            if name in gradients:
                self.add("weight_grad_norm", gradients[name] / scale, 1, unscaled)
            else:
                why = known.unreadable_gradients.get(name, HAS_NO_GRADIENT)
                self.add("weight_grad_norm", math.nan, 0, why)
            if updates is None:
                self.add("update_ratio", math.nan, 0, _NO_STEP)
            elif weight == 0:
                self.add("update_ratio", math.nan, 1, "the weight is zero")
            else:
                self.add("update_ratio", updates[place] / weight, 1)
            if updates is not None and known.ratios is not None:
                self.add("update_rms", updates[place] / math.sqrt(known.sizes[place]), 1)
                if not math.isnan(ratio := float(self.values(known.ratios)[place])):
                    self.add("adam_ratio", ratio, 1)
        for name, reason in known.unreadable.items():
            for metric in ("weight_norm", "weight_grad_norm", "update_ratio"):
                self._at(name, None).add(metric, math.nan, 0, reason)
        return bool(np.isfinite(weights).all())

    def _traces(self) -> None:
        """Add the rows of a step that the ring kept: rates, gradients, and movement of a few entries."""
        for trace in self.record.traces:
            for group, rate in trace.rates.items():
                value = self._number(rate) if isinstance(rate, Tensor) else rate
                self._at(group, None).add("learning_rate", value, 1)
            norms = [] if trace.gradients is None else self.values(trace.gradients).tolist()
            for name, norm in zip(trace.with_gradient, norms, strict=False):
                self._at(name, None).add("weight_grad_norm", norm, 1)
            if trace.moved is None or trace.before is None:
                continue
            pairs = zip(self.values(trace.moved).tolist(), self.values(trace.before).tolist(), strict=True)
            for name, many, (moved, before) in zip(trace.names, trace.samples or trace.sizes, pairs, strict=True):
                none = "the weight is zero" if before == 0 else None
                self._at(name, None).add("update_sample", moved / before if before else math.nan, many, none)

    def _stale(self) -> None:
        """Add stale gradients: ‖old‖/‖new‖, the smallest of the step's backward passes; and the share in eval mode."""
        for name, arrivals in self.record.stale.items():
            pairs = [self.values(arrival) for arrival in arrivals]
            ratios = [old / new for old, new in pairs if new > 0]
            if ratios:
                self._at(name, None).add("grad_left", float(min(ratios)), len(ratios))
        if self.record.in_eval is not None:
            share, many = self.record.in_eval
            self._at(None, None).add("eval_share", share, many)

    def _nonfinite(self, outputs: Mapping[str, float], gradients: Sequence[str], *, weights: bool, loss: bool) -> None:
        """Add a row for the first thing that is not finite: outputs in order of execution, gradients from the end.

        An output of −∞ may be a mask: it counts where the step's loss or a gradient is not finite.
        """
        if self.record.calls:
            self.builder.called = self.record.step
            self.builder.masked = [name for name, worst in outputs.items() if worst == -math.inf]
        broken = [name for name, worst in outputs.items() if not worst < math.inf]
        if gradients or not loss:
            broken = [name for name, worst in outputs.items() if worst != 0]
            if not self.record.calls and self.builder.called == self.record.step:  # a loss that is logged later
                broken = self.builder.masked
        if weights and loss and not broken and not gradients:
            self.builder.last_finite = self.record.step
            return
        if self.builder.nonfinite_seen:
            return
        self.builder.nonfinite_seen = True
        if not weights:
            last = self.builder.last_finite
            since = "before the first step" if last is None else f"after step {last}"
            why = f"weights were already not finite in step {self.record.step}: it began {since}, in a step not watched"
            self._at(None, None).add("nonfinite", math.nan, 0, why)
            return
        first = [*((name, _OUTPUT) for name in broken), *((name, _GRADIENT) for name in gradients), (None, _LOSS)]
        name, what = first[0]
        places = {_call_name(key): place for key, place in self.builder.order.items()}
        self._at(name, places.get(name or "")).add("nonfinite", what, 1)
