"""From sheets to rows: plain arithmetic in double precision."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from torch import Tensor

from sonde.analysis.diagnosis.run_evidence import HAS_NO_GRADIENT
from sonde.metrics.rows import WATCHED
from sonde.observe.heard_losses import loss_of_step
from sonde.observe.step_record import NO_GRADIENT, TWICE, Call, Key, Output, Sheet
from sonde.observe.transfer import Streams, Values, Vector
from sonde.observe.updates import Parameters

ODD_GRADIENT = "a gradient of this kind is not read"
NO_STEP = "no optimiser that was given holds the parameter"
OUTPUT, GRADIENT, LOSS = 1.0, 2.0, 3.0  # what of a module is not finite


class Ledger:
    """Knows the order of modules, what each measured at step 0, and whether anything has not been finite."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.order: dict[Key, int] = {}
        self.start: dict[Key, float] = {}  # RMS of a normalisation layer's input at step 0
        self.broken = False
        self.last_finite: int | None = None
        self.masked: list[str] = []  # calls whose output held −∞, in the last step that has calls
        self.called = -1  # that step

    def rows(self, sheets: Sequence[Sheet]) -> pl.DataFrame:
        values = Values(tensor for sheet in sheets for tensor in sheet.tensors())
        lines: list[tuple[object, ...]] = []
        with np.errstate(all="ignore"):  # what is not a number becomes a row that says so
            streams = Streams((call for sheet in sheets for call in sheet.calls), values)
            for sheet in sheets:
                lines += _Page(self, sheet, values, streams).lines
        return self._frame(lines)

    def _frame(self, lines: Sequence[tuple[object, ...]]) -> pl.DataFrame:
        names = ("step", "layer", "metric", "value", "defined", "reason", "samples", "module")
        columns = list(zip(*lines, strict=True)) if lines else [()] * len(names)
        known: dict[str, Sequence[object]] = dict(zip(names, columns, strict=True))
        known |= {"run": [self.run] * len(lines), "epoch": [None] * len(lines)}
        return pl.DataFrame([pl.Series(name, known[name], kind) for name, kind in WATCHED.items()])


def call_name(key: Key) -> str:
    """The module's name; its second call in a pass is `name#2`."""
    module, number = key
    return module if number == 0 else f"{module}#{number + 1}"


