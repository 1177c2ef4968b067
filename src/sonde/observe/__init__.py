"""Observe any PyTorch model: watch its training loop, check it before training, test copies of it.

Watch.  `sonde.watch(model, optimizer)` records a loop that you wrote; it needs no configuration of Sonde's.  A recorder
counts steps by the optimisers' own hooks.  In a watched step every watched module has a forward hook, and every output
a tensor hook for its gradient; between watched steps there are none.  The passes of a step are pooled into a step
record of short vectors that stay on the device; many records are transferred at once and turned into rows.  Hooks
never raise and never keep what they see alive; copies, pickles and scripted forms of a watched model have none.
Watching changes no bit of the training.

Check.  `sonde.check(model, x, y, loss)` runs one batch through a float64 copy, and reports signal and gradient by depth
and what is missing, zero or not finite.

Experiments.  Some faults do not show in rows.  Cheap experiments on a copy decide them: overfit one batch, minimise the
loss over free outputs, compute in another precision, start from fresh weights.  Their results are evidence for the
diagnoses of `sonde.analysis`.

Scaling.  `sonde.scaling(make, {"width": [64, 128, 256]})` trains a model for ten steps at several sizes, each a watched
run, and measures three more metrics.  The exponents and verdicts are those of `sonde.analysis.scaling`.

Callbacks for Lightning and Transformers call the same watch.
"""

import math
import sys
import warnings


class WatchWarning(UserWarning):
    """Something that a watch could not do.  Training is not affected."""


def warn(text: str) -> None:
    """Warn once, without ever raising in the training loop: where warnings are errors, print to stderr."""
    try:
        warnings.warn(text, WatchWarning, stacklevel=2)
    except WatchWarning:
        print(f"sonde: {text}", file=sys.stderr)


def finite_or_none(value: float) -> float | None:
    """The value as JSON, which has no infinity, can hold it."""
    return value if math.isfinite(value) else None
