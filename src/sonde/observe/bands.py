"""Bands: where the loss and the gradient usually lie, and when one of them leaves its band."""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sonde.core.seed_statistics import band_limit

DENSE = 16  # steps that are watched after a spike

_FEWEST, _RECENT = 16, 32  # values that make a band: at least, and the last ones
_RARE = 8  # spikes after which the time between two is not doubled any more
_AGAIN = 4  # values after which a limit is computed anew
_WAITING = 16  # values of a device whose copies cannot be asked whether they are done, read at once


class _Band:
    """Where a number usually lies, by its last values."""

    def __init__(self, factor: float) -> None:
        self.limit = math.inf
        self._factor, self._count = factor, 0
        self._spikes, self._quiet_until = 0, 0
        self._values: deque[float] = deque(maxlen=_RECENT)

    def is_spike(self, step: int, value: float) -> bool:
        """Whether the value is above the band and no spike was shortly before; the more there were, the longer."""
        if not self._leaves(value) or step < self._quiet_until:
            return False
        self._spikes += 1
        self._quiet_until = step + DENSE * 2 ** min(self._spikes, _RARE)
        return True

    def _leaves(self, value: float) -> bool:
        """Whether the value is above the band, which it then becomes part of."""
        known = len(self._values) >= _FEWEST
        finite = math.isfinite(value)
        outside = known and (not finite or value > self.limit)
        if finite:
            self._values.append(value)
            self._count += 1
            if self._count % _AGAIN == 0 and len(self._values) >= _FEWEST:
                self.limit = band_limit(list(self._values), self._factor)
        return outside


class _Arriving:
    """Numbers on their way from the device, in their order; nothing waits for them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Tensor, Any]] = deque()

    def add(self, step: int, value: Tensor) -> None:
        """Send a number to the host."""
        done = None
        if value.device.type == "cuda":
            value = value.to("cpu", non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        self._waiting.append((step, value, done))

    def arrived(self) -> Iterator[tuple[int, float]]:
        """Step and value of the numbers that are here."""
        while self._waiting:
            _, value, done = self._waiting[0]
            ready = done.query() if done is not None else value.device.type == "cpu" or len(self._waiting) > _WAITING
            if not ready:
                return
            step, value, _ = self._waiting.popleft()
            yield step, value.item()


class Bands:
    """The band of the loss, and that of the norm of the whole gradient."""

    def __init__(self) -> None:
        self._bands = {"loss": _Band(1.3), "gradient": _Band(4.0)}
        self._arriving = {name: _Arriving() for name in self._bands}

    def add(self, name: str, step: int, value: Tensor) -> None:
        """Send a number of this step to the host."""
        self._arriving[name].add(step, value)

    def spikes(self) -> list[dict[str, Any]]:
        """Of the numbers that are here by now, those that left their band."""
        found = []
        for name, band in self._bands.items():
            for step, value in self._arriving[name].arrived():
                limit = band.limit
                if band.is_spike(step, value):
                    found.append(
                        {"step": step, "of": name, "value": value if math.isfinite(value) else None, "limit": limit}
                    )
        return found
