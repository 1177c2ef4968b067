"""One run between the store and its program: opened, trained an epoch at a time, committed."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import polars as pl
import safetensors.torch
import torch

from sonde import plugins
from sonde.config import RunConfig, label_of, to_tree, younger
from sonde.core.errors import SondeError
from sonde.core.run_ids import config_digest
from sonde.metrics.rows import Reading, rows_of
from sonde.plugins.source import Source
from sonde.store.files import Place
from sonde.store.folder import RunFolder
from sonde.store.listing import present_runs
from sonde.store.run import describe_environment
from sonde.store.schemas import ENDED, RunState
from sonde.store.trash import remove_without_epoch
from sonde.tasks import Data
from sonde.training.device import refuse_too_large
from sonde.training.program import DTYPES, Epoch, Program
from sonde.training.tensors import pack, unpack


@dataclass(frozen=True, kw_only=True)
class EpochProgress:
    """The state of a run after an epoch."""

    run: str
    epoch: int
    epochs: int
    loss: float | None
    state: str


class RunSession:
    """A run that has not ended, restored to its last committed epoch.  The caller holds the run's lock."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        data_root: Place | None,
        device: torch.device,
        together: int,
        node: str | None,
        study: str | None = None,
    ) -> None:
        self.config, self.folder = config, folder
        refuse_too_large(config, device)
        data = config.task.load(config.seed, data_root, device, DTYPES[config.precision])
        self.program = Program(config, data, device)
        if not folder.exists():
            facts = facts_of(config, self.program)
            code = plugins.copies(config.sources)
            known = {"name": study, "scale": config.scale} if study else None
            folder.create(to_tree(config), facts, younger(config), code, known)
        _check_same_run(config, folder, data)
        manifest, self.rows = folder.read()
        folder.clean_up(manifest)
        session: dict[str, Any] = {
            "from_epoch": manifest.epoch,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "together": together,
            "environment": describe_environment(torch.get_num_threads(), str(device)),
        }
        if node is not None:
            session["node"] = node
        self.manifest = replace(manifest, state="unfinished", sessions=[*manifest.sessions, session])
        self.seconds = {"train": 0.0, "probes": 0.0, **manifest.seconds}
        if manifest.epoch is None:
            self.seconds["processor"] = 0.0  # CPU time of training; a run that began in 0.1.0 has none
        else:
            weights = safetensors.torch.load(folder.tensors("weights"))
            try:
                self.program.restore(weights, unpack(folder.tensors("resume")))
            except KeyError as error:
                raise SondeError(
                    f"run {folder.id} was stopped by another version, whose state has no {error}: move "
                    f"{folder.path} away to train it from the start"
                ) from None

    @property
    def next_epoch(self) -> int:
        """The epoch to be committed next; 0 is the initial state."""
        return 0 if self.manifest.epoch is None else self.manifest.epoch + 1

    def commit(self, trained: Epoch | None, seconds: float, processor: float) -> EpochProgress:
        """Measure the trained epoch (None: the initial state) and commit it to the store.

        `seconds` is the wall time of its training, `processor` the CPU time.
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
        return EpochProgress(run=self.folder.id, epoch=epoch, epochs=config.epochs, loss=loss, state=state)

    def _add_batch_losses(self, epoch: int, trained: Epoch) -> None:
        """Add the loss of every batch with the number of its step; the first is the loss at initialisation."""
        batches = zip(trained.losses.tolist(), trained.sizes, strict=True)
        readings = (Reading(metric="batch_loss", value=value, samples=samples) for value, samples in batches)
        steps = itertools.count((epoch - 1) * len(trained.sizes) + 1)
        self._add(rows_of(self.folder.id, epoch, readings, steps=steps))

    def _add(self, rows: pl.DataFrame) -> None:
        self.rows = pl.concat([self.rows, rows])


def _check_same_run(config: RunConfig, folder: RunFolder, data: Data) -> None:
    """Raise unless the stored run has this configuration and these data."""
    description = folder.description()
    if config_digest(description["config"]) != config.digest:
        raise SondeError(
            f"{folder.path} holds a run of another configuration under this id: move it away to train it from the start"
        )
    began = description["about"].get("data")
    if began != data.source:
        raise SondeError(
            f"run {folder.id} began with the data {began}, but found {data.source}: name the first with --data-root, "
            f"or move {folder.path} away"
        )


def facts_of(config: RunConfig, program: Program) -> dict[str, Any]:
    """Facts derived from the configuration, stored as `about` for readers without torch."""
    return {
        "label": label_of("model", config.model),
        "variant": getattr(config.model, "variant", None),
        "rule_label": label_of("rule", config.rule),
        "task_label": label_of("task", config.task),
        "depth": len(program.net.blocks),
        "reader": program.net.pooling.name if program.net.pooling else None,  # the pooling; `reader` is the stored name
        "width": getattr(config.model, "d", program.width),
        "alpha": getattr(config.model, "init_scale", None),
        "steps": config.epochs * program.steps_per_epoch,
        "samples": program.data.train_samples,
        "probe_size": min(config.probes.size, program.data.test_samples),
        "data": program.data.source,
        "gradients": "per sample",  # grad_norm is of the loss of a sample, not of the mean
    }


def refuse_changed(configs: Sequence[RunConfig], runs: Place) -> None:
    """Raise where the store has an unfinished run that differs only in the content of a plugin's file.

    One that stored no epoch is removed instead.
    """
    with_plugins = [config for config in configs if config.sources]
    present = present_runs(runs) if with_plugins else []
    for config in with_plugins:
        prefix = config.id.rpartition("-")[0] + "-"
        for id in present:
            if id.startswith(prefix) and id != config.id:
                _refuse_changed_plugin(config, RunFolder(runs / id))


def _refuse_changed_plugin(config: RunConfig, folder: RunFolder) -> None:
    manifest = folder.manifest()
    if manifest.state in ENDED:
        return
    tree, stored = to_tree(config), folder.description()["config"]
    stamps, before = _stamps(tree), _stamps(stored)
    if stamps.keys() != before.keys() or _without_stamps(tree) != _without_stamps(stored):
        return
    file = next(where for where, stamp in stamps.items() if before[where] != stamp)
    if manifest.epoch is None:  # nothing is lost
        remove_without_epoch(folder.path.parent, folder.id)
        return
    source = Source.parse(file)
    kept = f"put back {folder.path / source.where}" if source.is_file else "put the first one back"
    raise SondeError(
        f"{source.where} has changed since run {folder.id} began, which is at epoch {manifest.epoch} of "
        f"{config.epochs}: {kept} to finish it, or `sonde rm {folder.id} --runs {folder.path.parent}` to begin again "
        "with the file as it is now"
    )


def _stamps(tree: Mapping[str, Any]) -> dict[str, str | None]:
    """Plugin → the stamp of its file."""
    sources = [section["source"] for section in tree.values() if isinstance(section, dict) and "source" in section]
    probes = [name for name in (*tree["probes"]["names"], *tree["probes"]["costly"]) if "@" in name]
    return {text.partition("@")[0]: Source.parse(text).stamp for text in (*sources, *probes)}


def _without_stamps(value: Any) -> Any:
    """The tree with `mine.py:Mine` in place of `mine.py:Mine@stamp`."""
    if isinstance(value, Mapping):
        return {key: _without_stamps(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_stamps(inner) for inner in value]
    return value.partition("@")[0] if isinstance(value, str) else value
