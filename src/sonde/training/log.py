"""What the steps of an epoch leave to be read, kept on the device until its end.  N samples, C outputs."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sonde.losses import Loss
from sonde.rows import Reading
from sonde.training.step import Step


@dataclass(frozen=True)
class Epoch:
    """The loss of every batch, and what was averaged over the epoch."""

    losses: Tensor
    readings: list[Reading]


@dataclass
class Log:
    """Collects steps without waiting for the device."""

    losses: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    others: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, step: Step, y: Tensor) -> None:
        self.losses.append(step.loss)
        self.outputs.append(step.output_NC)
        self.labels.append(y)
        for name, value in step.logs.items():
            self.others.setdefault(name, []).append(value)

    def read(self, loss: Loss, lead: int = 0) -> list[Epoch]:
        """The means over all batches, each with the number of samples that were drawn; of every replica."""
        samples = sum(y.shape[lead] for y in self.labels)
        losses_RS = torch.stack(self.losses, -1).view(-1, len(self.losses))
        means = {"train_loss": losses_RS.mean(-1).tolist()}
        for name, values in self.others.items():
            means[name] = torch.stack(values, -1).view_as(losses_RS).mean(-1).tolist()
        if loss.classifies:
            right = torch.cat(self.outputs, lead).argmax(-1) == torch.cat(self.labels, lead)
            correct = right.view(len(losses_RS), -1).sum(-1).tolist()
            means["train_acc"] = [count / samples for count in correct]
        rows = [dict(zip(means, values, strict=True)) for values in zip(*means.values(), strict=True)]
        return [
            Epoch(losses, [Reading(metric=name, value=value, samples=samples) for name, value in row.items()])
            for losses, row in zip(losses_RS.double().cpu(), rows, strict=True)
        ]
