"""One run between the store and the program that trains it: opened, advanced an epoch at a time, committed."""

import itertools
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import polars as pl
import safetensors.torch
import torch

from sonde import plugins
from sonde.config import RunConfig, label_of, to_tree, younger
from sonde.core.errors import SondeError
from sonde.core.run_ids import digest
from sonde.metrics.rows import Reading, rows_of
from sonde.store.environment import describe
from sonde.store.files import Place
from sonde.store.folder import RunFolder
from sonde.store.schemas import RunState
from sonde.tasks import Data
from sonde.training.epoch import Epoch
from sonde.training.memory import refuse_too_large
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


class Session:
    """A run that is held and not ended, brought back to where the store has it."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        data_root: Place | None,
        device: torch.device,
        together: int,
        node: str | None,
    ) -> None:
        self.config, self.folder = config, folder
        refuse_too_large(config, device)
        data = config.task.load(config.seed, data_root, device, DTYPES[config.precision])
        self.program = Program(config, data, device)
        if not folder.exists():
            known = about(config, self.program)
            folder.create(to_tree(config), known, younger(config), plugins.copies(config.sources))
        _check_same_run(config, folder, data)
        manifest, self.rows = folder.read()
        folder.clean_up(manifest)
        session: dict[str, Any] = {
            "from_epoch": manifest.epoch,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "together": together,
            "environment": describe(torch.get_num_threads(), str(device)),
        }
        if node is not None:
            session["node"] = node
        self.manifest = replace(manifest, state="unfinished", sessions=[*manifest.sessions, session])
        self.seconds = {"train": 0.0, "probes": 0.0, **manifest.seconds}
        if manifest.epoch is None:
            self.seconds["processor"] = 0.0  # of training; not of a run that began without counting it
        if manifest.epoch is not None:
            weights = safetensors.torch.load(folder.tensors("weights"))
            try:
                self.program.restore(weights, unpack(folder.tensors("resume")))
            except KeyError as error:
                raise SondeError(
                    f"run {folder.id} was stopped by another version, whose state has no {error}: move "
                    f"{folder.path} away to train it anew"
                ) from None

    @property
    def next_epoch(self) -> int:
        return 0 if self.manifest.epoch is None else self.manifest.epoch + 1

    def commit(self, trained: Epoch | None, seconds: float, processor: float) -> Progress:
        """Measure the epoch that was trained (none: the initial state), and make it visible.

        Training took so many seconds by the clock, and so many of the processor.
        """
        config, program, epoch = self.config, self.program, self.next_epoch
        state: RunState = "complete" if epoch == config.epochs else "unfinished"
        readings: list[Reading] = []
        self.seconds["train"] += seconds
        if "processor" in self.seconds:
            self.seconds["processor"] += processor
        if trained is not None:
            readings = trained.readings
            if config.log == "step":
                self._add_batch_losses(epoch, trained)
            if not (torch.isfinite(trained.losses).all() and program.finite()):
                state = "diverged"
        start = time.perf_counter()
        step = epoch * program.steps_per_epoch
        if state != "unfinished" or config.probes.tests(epoch, config.epochs):
            readings = [*readings, *program.evaluate()]
        readings = [*readings, *program.probe(epoch)]
        self._add(rows_of(self.folder.id, epoch, readings, steps=itertools.repeat(step)))
        self.seconds["probes"] += time.perf_counter() - start
        tensors = {"weights": safetensors.torch.save(program.weights())}
        if state == "unfinished":
            tensors["resume"] = pack(program.state())
        else:
            tensors["initial"] = safetensors.torch.save(program.initial)
            tensors["rule"] = pack(program.credit.state_dict())
        manifest = replace(
            self.manifest,
            state=state,
            epoch=epoch,
            step=step,
            seconds=dict(self.seconds),
            message=f"loss or weights are not finite after epoch {epoch}" if state == "diverged" else None,
        )
        self.manifest = self.folder.commit(manifest, self.rows, tensors)
        loss = None if trained is None else trained.losses[-1].item()
        return Progress(run=self.folder.id, epoch=epoch, epochs=config.epochs, loss=loss, state=state)

    def _add_batch_losses(self, epoch: int, trained: Epoch) -> None:
        """The loss of every batch, with the number of the step it drives: the first is the loss at initialisation."""
        batches = zip(trained.losses.tolist(), trained.sizes, strict=True)
        readings = (Reading(metric="batch_loss", value=value, samples=samples) for value, samples in batches)
        steps = itertools.count((epoch - 1) * len(trained.sizes) + 1)
        self._add(rows_of(self.folder.id, epoch, readings, steps=steps))

    def _add(self, rows: pl.DataFrame) -> None:
        self.rows = pl.concat([self.rows, rows])


def _check_same_run(config: RunConfig, folder: RunFolder, data: Data) -> None:
    """A run goes on with the configuration and the samples it began with."""
    described = folder.description()
    if digest(described["config"]) != config.digest:
        raise SondeError(
            f"{folder.path} holds a run of another configuration under this id: move it away to train it anew"
        )
    began = described["about"].get("data")
    if began != data.source:
        raise SondeError(
            f"run {folder.id} began with the data {began}, but found {data.source}: name the first with --data-root, "
            f"or move {folder.path} away"
        )


def about(config: RunConfig, program: Program) -> dict[str, Any]:
    """Facts derived from the configuration, for readers that have no torch."""
    return {
        "label": label_of("model", config.model),
        "variant": getattr(config.model, "variant", None),
        "rule_label": label_of("rule", config.rule),
        "task_label": label_of("task", config.task),
        "depth": len(program.net.blocks),
        "reader": program.net.reader.name if program.net.reader else None,  # which vector of a sample is read
        "width": getattr(config.model, "d", program.width),
        "alpha": getattr(config.model, "init_scale", None),
        "steps": config.epochs * program.steps_per_epoch,
        "samples": program.data.train_samples,
        "probe_size": min(config.probes.size, program.data.test_samples),
        "data": program.data.source,
        "gradients": "per sample",  # of grad_norm: the loss is not divided by the probe size
    }
