"""`sonde.check`: measure a model at its initialisation, on a copy, before any training."""

import copy
from collections.abc import Iterator
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from sonde.analysis.diagnosis import diagnose
from sonde.analysis.diagnosis.finding import Findings
from sonde.analysis.diagnosis.run_evidence import RunEvidence
from sonde.core.errors import SondeError
from sonde.core.formatting import listed
from sonde.observe.experiments import run_experiments
from sonde.observe.experiments.copies import OutputLoss, cast_tensors, copied, generators_kept, reset, run_model
from sonde.observe.facts import first_float
from sonde.observe.precheck import MODEL, Band, Precheck
from sonde.observe.predict import predict
from sonde.observe.predict.prediction import Level
from sonde.observe.recorder import Recorder
from sonde.observe.row_writer import MemorySink
from sonde.observe.watched_modules import Layers, WatchedModel, uncompiled, unwrapped

_DIRECTIONS = {"signal": "out_rms", "gradient": "grad_rms"}
_ROUNDING = 0.002  # of a size that every draw has, such as that of a normalised output


def check(
    model: nn.Module, x: Any, y: Any = None, loss: OutputLoss | None = None, *, inits: int = 1, layers: Layers = None
) -> Precheck:
    """Measure a model before training: signal and gradient by depth, of one batch, in float64, on a copy.

    `loss(model(x), y)` is differentiated; without a loss, whole-numbered targets get the cross-entropy and others the
    squared error, and without targets there is no gradient.  With `inits=20` the same is done for 20 fresh
    initialisations (`reset_parameters` of every module that has it), and a band shows how much they differ.  Neither
    the model nor the state of a random generator is changed.
    """
    if not isinstance(model, nn.Module):
        raise SondeError(f"check(model, x, y, loss): expected a torch.nn.Module, got {type(model).__name__}")
    if next(model.parameters(), None) is None:
        raise SondeError(f"{type(model).__name__} has no parameters: there is nothing to check")
    if inits < 1:
        raise SondeError(f"inits={inits}: expected a whole number, 1 or more")
    loss, words = _loss_and_name(y, loss)
    with generators_kept():
        seen, precision, note = _measure(model, x, y, loss, layers)
        kept, many = _kept(model) if inits > 1 else 0, sum(1 for _ in model.parameters())
        is_banded = inits > 1 and kept < many
        fresh = list(_fresh(model, x, y, loss, layers, inits, precision)) if is_banded else []
    expected, words_of_prediction = _prediction(model, x, seen.rows())
    return Precheck(
        model=type(uncompiled(unwrapped(model))).__name__,
        rows=seen.rows(),
        facts=seen.facts,
        loss=words,
        notes=[*([note] if note else []), *_about_band(kept, many)],
        band=Band.over(fresh) if fresh else None,
        findings=_findings(model, x, y, loss, seen),
        expected=expected,
        predicted=words_of_prediction,
    )


def _prediction(model: nn.Module, x: Any, rows: pl.DataFrame) -> tuple[pl.DataFrame | None, str]:
    """What `sonde.predict` expects beside what was measured, and how many values lie in its range, in words.

    A predicted gradient is relative to the gradient at the model's output, so it is multiplied by the measured one.
    """
    try:
        found = predict(model, x, remedy=False)
    except Exception as error:  # a model that runs may still not run without values
        return None, f"no prediction to compare with: {str(error).splitlines()[0]}"
    known = rows.filter(pl.col("defined") & pl.col("metric").is_in(list(_DIRECTIONS.values())))
    values = {
        (module, metric): value for module, metric, value in known.select("module", "metric", "value").iter_rows()
    }
    lines = []
    for module in found.modules:
        for direction, metric in _DIRECTIONS.items():
            level: Level | None = getattr(module, direction)
            value = values.get((module.name, metric))
            scale = values.get((MODEL, metric), 0.0) if direction == "gradient" else 1.0
            if level is None or value is None or not scale > 0:
                continue
            low, expected, high = (scale * end for end in (level.low, level.expected, level.high))
            is_inside = low * (1 - _ROUNDING) <= value <= high * (1 + _ROUNDING)
            lines.append((module.name, direction, expected, low, high, is_inside))
    if not lines:
        return None, ""
    names = ("module", "direction", "expected", "low", "high", "is_inside")
    frame = pl.DataFrame(lines, schema=names, orient="row")
    outside = [f"the {direction} of {module}" for module, direction, *_, is_inside in lines if not is_inside]
    beyond = f"; outside (✗): {listed(outside, 3)}" if outside else ""
    many = len(lines)
    share = f"{many - len(outside)} of {many} values lie in the range predicted for nine draws of the weights in ten"
    return frame, " ".join([f"{share}{beyond}.", *found.notes])


