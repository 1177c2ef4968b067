"""One run between the store and its program: opened on a device, trained an epoch at a time, committed."""

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

import polars as pl
import safetensors.torch
import torch

from sonde import plugins
from sonde.config import RunConfig, label_of, to_tree, younger
from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.core.run_ids import config_digest
from sonde.metrics.rows import Reading, rows_of
from sonde.plugins.source import Source
from sonde.store.files import Place
from sonde.store.folder import clean_up, commit, create_run, read_description, read_manifest, read_tensors, run_exists
from sonde.store.listing import present_runs, remove_without_epoch
from sonde.store.run import Run, describe_environment, open_run, read_rows
from sonde.store.schemas import ENDED, RunState
from sonde.tasks import Data
from sonde.training.program import DTYPES, Epoch, Program, pack, unpack


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
        path: Place,
        data_root: Place | None,
        device: torch.device,
        together: int,
        node: str | None,
        study: str | None = None,
    ) -> None:
        self.config, self.path = config, path
        refuse_too_large(config, device)
        data = config.task.load(config.seed, data_root, device, DTYPES[config.precision])
        self.program = Program(config, data, device)
        if not run_exists(path):
            facts = facts_of(config, self.program)
            code = plugins.copies(config.sources)
            known = {"name": study, "scale": config.scale} if study else None
            create_run(path, to_tree(config), facts, younger(config), code, known)
        run = open_run(path)
        _check_same_run(config, run, data)
        manifest, self.rows = read_rows(run)
        clean_up(path, manifest)
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
            weights = safetensors.torch.load(read_tensors(path, "weights"))
            try:
                self.program.restore(weights, unpack(read_tensors(path, "resume")))
            except KeyError as error:
                raise SondeError(
                    f"run {run.id} was stopped by another version, whose state has no {error}: move "
                    f"{path} away to train it from the start"
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
        self._add(rows_of(self.config.id, epoch, readings, steps=itertools.repeat(step)))
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
        self.manifest = commit(self.path, manifest, self.rows, tensors)
        loss = None if trained is None else trained.losses[-1].item()
        return EpochProgress(run=self.config.id, epoch=epoch, epochs=config.epochs, loss=loss, state=state)

    def _add_batch_losses(self, epoch: int, trained: Epoch) -> None:
        """Add the loss of every batch with the number of its step; the first is the loss at initialisation."""
        batches = zip(trained.losses.tolist(), trained.sizes, strict=True)
        readings = (Reading(metric="batch_loss", value=value, samples=samples) for value, samples in batches)
        steps = itertools.count((epoch - 1) * len(trained.sizes) + 1)
        self._add(rows_of(self.config.id, epoch, readings, steps=steps))

    def _add(self, rows: pl.DataFrame) -> None:
        self.rows = pl.concat([self.rows, rows])


def _check_same_run(config: RunConfig, run: Run, data: Data) -> None:
    """Raise unless the stored run has this configuration and was trained on these data."""
    if config_digest(run.config) != config.digest:
        raise SondeError(
            f"{run.path} holds a run of another configuration under this id: move it away to train it from the start"
        )
    began = run.about.get("data")
    if began != data.source:
        raise SondeError(
            f"run {run.id} began with the data {began}, but found {data.source}: name the first with --data-root, "
            f"or move {run.path} away"
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
                _refuse_changed_plugin(config, runs / id)


def _refuse_changed_plugin(config: RunConfig, path: Place) -> None:
    manifest = read_manifest(path)
    if manifest.state in ENDED:
        return
    tree, stored = to_tree(config), read_description(path, manifest)["config"]
    stamps, before = _stamps(tree), _stamps(stored)
    if stamps.keys() != before.keys() or _without_stamps(tree) != _without_stamps(stored):
        return
    file = next(where for where, stamp in stamps.items() if before[where] != stamp)
    if manifest.epoch is None:  # nothing is lost
        remove_without_epoch(path.parent, path.name)
        return
    source = Source.parse(file)
    kept = f"put back {path / source.where}" if source.is_file else "put the first one back"
    raise SondeError(
        f"{source.where} has changed since run {path.name} began, which is at epoch {manifest.epoch} of "
        f"{config.epochs}: {kept} to finish it, or `sonde rm {path.name} --runs {path.parent}` to begin again "
        "with the file as it is now"
    )


def _stamps(tree: Mapping[str, Any]) -> dict[str, str | None]:
    """The source of each plugin without its stamp → the stamp."""
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


# ── device, threads and memory ──────────────────────────────────────────────────────────────────────
def resolve_device(name: str) -> torch.device:
    """The device of that name; `auto` takes CUDA, then Apple's GPU, then the CPU."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in present.items() if there)
    if not present.get(name, False):
        raise SondeError(
            f"device {name!r} is not there: use one of {', '.join(k for k, v in present.items() if v)} or auto"
        )
    return torch.device(name)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread inside the context: small matrix products are faster so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_DEEP, _WIDE = 1_000, 1_024  # smaller networks are not checked
_PER_WEIGHT = 4 * 3 + 8  # bytes: the weight, its gradient, its initial value, and the float64 copy of probes


def refuse_too_large(config: RunConfig, device: torch.device) -> None:
    """Raise where a network needs more memory than there is; only models with options `L` and `d` are checked."""
    model = config.model
    if not {"L", "d"} <= {field.name for field in fields(model)} or (model.L < _DEEP and model.d <= _WIDE):  # type: ignore[arg-type]
        return
    needed, there = least_memory(config), memory_of(device)
    if there is not None and needed > there:
        raise SondeError(
            f"model.L = {model.L} with model.d = {model.d} takes at least {needed / 1e9:,.0f} GB of memory, and "
            f"{'this machine' if device.type == 'cpu' else device} has {there / 1e9:,.0f} GB: "
            "choose a smaller model.L or model.d"
        )


def least_memory(config: RunConfig) -> int:
    """A lower bound in bytes: weights of the blocks, and their states for a batch and for the probe samples."""
    model = config.model
    width = min(model.d, _WIDE)

    def weights(depth: int) -> int:
        small = replace(model, L=depth, d=width)  # type: ignore[type-var]
        net = small.build(config.signature, generator(0, "init"))
        return sum(weight.numel() for weight in net.parameters())

    block = (weights(2) - weights(1)) * model.d**2 // width**2
    states = model.d * (4 * config.batch_size + 8 * config.probes.size)
    return model.L * (_PER_WEIGHT * block + states)


def memory_of(device: torch.device) -> int | None:
    """The total memory of the device in bytes; None where it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
