"""Watch what a Lightning `Trainer` trains: `Trainer(callbacks=[WatchCallback(runs="runs")])`."""

import sys
from collections.abc import Callable
from typing import Any

from sonde.core.errors import SondeError, installation
from sonde.observe.watch import Watch, watch
from sonde.observe.watched_modules import Layers
from sonde.store.files import Place


def _callback() -> Any:
    """Lightning's base class; of the older package where that is the one in use."""
    older = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    try:
        if older:
            from pytorch_lightning import Callback
        else:
            from lightning.pytorch import Callback
    except ImportError:
        raise SondeError(f"the callback needs Lightning: {installation('lightning')}") from None
    return Callback


class WatchCallback(_callback()):  # type: ignore[misc]
    """`sonde.watch` for as long as `fit` lasts, with the loss that `training_step` returns.

    `loss`, a function of (output, y), is for the experiments of `watch.diagnose(batch=…)`, and not recorded.
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
        super().__init__()
        self._loss = loss
        self._options: dict[str, Any] = {"runs": runs, "name": name, "layers": layers, "every": every}
        self.watch: Watch | None = None  # while and after `fit`

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch the module and its optimisers."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.watch = watch(pl_module, *trainer.optimizers, scaler=scaler, **self._options)
        self.watch.experiment_with(self._loss)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the loss, without the division by accumulated batches."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self.watch is None or loss is None:
            return
        divided_by = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        self.watch.log(loss * divided_by)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what is left and mark the run as complete."""
        if self.watch is not None:
            self.watch.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Mark the run as stopped by the exception."""
        if self.watch is not None:
            self.watch.__exit__(type(exception), exception, None)
