"""`sonde.watch`: one line before a training loop."""

import atexit
import sys
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import polars as pl
import torch
from torch import nn

from sonde.analysis.diagnosis.finding import Findings
from sonde.analysis.diagnosis.run_evidence import RunEvidence
from sonde.core.errors import SondeError
from sonde.metrics.rows import WATCHED
from sonde.observe import warn
from sonde.observe.recorder import Recorder
from sonde.observe.row_writer import MemorySink, NoSink, RowSink, StoreSink
from sonde.observe.shards import data_ranks
from sonde.observe.watched_modules import REPLICATED, SCRIPTED, Layers, WatchedModel, is_sharded, unwrapped
from sonde.store.files import Place, place
from sonde.store.journal import Journal, folder_name
from sonde.store.run import describe_environment

_watches: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[Recorder]]" = weakref.WeakKeyDictionary()
_exiting = False

_TARGETS = ("labels", "label", "targets", "target")  # by which names they are in a mapping


def _note_exit() -> None:
    global _exiting
    _exiting = True


class Watch:
    """A model under observation; made by `sonde.watch`."""

    def __init__(
        self, recorder: Recorder | None, run: str, where: Place | None, loss: Callable[..., Any] | None = None
    ) -> None:
        self._recorder = recorder
        self._loss = loss
        self.id = run  # of the run
        self.runs = where  # the store, or None
        self._end = None if recorder is None else weakref.finalize(self, _dropped, recorder)
        atexit.unregister(_note_exit)
        atexit.register(_note_exit)  # registered last, so that it runs before the finalizers that call `_dropped`

    @property
    def rows(self) -> pl.DataFrame:
        """One measurement a row: run, step, module, metric, value, defined, reason and more."""
        return pl.DataFrame(schema=WATCHED) if self._recorder is None else self._recorder.rows()

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the first step: modules in order of execution, parameters, inputs, modes."""
        if self._recorder is None:
            return {}
        if not self._recorder.closed:
            self._recorder.flush()
        return self._recorder.facts

    @property
    def step(self) -> int:
        """The number of steps so far."""
        return 0 if self._recorder is None else self._recorder.step

    def log(self, loss: float | torch.Tensor | None = None, **success: float | torch.Tensor) -> None:
        """Record the loss of the step under way, or of the one that has just ended.

        `watch.log(loss, reward=value)` and the like record a metric of success by a name of one's own, which
        tells a diagnosis whether the run learns: higher is better, unless the name says loss or error.
        """
        if self._recorder is not None and not self._recorder.closed:
            try:
                self._recorder.log(loss, success)
            except Exception as error:
                self._recorder.give_up(error)

    def add_facts(self, known: dict[str, Any]) -> None:
        """Store more facts with the run, as JSON."""
        if self._recorder is not None:
            self._recorder.add_facts(known)

    def add_rows(self, rows: pl.DataFrame) -> None:
        """Store more rows with the run, in the columns of `rows`."""
        if self._recorder is not None:
            self._recorder.add_rows(rows)

    def experiment_with(self, loss: Callable[..., Any] | None) -> None:
        """Use this loss of (output, y) for the experiments of a diagnosis; what is recorded does not change.

        It is needed where the loop does more to outputs or targets than to flatten sequences before the loss.
        """
        self._loss = loss

    def diagnose(self, batch: Any = None, *, seconds: float = 10.0) -> Findings:
        """What is wrong, where, since when, and what to try; nothing, where nothing is.

        `batch`, a pair (x, y) or an item of the loader, allows for experiments on a copy, which find much that rows
        cannot; the loss is the one that `sonde.watch` was given, else the one that the model returns.  Experiments take
        about `seconds` of processor time at most: a large model is trained for fewer steps, and for fewer experiments.
        """
        from sonde.analysis.diagnosis import diagnose

        return diagnose(self.signs(batch, seconds=seconds))

    def measure(self, batch: Any) -> dict[str, float]:
        """Record `noise_scale` and `sharpness` of the loss on this batch, as rows of the step under way.

        With Adam also `preconditioned_sharpness`.  They are computed on a copy in float64, and each sharpness takes
        about as long as 40 passes; NaN if one is undefined.  The loss has to be a mean over samples: the one that
        `sonde.watch` was given, else the one that the model returns.
        """
        from sonde.observe.experiments.curvature import LossOnBatch, noise_scale, preconditioned_sharpness, sharpness

        recorder = self._recorder
        model = None if recorder is None else recorder.model
        if recorder is None or model is None or recorder.closed:
            raise SondeError("measure(batch): the watch is closed or its model is gone; call it while training")
        if any(map(is_sharded, model.parameters())):
            raise SondeError("measure(batch): a sharded model is not copied; measure it in a single process")
        with recorder.paused():
            on_batch = LossOnBatch(model, self._loss_of(self.facts), *_inputs_and_targets(batch))
            learned = [p for p in model.parameters() if p.requires_grad]
            by_adam = preconditioned_sharpness(on_batch, learned, recorder.trained[1])
            found = [noise_scale(on_batch), sharpness(on_batch), *([] if by_adam is None else [by_adam])]
        recorder.add_readings(found)
        return {one.metric: one.value for one in found}

    def signs(self, batch: Any = None, *, seconds: float = 10.0) -> RunEvidence:
        """The input of a diagnosis: rows, facts and, with a batch (x, y), the results of experiments on a copy."""
        recorder = self._recorder
        if recorder is None:
            return RunEvidence(rows=pl.DataFrame(schema=WATCHED), facts={}, steps=0)
        rows, known = self.rows, self.facts
        trials = known.get("experiments")
        if batch is not None:
            found = self._experiments(recorder, batch, rows, known, seconds)
            if found is not None:
                trials = found
                recorder.add_facts({"experiments": trials})
        return RunEvidence(rows=rows, facts=known, steps=recorder.step, trials=trials)

    def _experiments(
        self, recorder: Recorder, batch: Any, rows: pl.DataFrame, known: dict[str, Any], seconds: float
    ) -> dict[str, Any] | None:
        from sonde.observe.experiments import run_experiments
        from sonde.observe.experiments.copies import optimiser_recipes

        model = recorder.model
        if model is None:
            warn("experiments need the model: keep it as long as the watch. Findings are those of the rows alone")
            return None
        if any(map(is_sharded, model.parameters())):
            warn("a sharded model is not experimented with: its other parts are in other processes; leave out batch=")
            return None
        names, optimisers = recorder.trained
        so_far = RunEvidence(rows=rows, facts=known, steps=recorder.step)
        without = {p["name"] for p in known.get("parameters", []) if p["requires_grad"]} & so_far.without_gradient
        try:
            x, y = _inputs_and_targets(batch)
            with recorder.paused():
                return run_experiments(
                    model,
                    self._loss_of(known),
                    x,
                    y,
                    facts=known,
                    start=None if recorder.start is None else recorder.start.state,
                    optimisers=optimiser_recipes(optimisers, names, known),
                    without_gradient=sorted(without),
                    last_loss=so_far.last_loss,
                    seconds=seconds,
                )
        except Exception as error:
            why = str(error) if isinstance(error, SondeError) else f"{type(error).__name__}: {error}"
            why = why.splitlines()[0]
            warn(
                f"experiments on this batch cannot run, findings are those of the rows alone ({why}). If the loop "
                "changes outputs or targets before the loss, call watch.experiment_with(f), f a function of (output, y)"
            )
            return None

    def _loss_of(self, known: dict[str, Any]) -> Callable[..., Any]:
        """The loss of (output, y) for experiments."""
        from sonde.observe.experiments.losses import as_in_loop, own_loss

        return own_loss if self._loss is None else as_in_loop(self._loss, known)

    def recompile(self) -> None:
        """Compile the model again when it is called next, so that the watch can read modules inside its graphs.

        It is needed where a graph existed before the watch began.  All graphs of the process are compiled again.
        """
        if self._recorder is not None and not self._recorder.closed:
            self._recorder.recompile()

    def close(self) -> None:
        """Write what is left and remove every hook; what was recorded stays readable."""
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._recorder is None:
            return
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self._recorder.close()
        else:
            self._recorder.close("failed", f"{kind.__name__}: {error}".splitlines()[0])

    def __repr__(self) -> str:
        if self._recorder is None:
            return "<sonde.watch: inactive, the process of rank 0 watches>"
        state = "closed" if self._recorder.closed else "watching"
        where = "in memory" if self.runs is None else f"in {self.runs / self.id}"
        return f"<sonde.watch {self.id}: {state}, {self.step} steps, rows {where}>"


def watch(
    model: nn.Module,
    *optimizers: torch.optim.Optimizer,
    loss: Callable[..., Any] | None = None,
    runs: str | Place | None = "runs",
    name: str | None = None,
    layers: Layers = None,
    every: int = 25,
    scaler: Any = None,
    provenance: bool = False,
) -> Watch:
    """Record what happens in the modules of a model while it is trained; training itself is not changed by a bit.

    Steps 0–9 and every 25th (`every`) are recorded; a step ends with the optimiser's.  `loss`: a module is recorded
    by itself.  `runs`: the store, or None to keep rows in memory.  `layers`: a pattern ("encoder.*"), several, or a
    function of name and module.  `scaler`: the GradScaler, where one is in use.  `provenance`: store the name of the
    machine and the arguments of the program, which may hold secrets, too.  Keep what is returned in a variable:
    watching ends when it is closed, collected, or the same model is watched again.
    """
    _check(model, loss, every)
    known = [_inner(optimizer) for optimizer in optimizers]
    watched = WatchedModel(model, layers)
    _check_optimisers(watched, type(model).__name__, known)
    known_before = _watches.pop(unwrapped(model), None)
    before = None if known_before is None else known_before()
    if before is not None:
        before.close()
    sharded = any(map(is_sharded, model.parameters()))
    pooled = bool(data_ranks(model))
    if _rank() != 0 and not sharded and not pooled:
        return Watch(None, "", None)
    title = watched.root.type
    about = {
        "label": name or title,
        "model": title,
        "parameters": sum(_size(parameter) for parameter in model.parameters()),
        "every": every,
        "loss": None if loss is None else getattr(loss, "__name__", type(loss).__name__),
        **_share(sharded=sharded, pooled=pooled),
    }
    sink: RowSink = NoSink()
    run, where = "", None
    if _rank() == 0:
        sink, run, where = _sink(runs, name or title, about, every, model, provenance)
    recorder = Recorder(
        watched,
        known,
        loss=loss if isinstance(loss, nn.Module) else None,
        every=every,
        scaler=scaler,
        sink=sink,
        run=run,
    )
    _watches[unwrapped(model)] = weakref.ref(recorder)
    if any(module.hidden == SCRIPTED for module in watched.modules):
        warn("TorchScript modules are seen from outside only: outputs and gradients inside are undefined")
    if watched.root.hidden == REPLICATED:
        warn(f"outputs and their gradients are undefined: {REPLICATED}")
    return Watch(recorder, run, where, loss)


def _sink(
    runs: str | Place | None, name: str, about: dict[str, Any], every: int, model: nn.Module, provenance: bool
) -> tuple[RowSink, str, Place | None]:
    if runs is None:
        return MemorySink(every), folder_name(name), None
    where = place(runs)
    device = str(next(model.parameters()).device)
    started = datetime.now(UTC)
    session = {
        "started": started.isoformat(timespec="seconds"),
        "environment": describe_environment(torch.get_num_threads(), device, provenance=provenance),
    }
    journal = Journal(where, f"{folder_name(name)}-{started:%Y%m%d-%H%M%S}", about, session)
    return StoreSink(journal, every), journal.id, where


def _inputs_and_targets(batch: Any) -> tuple[Any, Any]:
    """x and y of a batch as a loader gives it."""
    if isinstance(batch, Mapping):
        return dict(batch), next((batch[name] for name in _TARGETS if name in batch), None)
    if not isinstance(batch, tuple | list) or len(batch) < 2:  # a model of a single input, which has a loss of its own
        (only,) = batch if isinstance(batch, tuple | list) and len(batch) == 1 else (batch,)
        return only, getattr(only, "y", None)
    *inputs, targets = batch
    return inputs[0] if len(inputs) == 1 else tuple(inputs), targets


def _check(model: Any, loss: Any, every: Any) -> None:
    if not isinstance(model, nn.Module):
        raise SondeError(f"watch(model, …): expected a torch.nn.Module, got {type(model).__name__}")
    if next(model.parameters(), None) is None:
        raise SondeError(f"{type(model).__name__} has no parameters: there is nothing to watch")
    if loss is not None and not callable(loss):
        raise SondeError(f"loss={loss!r}: expected a loss module or a function of (output, y)")
    if not isinstance(every, int) or every < 1:
        raise SondeError(f"every={every!r}: expected a whole number of steps, 1 or more")


def _inner(optimizer: Any) -> torch.optim.Optimizer:
    """The optimiser that a wrapper (of Accelerate, for one) calls."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    if isinstance(optimizer, nn.Module):
        raise SondeError(
            f"watch(model, *optimizers): {type(optimizer).__name__} is a module; if it is the loss, pass loss="
        )
    if isinstance(optimizer, list | tuple):
        raise SondeError("watch(model, *optimizers): give several optimisers one by one, watch(model, first, second)")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SondeError(
            f"watch(model, *optimizers): {type(optimizer).__name__} is not a torch.optim.Optimizer; leave it out, and "
            "a step ends with the next forward pass after a backward pass"
        )
    return optimizer


