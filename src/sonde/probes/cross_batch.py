"""Do different batches ask for the same change?  B batches, N samples each, d width."""

from collections.abc import Iterator

import torch
from torch import Tensor

from sonde.network import leaf_at
from sonde.probes.norms import cosines
from sonde.probes.snapshot import Snapshot
from sonde.rows import Reading, undefined

BATCH = 128
BATCHES = 8


def cross_batch_cosine(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean pairwise cosine of the batch-mean BP gradient at layer L//2, over 8 disjoint batches of 128 test samples.

    Where there are fewer samples, over as many such batches as there are.
    """
    metric, layer = "cross_batch_cosine", snapshot.depth // 2
    available = min(BATCHES, snapshot.context.test_samples // BATCH)
    if snapshot.context.test is None or available < 2:
        yield undefined(metric, f"fewer than two batches of {BATCH} test samples", layer=layer)
        return
    means = []
    for first in range(0, available * BATCH, BATCH):
        mean_d = _gradient(snapshot, layer, *snapshot.context.test(first, first + BATCH)).mean(0)
        if mean_d.isfinite().all() and mean_d.any():
            means.append(mean_d)
    if len(means) < 2:
        why = "fewer than two batches have a gradient that is finite and not zero"
        reason = snapshot.unread[layer] or why
        yield undefined(metric, reason, layer=layer, samples=len(means) * BATCH)
        return
    means_Bd = torch.stack(means)
    one, other = torch.triu_indices(len(means), len(means), offset=1)
    value = cosines(means_Bd[one], means_Bd[other]).mean().item()
    yield Reading(metric=metric, layer=layer, value=value, samples=len(means) * BATCH)


def _gradient(snapshot: Snapshot, layer: int, x: Tensor, y: Tensor) -> Tensor:
    """g_l of each sample at what is read, N×d."""
    x, y = (value.to(snapshot.losses_N.device) for value in (x, y))
    x, y = (value.double() if value.is_floating_point() else value for value in (x, y))
    with torch.enable_grad():
        passed = snapshot.net.run(x, leaf_at(layer))
        losses_N = snapshot.loss.per_sample(passed.output, y)
        (g,) = torch.autograd.grad(losses_N.sum(), passed.states[layer], materialize_grads=True)
    return snapshot.reader.credit(g)
