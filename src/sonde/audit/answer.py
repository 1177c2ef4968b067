"""The answer to a question: what it found at each epoch, and whether it fires at the last."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Look(NamedTuple):
    """A question asked at one epoch."""

    epoch: int
    value: float  # NaN where undefined
    fired: bool | None  # None: it cannot be answered, and `reason` says why
    reason: str | None = None
    layers: tuple[int, ...] = ()  # the blocks or layers at which it fired
    note: str | None = None  # what the answer rests on


@dataclass(frozen=True)
class Answer:
    """Looks in the order of epochs.  The last one decides; the others say since when."""

    looks: tuple[Look, ...] = ()
    missing: str | None = None  # why nobody could look
    asked: bool = True  # False: the question does not arise, and `missing` says why

    @property
    def last(self) -> Look | None:
        return self.looks[-1] if self.looks else None

    @property
    def value(self) -> float:
        return self.last.value if self.last else math.nan

    @property
    def fired(self) -> bool | None:
        return self.last.fired if self.last else None

    @property
    def reason(self) -> str | None:
        return self.last.reason if self.last else self.missing

    @property
    def epoch(self) -> int | None:
        return self.last.epoch if self.last else None

    @property
    def layers(self) -> tuple[int, ...]:
        return self.last.layers if self.last else ()

    @property
    def first_fired(self) -> int | None:
        """The first epoch at which it fired, whether or not it still does."""
        return next((look.epoch for look in self.looks if look.fired), None)

    @property
    def since(self) -> int | None:
        """The epoch from which it fired whenever it could be answered, up to the end; None where it does not."""
        if not self.fired:
            return None
        since = None
        for look in reversed(self.looks):
            if look.fired is False:
                break
            since = look.epoch if look.fired else since
        return since

    @property
    def note(self) -> str | None:
        return self.last.note if self.last else None

    def at(self, epoch: int) -> Look | None:
        return next((look for look in self.looks if look.epoch == epoch), None)


def answer(looks: Sequence[Look], missing: str) -> Answer:
    """The looks, or what is missing when there are none."""
    return Answer(tuple(looks)) if looks else Answer(missing=missing)
