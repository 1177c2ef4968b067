"""What the steps of an epoch leave to be read, kept on the device until its end.  N samples, C outputs."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sonde.metrics.rows import Reading
from sonde.network.losses import Loss
from sonde.training.step import Step


@dataclass(frozen=True)
class Epoch:
    """The loss and the size of every batch, and what was averaged over the epoch."""

    losses: Tensor
    sizes: list[int]
    readings: list[Reading]


class EpochLog:
    """Collects steps without waiting for the device; `lead` axes stand before the samples."""

    def __init__(self, loss: Loss, lead: int = 0) -> None:
        self.loss, self.lead = loss, lead
        self.sizes: list[int] = []  # of the batches
        self.losses: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.others: dict[str, list[Tensor]] = {}

    def add(self, step: Step, y: Tensor) -> None:
        self.sizes.append(y.shape[self.lead])
        self.losses.append(step.loss)
        if self.loss.classifies:
            self.outputs.append(step.output_NC)
            self.labels.append(y)
        for name, value in step.logs.items():
            self.others.setdefault(name, []).append(value)

    @property
    def samples(self) -> int:
        return sum(self.sizes)

    def read(self) -> list[Epoch]:
        """The means over all samples that were drawn, a smaller last batch counting for less; of every replica."""
        losses_RS = self._by_batch(self.losses)
        share_S = torch.tensor(self.sizes, dtype=torch.float64) / self.samples
        means = {"train_loss": (losses_RS * share_S).sum(-1).tolist()}
        for name, values in self.others.items():
            means[name] = (self._by_batch(values) * share_S).sum(-1).tolist()
        if self.loss.hits is not None:
            hits = self.loss.hits(torch.cat(self.outputs, self.lead), torch.cat(self.labels, self.lead))
            hits_RN = hits.view(len(losses_RS), -1)
            labels = hits_RN.shape[1]
            means["train_acc"] = [count / labels if labels else math.nan for count in hits_RN.sum(-1).tolist()]
        rows = [dict(zip(means, values, strict=True)) for values in zip(*means.values(), strict=True)]
        return [Epoch(losses, self.sizes, self._readings(row)) for losses, row in zip(losses_RS, rows, strict=True)]

    def _by_batch(self, values: list[Tensor]) -> Tensor:
        """What every batch left, in float64: R×S of R replicas and S batches."""
        return torch.stack(values, -1).view(-1, len(values)).cpu().double()

    def _readings(self, means: dict[str, float]) -> list[Reading]:
        return [Reading(metric=name, value=value, samples=self.samples) for name, value in means.items()]
