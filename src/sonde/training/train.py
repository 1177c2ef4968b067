"""Train runs into the store: resume what is there, measure and commit every epoch.

Runs that differ only in the seed train as a stack, with one step for all.
"""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from types import TracebackType
from typing import Any, Self, TextIO

import torch

from sonde.config import RunConfig
from sonde.core.errors import printable
from sonde.core.validated import Optimiser
from sonde.models import PlainMLP, ResidualMLP, ResMLP, StudentNet
from sonde.network.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR
from sonde.rules import Backprop, DirectFeedback, FeedbackAlignment, Frozen, RuleState
from sonde.rules.rule import Nothing
from sonde.rules.states import Matrices
from sonde.store import files
from sonde.store.files import Place, place
from sonde.store.folder import clean_up, read_manifest, run_exists
from sonde.store.lock import hold
from sonde.store.schemas import ENDED, Manifest
from sonde.training.backward_by_hand import has_fixed_blocks, step_of
from sonde.training.kernels import LANES, Adam, adam, share, stack_networks
from sonde.training.program import Epoch, EpochLog, Program, learning_rate
from sonde.training.session import EpochProgress, RunSession, one_thread, refuse_changed, resolve_device


def stack_states(states: Sequence[RuleState]) -> RuleState:
    """The states of a rule for R replicas as one state."""
    match states[0]:
        case Nothing():
            return states[0]
        case Matrices():
            columns = zip(*(state.matrices for state in states if isinstance(state, Matrices)), strict=True)
            return Matrices([torch.stack(matrices) for matrices in columns])
        case other:
            raise TypeError(f"a {type(other).__name__} cannot be stacked")


STACKED_MODELS = (PlainMLP, ResMLP, ResidualMLP, StudentNet)
STACKED_RULES = (Backprop, FeedbackAlignment, DirectFeedback, Frozen)
STACKED_OPTIMISERS = ("adam", "adamw")
STACKED_LOSSES = (CROSS_ENTROPY, MEAN_SQUARED_ERROR)
"""The losses that keep replicas apart.  The loss of a task is known only once its data are loaded."""
WIDEST_STACKED = 128  # up to this width a stack is faster, as measured by `sonde bench stacking`


def stackable(config: RunConfig) -> bool:
    """Whether runs of this configuration train as a stack.

    The width must fill whole SIMD vectors: then the last bits of a replica do not depend on the others.  Subclasses are
    excluded, because they may compute something else.
    """
    return (
        type(config.model) in STACKED_MODELS
        and not has_fixed_blocks(config)
        and type(config.rule) in STACKED_RULES
        and config.rule.route != "layer"
        and config.model.d <= WIDEST_STACKED
        and config.model.d % LANES == 0
        and config.precision != "bf16"
        and isinstance(config.optimiser, Optimiser)
        and config.optimiser.name in STACKED_OPTIMISERS
    )


