"""Train one run into the store."""

from collections.abc import Callable

from sonde.config import RunConfig
from sonde.store.place import Place, place
from sonde.store.run import Manifest
from sonde.training.session import Progress
from sonde.training.together import train_together
from sonde.training.unchanged import refuse_changed


def train(
    config: RunConfig,
    *,
    runs: str | Place = "runs",
    data_root: Place | None = None,
    device: str = "auto",
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Manifest:
    """Bring a run to its end and return its manifest; what is complete is not trained again.

    `should_stop` is asked after every epoch; a run that stops there resumes bit-identically.
    """
    refuse_changed([config], place(runs))
    (manifest,) = train_together(
        [config],
        runs=runs,
        data_root=data_root,
        device=device,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    return manifest


__all__ = ["Progress", "train"]