def _kept(model: nn.Module) -> int:
    """How many parameters no module can draw anew."""
    return len(reset(copy.deepcopy(uncompiled(unwrapped(model)))))


def _about_band(kept: int, many: int) -> list[str]:
    if not kept:
        return []
    why = "no module has a `reset_parameters` for them"
    if kept == many:
        return [f"no band over initialisations: none of {many} parameters can be drawn anew, {why}"]
    return [f"{kept} of {many} parameters are the same in all fresh initialisations: {why}"]


def _findings(model: nn.Module, x: Any, y: Any, loss: OutputLoss | None, seen: Recorder) -> Findings:
    """The diagnosis of rows and experiments; fifty steps of Adam stand for the training that has not begun."""
    if loss is None:
        return Findings()
    known = copied(model).state_dict()
    named = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    adam = (torch.optim.Adam, [{"params": named, "lr": 1e-3}])
    facts = seen.facts
    without = RunEvidence(rows=seen.rows(), facts=facts, steps=0).without_gradient
    trials = run_experiments(
        model,
        loss,
        x,
        y,
        facts=facts,
        start=known,
        optimisers=[adam],
        without_gradient=sorted(without & set(named)),
        rates=False,
    )
    return diagnose(RunEvidence(rows=seen.rows(), facts=facts, steps=0, trials=trials))


def _loss_and_name(y: Any, loss: OutputLoss | None) -> tuple[OutputLoss | None, str]:
    if loss is not None:
        return loss, getattr(loss, "__name__", type(loss).__name__)
    if y is None:
        return None, "none was given, so nothing is said of gradients"
    return default_loss(y)


def default_loss(y: Any) -> tuple[OutputLoss, str]:
    """The loss for targets without one, and its name: squared error for numbers, cross-entropy for classes."""
    if not isinstance(y, Tensor):
        raise SondeError("targets that are not one tensor need a loss: give loss=")
    if y.is_floating_point():
        return lambda out, y: functional.mse_loss(output_tensor(out), y), "squared error, as none was given"
    return (
        lambda out, y: functional.cross_entropy(output_tensor(out).flatten(0, -2), y.flatten()),
        "cross-entropy, as none was given",
    )


def output_tensor(out: Any) -> Tensor:
    """The tensor of a model's output that a loss is of: the first of floating-point numbers."""
    found = first_float(out)
    if found is None or found.dim() < 1:
        raise SondeError("the model returns nothing that a loss could be guessed for: give loss=")
    return found


def _measure(
    model: nn.Module, x: Any, y: Any, loss: OutputLoss | None, layers: Layers, precision: torch.dtype = torch.float64
) -> tuple[Recorder, torch.dtype, str | None]:
    """One forward and backward pass of a copy; in float32 if the model does not run in float64."""
    try:
        return _run_pass(model, x, y, loss, layers, precision), precision, None
    except RuntimeError as error:
        if precision != torch.float64 or not any(word in str(error) for word in ("dtype", "Double", "double")):
            raise
        why = str(error).splitlines()[0]
        note = f"checked in float32: the model does not run in float64 ({why})"
        return _run_pass(model, x, y, loss, layers, torch.float32), torch.float32, note


def _run_pass(
    model: nn.Module, x: Any, y: Any, loss: OutputLoss | None, layers: Layers, precision: torch.dtype
) -> Recorder:
    twin = copied(model, precision)
    recorder = Recorder(
        WatchedModel(twin, layers), [], loss=None, every=1, scaler=None, sink=MemorySink(1), run="check"
    )
    try:
        with torch.enable_grad():
            out = run_model(twin, cast_tensors(x, precision))
            value = None if loss is None else loss(out, cast_tensors(y, precision))
            if value is not None:
                recorder.log(value, {})
                if not value.requires_grad:
                    raise SondeError("the loss does not depend on any parameter that asks for a gradient")
                torch.autograd.backward(value)
        recorder.end_step()
    finally:
        recorder.close()
    return recorder


def _fresh(
    model: nn.Module, x: Any, y: Any, loss: OutputLoss | None, layers: Layers, inits: int, precision: torch.dtype
) -> Iterator[pl.DataFrame]:
    """The same measurements of fresh initialisations, with seeds 0, 1, …"""
    for seed in range(inits):
        twin = copy.deepcopy(uncompiled(unwrapped(model)))
        torch.manual_seed(seed)
        reset(twin)
        yield _measure(twin, x, y, loss, layers, precision)[0].rows()