def _check_optimisers(model: WatchedModel, name: str, optimisers: list[torch.optim.Optimizer]) -> None:
    for optimiser in optimisers:
        held = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
        if not held & model.names.keys():
            raise SondeError(
                f"{type(optimiser).__name__} holds no parameter of this {name}: give the optimiser "
                "that was made from its parameters()"
            )


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _share(*, sharded: bool, pooled: bool) -> dict[str, Any]:
    """Which process the values are of, where there are several."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return {}
    values = "of rank 0, on its own part of the batch" + ("; norms of parameters of all ranks" if sharded else "")
    return {"rank": 0, "world": distributed.get_world_size(), **({} if pooled else {"values": values})}


def _size(parameter: torch.Tensor) -> int:
    return 0 if isinstance(parameter, nn.parameter.UninitializedParameter) else parameter.numel()


def _dropped(recorder: Recorder) -> None:
    """Close the recorder of a handle that was freed, at the end of the process or before."""
    if recorder.step == 0 and not recorder.closed and not recorder.facts:
        warn("the watch ended before the first step: keep it in a variable, `watch = sonde.watch(model, optimizer)`")
    crash = getattr(sys, "last_value", None)
    if _exiting and crash is not None and not hasattr(sys, "ps1"):
        recorder.close("failed", f"{type(crash).__name__}: {crash}".splitlines()[0])
    else:
        recorder.close()
