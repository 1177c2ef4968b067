"""Where each reading stands among those of a run.  Runs that measured the same things share a layout."""

from collections.abc import Iterable, Sequence

Key = tuple[str, int, int | None]
"""Metric, epoch and layer."""


class Layout:
    """The places of a run's readings; what is asked of it for one run is known for all that share it."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.places = {key: place for place, key in enumerate(keys)}
        self._epochs: dict[tuple[str, Sequence[int | None]], list[int]] = {}
        self._rows: dict[tuple[str, int, Sequence[int]], list[int | None]] = {}

    def epochs(self, metric: str, layers: Sequence[int | None]) -> list[int]:
        """The epochs at which it was measured at any of the layers."""
        key = (metric, layers)
        if key not in self._epochs:
            found = {epoch for name, epoch, layer in self.places if name == metric and layer in layers}
            self._epochs[key] = sorted(found)
        return self._epochs[key]

    def row(self, metric: str, epoch: int, layers: Sequence[int]) -> list[int | None]:
        """Its places at one epoch, layer by layer; None where it was not measured."""
        key = (metric, epoch, layers)
        if key not in self._rows:
            self._rows[key] = [self.places.get((metric, epoch, layer)) for layer in layers]
        return self._rows[key]
