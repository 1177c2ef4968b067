"""The rows of a watched run that the live page holds: parts are read once, and a bounded number of rows is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from sonde.metrics.rows import WATCHED
from sonde.store.folder import RunFolder
from sonde.store.journal import part_files, read_watched
from sonde.store.schemas import Manifest

FIRST = 10  # steps that are always kept
FEWEST = 100  # rows for which there is always room


@dataclass
class HeldRows:
    """Of one run; where there are too many, every 2nd, 4th, 8th, … watched step is kept, the first ten and the last."""

    every: int  # steps between two watched ones
    steps: int = 0  # that were watched, those left out included
    _parts: list[str] = field(default_factory=list)  # digests of those that were read
    _rows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=WATCHED))  # of these
    _counted: tuple[int, int] = (0, -1)  # watched steps in these, and the last of them
    _strides: list[int] = field(default_factory=lambda: [1, 1])  # of modules, of losses; they only grow

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> "HeldRows":
        """None yet of a run that is described so."""
        every = about.get("every")
        return cls(every if isinstance(every, int) and every > 0 else 1)

    def goes_on(self, manifest: Manifest) -> bool:
        """Whether the run is the one that was read, and not another under the same name."""
        return _digests(manifest)[: len(self._parts)] == self._parts

    def read(self, folder: RunFolder, manifest: Manifest, room: int) -> tuple[Manifest, pl.DataFrame]:
        """The run as it is now, in about so many rows; of its parts, only new ones are read."""
        new = list(zip(part_files(manifest), _digests(manifest), strict=True))[len(self._parts) :]
        for file, digest in new:
            part = folder.table(file, manifest, WATCHED)
            self._counted = self._count(part)
            self._rows = self._kept(pl.concat([self._rows, part]), room)
            self._parts.append(digest)
        manifest, rest = read_watched(folder, manifest, after=len(self._parts))
        self.steps, _ = self._count(rest)
        return manifest, self._kept(pl.concat([self._rows, rest]), room)

    def _count(self, more: pl.DataFrame) -> tuple[int, int]:
        """How many steps were watched with these rows, and which was the last."""
        steps, last = self._counted
        new = more.filter(pl.col("module").is_not_null(), pl.col("step") > last)["step"].unique().to_list()
        return steps + len(new), max([last, *new])

    def _kept(self, rows: pl.DataFrame, room: int) -> pl.DataFrame:
        """Losses, which may be of every step, have a quarter of the room."""
        room = max(room, FEWEST)
        of_module = rows["module"].is_not_null()
        modules = self._chosen(rows["step"], of_module, 0, self.every, 3 * room // 4)
        return rows.filter(modules | self._chosen(rows["step"], ~of_module, 1, 1, room // 4))

    def _chosen(self, step: pl.Series, among: pl.Series, kind: int, unit: int, room: int) -> pl.Series:
        """Those among the rows that are kept: as many steps as have room, evenly."""
        last = int(step.filter(among).max() or 0)  # type: ignore[arg-type]
        while True:
            stride = unit * self._strides[kind]
            chosen = among & ((step < FIRST) | (step % stride == 0) | (step == last))
            if self._strides[kind] == 1:
                chosen = among
            if int(chosen.sum()) <= room or stride > last:
                return chosen
            self._strides[kind] *= 2


def _digests(manifest: Manifest) -> list[str]:
    known = manifest.checksums or {}
    return [known[file].sha256 if file in known else "" for file in part_files(manifest)]