class _Page:
    """The rows of one sheet."""

    def __init__(self, ledger: Ledger, sheet: Sheet, values: Values, streams: Streams) -> None:
        self.ledger, self.sheet, self.values, self.streams = ledger, sheet, values, streams
        self.lines: list[tuple[object, ...]] = []
        self.place: int | None = None
        self.name: str | None = None
        self.scale = 1.0 if sheet.scale is None else float(values(sheet.scale)[0])
        loss = self._loss()
        outputs = {call_name(call.key): self._call(call) for call in sheet.calls}
        gradients = [call_name(call.key) for call in reversed(sheet.calls) if not self._is_finite(call)]
        for name, reason in sheet.unseen.items():
            self._about(name, None).add("out_rms", math.nan, 0, reason)
        weights = [self._parameters(known) for known in sheet.parameters]
        self._left()
        self._judge(outputs, gradients, weights=all(weights), loss=loss)

    def _about(self, name: str | None, place: int | None) -> "_Page":
        self.name, self.place = name, place
        return self

    def add(self, metric: str, value: float, samples: int, reason: str | None = None) -> None:
        if reason is None and not math.isfinite(value):
            reason = "overflow: the value is infinite" if math.isinf(value) else "not a number"
        value = value if reason is None else math.nan
        self.lines.append((self.sheet.step, self.place, metric, value, reason is None, reason, samples, self.name))

    def _loss(self) -> bool:
        """Whether the loss is finite, where there is one."""
        losses = self.sheet.losses
        if losses:
            value, reason = loss_of_step(losses, self._number, self.scale, self.sheet.unscaled_reason)
            self.add("loss", value, len(losses), reason)
        return all(math.isfinite(self._number(loss.value)) for loss in losses)

    def _number(self, tensor: Tensor) -> float:
        return float(self.values(tensor)[0])

    def _call(self, call: Call) -> float:
        """The rows of a call; what of its output is not finite: NaN or ∞ before −∞, 0 where everything is."""
        self._about(call_name(call.key), self.ledger.order.setdefault(call.key, len(self.ledger.order)))
        if not call.outputs:
            self.add("out_rms", math.nan, 0, call.reason)
            return 0.0
        samples = sum(output.samples for output in call.outputs)
        entries = sum(output.entries for output in call.outputs)
        total = sum(self.values.total(output.sums) for output in call.outputs if output.sums is not None)
        tops = [self.values.top(output.tops) for output in call.outputs if output.tops is not None]
        top = math.nan if any(one != one for one in tops) else max(tops)
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
        if call.attention:
            entropy, largest = (np.concatenate([self.values(p[i]) for p in call.attention]) for i in (0, 1))
            self.add("attention_entropy", float(np.mean(entropy)), entropy.size)
            self.add("attention_max_logit", float(np.max(largest)), largest.size)
        return next((worst for worst in (top, total) if not math.isfinite(worst)), 0.0)

    def _rms(self, outputs: Sequence[Output]) -> float:
        """√(Σx²/n) over everything that was pooled."""
        square = sum(self.values.square(output.norms) for output in outputs)
        return _root(square / sum(output.entries for output in outputs))

    def _units(self, call: Call, samples: int, entries: int) -> None:
        if call.unit_bounds:
            units = {high.numel() for _, high in call.unit_bounds}
            if len(units) > 1:
                self.add("dead_share", math.nan, samples, "the number of units changed within the step")
            else:
                self.add("dead_share", self._dead(call) / units.pop(), samples)
        if call.at_bounds:
            count = sum(self.values.total(part) for part in call.at_bounds)
            self.add("saturated_share", count / entries, samples)

    def _dead(self, call: Call) -> int:
        """Units whose smallest and largest value are both zero."""
        low, high = call.unit_bounds[0]
        if len(call.unit_bounds) == 1 and low is high:
            return self.values.zeros(high)
        lows, highs = ([self.values(pair[side]) for pair in call.unit_bounds] for side in (0, 1))
        return int(np.count_nonzero((np.max(highs, axis=0) == 0) & (np.min(lows, axis=0) == 0)))

    def _gradient(self, call: Call) -> None:
        came = [(g, g.norms) for g in call.gradients if g.norms is not None]
        samples = sum(gradient.samples for gradient, _ in came)
        reason = None
        if any(gradient.fired > 1 for gradient in call.gradients):
            reason = TWICE
        elif not came:
            reason = next((gradient.reason for gradient in call.gradients if gradient.reason), NO_GRADIENT)
        elif self.sheet.unscaled_reason is not None:
            reason = self.sheet.unscaled_reason
        if reason is not None:
            self.add("grad_rms", math.nan, samples, reason)
            return
        square = sum(self.values.square(norms) for _, norms in came)
        self.add("grad_rms", _root(square / sum(gradient.entries for gradient, _ in came)) / self.scale, samples)
        halves = next((gradient.halves for gradient, _ in came if gradient.halves is not None), None)
        if halves is not None:
            dot, first, second = self.values(halves)
            length = _root(first * second)
            none = "the gradient of half the batch is zero" if length == 0 else None
            self.add("grad_noise", 1 - dot / length if length else math.nan, samples, none)

    def _stream(self, call: Call) -> None:
        if call.stream_reason is not None:
            for metric in ("stream_step", "stream_cosine"):
                self.add(metric, math.nan, 0, call.stream_reason)
        elif call.streams:
            step, cosine = self.streams(call)
            self.add("stream_step", *step)
            self.add("stream_cosine", *cosine)

    def _growth(self, call: Call, samples: int) -> None:
        start, value = self.ledger.start, self._rms(call.inputs)
        first = start.setdefault(call.key, value) if self.sheet.step == 0 else start.get(call.key)
        if first is None:
            self.add("masked_growth", math.nan, samples, "it was not called at step 0")
        elif not first > 0:
            self.add("masked_growth", math.nan, samples, "its input was zero or not finite at step 0")
        else:
            self.add("masked_growth", value / first, samples)
        self.add("norm_in_rms", value, samples)

    def _directions(self, gram: Vector) -> None:
        """Effective rank (Roy & Vetterli, 2007) and mean cosine between samples, from the Gram matrix."""
        many = math.isqrt(gram.size)
        gram = gram.reshape(many, many)
        if not np.isfinite(gram).all():
            for metric in ("effective_rank", "sample_cosine"):
                self.add(metric, math.nan, many, "the output is not finite")
            return
        squares = np.linalg.eigvalsh(gram)
        noise = many * np.finfo(np.float64).eps * max(squares[-1], 0)
        singular = np.sqrt(squares[squares > noise])
        share = singular / singular.sum()
        rank = float(np.exp(-np.sum(share * np.log(share)))) if singular.size else math.nan
        self.add("effective_rank", rank, many, None if singular.size else "the output is zero")
        lengths = np.sqrt(np.diag(gram))
        there = lengths > 0
        count = int(there.sum())
        if count < 2:
            self.add("sample_cosine", math.nan, count, "fewer than two samples are not zero")
            return
        cosines = gram[np.ix_(there, there)] / np.outer(lengths[there], lengths[there])
        mean = (cosines.sum() - np.trace(cosines)) / (count * (count - 1))
        self.add("sample_cosine", float(mean), count)

    def _is_finite(self, call: Call) -> bool:
        norms = [gradient.norms for gradient in call.gradients if gradient.norms is not None]
        return all(math.isfinite(self.values.total(norm)) for norm in norms)

    def _parameters(self, known: Parameters) -> bool:
        """The rows of an optimiser's parameters; whether every weight is finite."""
        weights = self.values(known.weights)
        came = [] if known.gradients is None else self.values(known.gradients).tolist()
        gradients = dict(zip(known.with_gradient, came, strict=True))
        updates = None if known.updates is None else self.values(known.updates).tolist()
        scale, unscaled = (self.scale, self.sheet.unscaled_reason) if known.scaled else (1.0, None)
        for place, (name, weight) in enumerate(zip(known.names, weights.tolist(), strict=True)):
            self._about(name, None).add("weight_norm", weight, 1)
            if name in gradients:
                self.add("weight_grad_norm", gradients[name] / scale, 1, unscaled)
            else:
                odd = name in known.odd_gradients
                self.add("weight_grad_norm", math.nan, 0, ODD_GRADIENT if odd else HAS_NO_GRADIENT)
            if updates is None:
                self.add("update_ratio", math.nan, 0, NO_STEP)
            elif weight == 0:
                self.add("update_ratio", math.nan, 1, "the weight is zero")
            else:
                self.add("update_ratio", updates[place] / weight, 1)
        for name, reason in known.unreadable.items():
            for metric in ("weight_norm", "weight_grad_norm", "update_ratio"):
                self._about(name, None).add(metric, math.nan, 0, reason)
        return bool(np.isfinite(weights).all())

    def _left(self) -> None:
        """Gradients that were there before the step's own came: ‖old‖/‖new‖, the smallest of its backward passes."""
        for name, arrivals in self.sheet.left.items():
            pairs = [self.values(arrival) for arrival in arrivals]
            ratios = [old / new for old, new in pairs if new > 0]
            if ratios:
                self._about(name, None).add("grad_left", float(min(ratios)), len(ratios))
        if self.sheet.in_eval is not None:
            share, many = self.sheet.in_eval
            self._about(None, None).add("eval_share", share, many)

    def _judge(self, outputs: Mapping[str, float], gradients: Sequence[str], *, weights: bool, loss: bool) -> None:
        """A row for the first thing that is not finite: outputs in order of execution, gradients from the end.

        An output of −∞ may be a mask: it counts where the step's loss or a gradient is not finite.
        """
        if self.sheet.calls:
            self.ledger.called = self.sheet.step
            self.ledger.masked = [name for name, worst in outputs.items() if worst == -math.inf]
        broken = [name for name, worst in outputs.items() if not worst < math.inf]
        if gradients or not loss:
            broken = [name for name, worst in outputs.items() if worst != 0]
            if not self.sheet.calls and self.ledger.called == self.sheet.step:  # a loss that is told later
                broken = self.ledger.masked
        if weights and loss and not broken and not gradients:
            self.ledger.last_finite = self.sheet.step
            return
        if self.ledger.broken:
            return
        self.ledger.broken = True
        if not weights:
            last = self.ledger.last_finite
            since = "before the first step" if last is None else f"after step {last}"
            why = f"weights were already not finite in step {self.sheet.step}: it began {since}, in a step not watched"
            self._about(None, None).add("nonfinite", math.nan, 0, why)
            return
        first = [
            *((name, OUTPUT) for name in broken),
            *((name, GRADIENT) for name in gradients),
            (None, LOSS),
        ]
        name, what = first[0]
        places = {call_name(key): place for key, place in self.ledger.order.items()}
        self._about(name, places.get(name or "")).add("nonfinite", what, 1)


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 else math.nan
