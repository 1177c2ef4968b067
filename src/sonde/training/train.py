"""Train runs into the store: resume what is there, measure every epoch, commit every epoch."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext

from sonde.config import RunConfig
from sonde.store import files
from sonde.store.files import Place, place
from sonde.store.folder import RunFolder
from sonde.store.lock import hold
from sonde.store.schemas import ENDED, Manifest
from sonde.training.changed_plugins import refuse_changed
from sonde.training.device import one_thread, resolve_device
from sonde.training.epoch import Epoch
from sonde.training.progress_line import ProgressLine
from sonde.training.session import Progress, Session
from sonde.training.stack import STACKED_LOSSES, Stack, stackable


def train_together(
    configs: Sequence[RunConfig],
    *,
    runs: str | Place = "runs",
    data_root: Place | None = None,
    device: str = "auto",
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    node: str | None = None,
) -> list[Manifest]:
    """Bring every run to its end and return their manifests, in order; what has ended is not trained again.

    The runs differ in nothing but the seed.  A network small enough for it is trained as a stack, with as many
    replicas as stand at the same epoch: what a run computes does not depend on who is trained beside it.
    `should_stop` is asked after every epoch; a run that stops there resumes bit-identically.
    The manifests name the `node` of a cluster that this is.
    """
    root = files.make_folder(place(runs))
    folders = [RunFolder(root / config.id) for config in configs]
    with ExitStack() as held, one_thread():
        beats = [held.enter_context(hold(root, folder.id)) for folder in folders]
        left = []
        for config, folder in zip(configs, folders, strict=True):
            if folder.exists() and (manifest := folder.manifest()).state in ENDED:
                folder.clean_up(manifest)
            else:
                left.append((config, folder))
        if left:
            where = resolve_device(device)
            _advance(
                [Session(config, folder, data_root, where, len(left), node) for config, folder in left],
                on_progress,
                should_stop,
                lambda: [beat() for beat in beats],
            )
        return [folder.manifest() for folder in folders]


def _advance(
    sessions: list[Session],
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
    beat: Callable[[], object],
) -> None:
    """Epoch after epoch, those that are behind first; one that diverges leaves the others to go on."""
    trainer = Trainer()
    while sessions:
        epoch = min(session.next_epoch for session in sessions)
        abreast = [session for session in sessions if session.next_epoch == epoch]
        trainer.gather(abreast)
        start, begun = time.perf_counter(), time.process_time()
        trained = trainer.train(epoch, beat) if epoch > 0 else [None] * len(abreast)
        seconds = (time.perf_counter() - start) / len(abreast)
        processor = (time.process_time() - begun) / len(abreast)
        for session, result in zip(abreast, trained, strict=True):
            progress = session.commit(result, seconds, processor)
            beat()
            on_progress(progress)
            if progress.state in ENDED:
                sessions.remove(session)
        if should_stop():
            return


class Trainer:
    """Trains the runs that stand at one epoch: as a stack, or one after the other."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.stack: Stack | None = None

    def gather(self, sessions: list[Session]) -> None:
        if sessions != self.sessions:
            self.sessions = sessions
            programs = [session.program for session in sessions]
            together = stackable(sessions[0].config) and programs[0].loss in STACKED_LOSSES
            self.stack = Stack(programs) if together else None

    def train(self, epoch: int, beat: Callable[[], object]) -> Sequence[Epoch | None]:
        if self.stack is not None:
            return self.stack.train_epoch(epoch, beat)
        return [session.program.train_epoch(epoch, beat) for session in self.sessions]


def train(
    config: RunConfig,
    *,
    runs: str | Place = "runs",
    data_root: Place | None = None,
    device: str = "auto",
    progress: bool = True,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Manifest:
    """Bring a run to its end and return its manifest; what is complete is not trained again.

    `progress` shows one line, on a terminal and in a notebook.  `should_stop` is asked after every epoch; a run that
    stops there resumes bit-identically.
    """
    refuse_changed([config], place(runs))
    with ProgressLine(config.id, config.epochs) if progress else nullcontext() as line:

        def report(reached: Progress) -> None:
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
