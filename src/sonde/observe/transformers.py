"""Watch what a `transformers.Trainer` trains: `Trainer(..., callbacks=[WatchCallback(runs="runs")])`."""

from collections.abc import Callable
from typing import Any

from sonde.core.errors import SondeError, installation
from sonde.observe.watch import Watch, watch
from sonde.observe.watched_modules import Layers
from sonde.store.files import Place

try:
    from transformers import TrainerCallback
except ImportError:
    raise SondeError(f"the callback needs transformers: {installation('transformers')}") from None


class WatchCallback(TrainerCallback):  # type: ignore[misc]
    """`sonde.watch` for as long as `train` lasts; the loss is the one in the model's output.

    `loss`, a function of (output, y), is for the experiments of `watch.diagnose(batch=…)`, and not recorded; without
    it they take the model's own.
    """

    def __init__(
        self,
        *,
        loss: Callable[..., Any] | None = None,
        runs: str | Place | None = "runs",
        name: str | None = None,
        layers: Layers = None,
        every: int = 25,
    ) -> None:
        self._loss = loss
        self._options: dict[str, Any] = {"runs": runs, "name": name, "layers": layers, "every": every}
        self.watch: Watch | None = None  # while and after `train`

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Begin to watch the model and its optimiser."""
        self.watch = watch(known["model"], known["optimizer"], **self._options)
        self.watch.experiment_with(self._loss)

    def on_train_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Write what is left and mark the run as complete."""
        if self.watch is not None:
            self.watch.close()