class Stack:
    """Trains programs that differ only in the seed and are at the same epoch.

    Weights and moments of each program become views of the stacked tensors.  So between two epochs each program is
    evaluated, probed and saved as if it were alone.  Each draws batches from its own data and generator.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = programs
        self.config = programs[0].config
        self.loss = programs[0].loss
        self.net = stack_networks([program.net for program in programs])
        self.state = stack_states([program.credit.state for program in programs])
        self.backward = step_of(self.config, self.net, self.state, self.loss)
        names = [name for name, _ in programs[0].net.named_parameters()]
        stacked = dict(self.net.named_parameters())
        self.optimiser = adam(self.config.optimiser, [stacked[name] for name in names])
        self._join([program.optimiser for program in programs if isinstance(program.optimiser, Adam)])

    def _join(self, optimisers: Sequence[Adam]) -> None:
        """Copy the moments into the stack; those of the programs become views."""
        self.optimiser.steps.copy_(optimisers[0].steps)
        for stacked, replicas in (
            (self.optimiser.first, [optimiser.first for optimiser in optimisers]),
            (self.optimiser.second, [optimiser.second for optimiser in optimisers]),
        ):
            for index, whole in enumerate(stacked):
                views = share([moments[index] for moments in replicas], whole)
                for moments, view in zip(replicas, views, strict=True):
                    moments[index] = view
        for optimiser in optimisers:
            optimiser.steps = self.optimiser.steps

    def train_epoch(self, epoch: int, on_step: Callable[[], object] = lambda: None) -> list[Epoch]:
        """Train one epoch of every program; `on_step` is called after every step."""
        config = self.config
        lr = learning_rate(config.optimiser, epoch, config.epochs)
        log = EpochLog(self.loss, self.net.lead)
        self.net.train()
        batches = (program.data.batches(config.batch_size, program.order) for program in self.programs)
        for replicas in zip(*batches, strict=True):
            x = torch.stack([x for x, _ in replicas])
            y = x if replicas[0][0] is replicas[0][1] else torch.stack([y for _, y in replicas])
            step = self.backward(x, y)
            self.optimiser.step(lr)
            log.add(step, y)
            on_step()
        return log.read()


def train_together(
    configs: Sequence[RunConfig],
    *,
    runs: str | Place = "runs",
    data_root: Place | None = None,
    device: str = "auto",
    on_progress: Callable[[EpochProgress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    node: str | None = None,
    study: str | None = None,
) -> list[Manifest]:
    """Train every run to its end and return their manifests, in order; a run that has ended is not trained again.

    The runs differ only in the seed.  Small networks that are at the same epoch train as a stack; the bits of a run do
    not depend on the others.  `should_stop` is called after every epoch; a run that stops there resumes
    bit-identically.  `node` is the name of this cluster node, for the manifests; `study` names the study that asks.
    """
    root = files.make_folder(place(runs))
    paths = [root / config.id for config in configs]
    with ExitStack() as held, one_thread():
        heartbeats = [held.enter_context(hold(root, path.name)) for path in paths]
        left = []
        for config, path in zip(configs, paths, strict=True):
            if run_exists(path) and (manifest := read_manifest(path)).state in ENDED:
                clean_up(path, manifest)
            else:
                left.append((config, path))
        if left:
            where = resolve_device(device)
            _advance(
                [RunSession(config, path, data_root, where, len(left), node, study) for config, path in left],
                on_progress,
                should_stop,
                lambda: [renew() for renew in heartbeats],
            )
        return [read_manifest(path) for path in paths]


def _advance(
    sessions: list[RunSession],
    on_progress: Callable[[EpochProgress], None],
    should_stop: Callable[[], bool],
    heartbeat: Callable[[], object],
) -> None:
    """Train epoch by epoch, the runs that are behind first; a run that diverges does not stop the others."""
    together: list[RunSession] = []
    stack: Stack | None = None
    while sessions:
        epoch = min(session.next_epoch for session in sessions)
        if (behind := [session for session in sessions if session.next_epoch == epoch]) != together:
            together, stack = behind, _stack_of(behind)
        wall, cpu = time.perf_counter(), time.process_time()
        trained: Sequence[Epoch | None]
        if epoch == 0:
            trained = [None] * len(together)
        elif stack is not None:
            trained = stack.train_epoch(epoch, heartbeat)
        else:
            trained = [session.program.train_epoch(epoch, heartbeat) for session in together]
        seconds = (time.perf_counter() - wall) / len(together)
        processor = (time.process_time() - cpu) / len(together)
        for session, result in zip(together, trained, strict=True):
            progress = session.commit(result, seconds, processor)
            heartbeat()
            on_progress(progress)
            if progress.state in ENDED:
                sessions.remove(session)
        if should_stop():
            return


def _stack_of(sessions: Sequence[RunSession]) -> Stack | None:
    """The runs as a stack, where they can train as one."""
    programs = [session.program for session in sessions]
    return Stack(programs) if stackable(sessions[0].config) and programs[0].loss in STACKED_LOSSES else None


def train(
    config: RunConfig,
    *,
    runs: str | Place = "runs",
    data_root: Place | None = None,
    device: str = "auto",
    progress: bool = True,
    on_progress: Callable[[EpochProgress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Manifest:
    """Train a run to its end, store it and return its manifest.  A run that has ended is not trained again.

        config = sonde.RunConfig(model=sonde.models.ResidualMLP(d=64, L=4), rule=sonde.rules.DirectFeedback(),
                                 task=sonde.tasks.Digits(), epochs=10, seed=42)
        sonde.train(config)
        sonde.load("runs").frame()

    Args:
        config: What to train: model, rule, task, optimiser, probes, epochs, seed.  Its digest is part of the run's id.
        runs: The store: a folder, which is created if need be, or a URL such as `s3://bucket/prefix`.
        data_root: The folder or URL of the data sets.  The default is SONDE_DATA, else the user's cache folder.
        device: `auto`, `cpu`, `cuda` or `mps`; `auto` takes a GPU where there is one.
        progress: Whether to show one line of progress, on a terminal and in a notebook.
        on_progress: Called after every epoch with its `EpochProgress`: run, epoch, epochs, loss, state.
        should_stop: Called after every epoch.  If it returns True, training stops there, and the next call resumes
            with the same bits.

    Returns:
        The manifest: `state` (`complete`, `diverged` or `unfinished`), `epoch`, `step`, `seconds` and the files.

    Raises:
        SondeError: If another process trains this run, the data are missing, the network does not fit into memory, or
            a plugin's file changed since the run began.
    """
    refuse_changed([config], place(runs))
    with ProgressLine(config.id, config.epochs) if progress else nullcontext() as line:

        def report(reached: EpochProgress) -> None:
            if line is not None:
                line(reached)
            on_progress(reached)

        (manifest,) = train_together(
            [config],
            runs=runs,
            data_root=data_root,
            device=device,
            on_progress=report,
            should_stop=should_stop,
        )
    return manifest


_BAR_WIDTH = 24  # characters


class ProgressLine:
    """Shows the progress of a run in one line, which stays in a notebook and is cleared on a terminal."""

    def __init__(self, run: str, epochs: int) -> None:
        self.run, self.epochs = run, epochs
        self.terminal: TextIO | None = None
        self.cell: Any = None

    def __enter__(self) -> Self:
        if (display := _notebook_display()) is not None:
            self.cell = display(_text(self.start), raw=True, display_id=True)
        elif sys.stderr is not None and sys.stderr.isatty():
            self.terminal = sys.stderr
            self._write(self.start)
        return self

    @property
    def start(self) -> str:
        """The line before the first epoch."""
        return f"{self.run}: {_bar(0, self.epochs)} 0/{self.epochs} epochs"

    def __call__(self, progress: EpochProgress) -> None:
        done = f"{progress.epoch}/{progress.epochs} epochs"
        loss = "" if progress.loss is None else f", loss {progress.loss:.4g}"
        state = "" if progress.state == "unfinished" else f", {progress.state}"
        line = f"{progress.run}: {_bar(progress.epoch, progress.epochs)} {done}{loss}{state}"
        if self.cell is not None:
            self.cell.update(_text(line), raw=True)
        elif self.terminal is not None:
            self._write(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.terminal is not None:
            self._write("")

    def _write(self, line: str) -> None:
        """Replace the line; cut it to the width of the terminal."""
        assert self.terminal is not None
        self.terminal.write(f"\r{printable(line)[: shutil.get_terminal_size().columns - 1]}\x1b[K")
        self.terminal.flush()


def _bar(done: int, total: int) -> str:
    filled = _BAR_WIDTH * done // max(total, 1)
    return "━" * filled + "─" * (_BAR_WIDTH - filled)


def _text(line: str) -> dict[str, str]:
    return {"text/plain": printable(line)}


def _notebook_display() -> Any:
    """IPython's `display` in a notebook, else None."""
    if (ipython := sys.modules.get("IPython")) is None:
        return None
    shell = ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display

    return display
