"""Train one run into the store: resume what is there, measure every epoch, commit every epoch."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import safetensors.torch
import torch

from sonde.config import RunConfig, parse, to_tree
from sonde.errors import SondeError
from sonde.rows import Reading, rows_of
from sonde.store import files
from sonde.store.environment import describe
from sonde.store.lock import hold
from sonde.store.run import ENDED, Manifest, RunFolder, State
from sonde.tasks import Data
from sonde.training.device import resolve_device
from sonde.training.program import DTYPES, Program
from sonde.training.tensors import pack, unpack


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands after an epoch."""

    run: str
    epoch: int
    epochs: int
    loss: float | None
    state: str


def train(
    config: RunConfig,
    *,
    runs: str | Path = "runs",
    data_root: Path | None = None,
    device: str = "auto",
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Manifest:
    """Bring a run to its end and return its manifest; what is complete is not trained again.

    `should_stop` is asked after every epoch; a run that stops there resumes bit-identically.
    """
    config = parse(to_tree(config))
    root = files.make_folder(Path(runs))
    folder = RunFolder(root / config.id)
    with hold(root, folder.id), _one_thread():
        if folder.exists() and folder.manifest().state in ENDED:
            return folder.manifest()
        where = resolve_device(device)
        data = config.task.load(config.seed, data_root, where, DTYPES[config.precision])
        program = Program(config, data, where)
        if not folder.exists():
            folder.create(to_tree(config), about(config, program))
        _check_same_data(folder, data)
        manifest, rows = folder.read()
        folder.sweep(manifest)
        session = {
            "from_epoch": manifest.epoch,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": describe(torch.get_num_threads(), str(where)),
        }
        manifest = replace(manifest, state="unfinished", sessions=[*manifest.sessions, session])
        if manifest.epoch is not None:
            program.restore(
                safetensors.torch.load(folder.tensors("weights")), unpack(folder.tensors("resume"))
            )
        return _epochs(config, program, folder, manifest, rows, on_progress, should_stop)


def _epochs(
    config: RunConfig,
    program: Program,
    folder: RunFolder,
    manifest: Manifest,
    rows: pl.DataFrame,
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> Manifest:
    first = 0 if manifest.epoch is None else manifest.epoch + 1
    seconds = {"train": 0.0, "probes": 0.0, **manifest.seconds}
    for epoch in range(first, config.epochs + 1):
        state: State = "complete" if epoch == config.epochs else "unfinished"
        loss = None
        readings: list[Reading] = []
        if epoch > 0:
            start = time.perf_counter()
            trained = program.train_epoch(epoch)
            seconds["train"] += time.perf_counter() - start
            loss = trained.losses[-1].item()
            if config.log == "step":
                rows = pl.concat([rows, _batch_losses(folder.id, epoch, trained.losses, config.batch_size)])
            readings = trained.readings
            if not (torch.isfinite(trained.losses).all() and program.finite()):
                state = "diverged"
        start = time.perf_counter()
        step = epoch * program.steps_per_epoch
        readings = [*readings, *program.evaluate(), *program.probe(epoch)]
        rows = pl.concat([rows, rows_of(folder.id, epoch, readings, steps=itertools.repeat(step))])
        seconds["probes"] += time.perf_counter() - start
        message = f"loss or weights are not finite after epoch {epoch}" if state == "diverged" else None
        tensors = {"weights": safetensors.torch.save(program.weights())}
        if state == "unfinished":
            tensors["resume"] = pack(program.state())
        manifest = replace(
            manifest, state=state, epoch=epoch, step=step, seconds=dict(seconds), message=message
        )
        manifest = folder.commit(manifest, rows, tensors)
        on_progress(Progress(run=folder.id, epoch=epoch, epochs=config.epochs, loss=loss, state=state))
        if state == "diverged" or should_stop():
            break
    return manifest


def _batch_losses(run: str, epoch: int, losses: torch.Tensor, batch_size: int) -> pl.DataFrame:
    """The loss of every batch, with the number of the step it drives: the first is the loss at initialisation."""
    readings = (Reading(metric="batch_loss", value=value, samples=batch_size) for value in losses.tolist())
    return rows_of(run, epoch, readings, steps=itertools.count((epoch - 1) * len(losses) + 1))


def _check_same_data(folder: RunFolder, data: Data) -> None:
    """A run goes on with the samples it began with."""
    began = folder.description()["about"].get("data")
    if began != data.source:
        raise SondeError(
            f"run {folder.id} began with the data {began}, but found {data.source}: name the first with --data-root, "
            f"or remove {folder.path}"
        )


def about(config: RunConfig, program: Program) -> dict[str, Any]:
    """Facts derived from the configuration, for readers that have no torch."""
    return {
        "label": config.model.label,
        "variant": config.model.variant,
        "rule_label": config.rule.label,
        "task_label": config.task.label,
        "depth": config.model.L,
        "width": config.model.d,
        "alpha": config.model.init_scale,
        "steps": config.epochs * program.steps_per_epoch,
        "samples": program.data.train_samples,
        "probe_size": min(config.probes.size, program.data.test_samples),
        "data": program.data.source,
        "gradients": "per sample",  # of grad_norm: the loss is not divided by the probe size
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small matrix products are faster on one thread; the caller's number is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
