"""A JSON file of the layout: one from elsewhere, read with care, or one about to be written from a run's rows."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from sonde.analysis.evidence import Evidence
from sonde.core.errors import SondeError, nearest
from sonde.metrics import UNLIMITED, Bounds

COSINE_ROUNDED: Bounds = (-1.00001, 1.00001)  # and correlations, with the rounding of single precision


class Document:
    """A JSON object and the path of keys that led to it; every complaint names the file and the key.

    `remedy` is how a mistake in it is mended.
    """

    def __init__(self, path: Path, value: Any, key: str = "", remedy: str = "") -> None:
        self.path, self.value, self.key, self.remedy = path, value, key, remedy
        if not isinstance(value, dict):
            raise self.error(key or "the file", f"expected an object, found {_kind(value)}")

    @classmethod
    def read(cls, path: Path, remedy: str = "") -> "Document":
        try:
            return cls(path, json.loads(path.read_text(encoding="utf-8")), remedy=remedy)
        except OSError as error:
            raise SondeError(f"{path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise SondeError(f"{path} is not JSON: {error}{remedy and f'; {remedy}'}") from None

    def error(self, key: str, problem: str) -> SondeError:
        return SondeError(f"{self.path}: {key}: {problem}{self.remedy and f'; {self.remedy}'}")

    def get(self, key: str) -> Any:
        if key not in self.value:
            close = nearest(key, self.value) if self.value else "the object is empty"
            raise self.error(self._name(key), f"missing ({close})")
        return self.value[key]

    def section(self, key: str) -> "Document":
        return Document(self.path, self.get(key), self._name(key), self.remedy)

    def sections(self, key: str) -> list["Document"]:
        value = self.get(key)
        if not isinstance(value, list):
            raise self.error(self._name(key), f"expected a list, found {_kind(value)}")
        return [Document(self.path, item, f"{self._name(key)}[{i}]", self.remedy) for i, item in enumerate(value)]

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise self.error(self._name(key), f"expected a text, found {_kind(value)}")
        return value

    def number(self, key: str, within: Bounds = UNLIMITED) -> float:
        return self._finite(self.get(key), self._name(key), within)

    def count(self, key: str, least: int = 1) -> int:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            problem = f"expected a whole number of at least {least}, found {_kind(value)}"
            raise self.error(self._name(key), problem)
        return value

    def numbers(self, key: str, length: int | None = None, within: Bounds = UNLIMITED) -> list[float]:
        return self._numbers(self.get(key), self._name(key), length, within)

    def nullable(self, key: str, length: int | None = None, within: Bounds = UNLIMITED) -> list[float | None]:
        """Numbers, or null where a value is undefined."""
        value, name = self.get(key), self._name(key)
        self._check_length(value, name, length)
        return [None if item is None else self._finite(item, f"{name}[{i}]", within) for i, item in enumerate(value)]

    def table(self, key: str, rows: int, columns: int) -> list[list[float]]:
        value = self.get(key)
        self._check_length(value, self._name(key), rows)
        return [self._numbers(row, f"{self._name(key)}[{i}]", columns) for i, row in enumerate(value)]

    def _numbers(self, value: Any, name: str, length: int | None, within: Bounds = UNLIMITED) -> list[float]:
        self._check_length(value, name, length)
        return [self._finite(item, f"{name}[{i}]", within) for i, item in enumerate(value)]

    def _check_length(self, value: Any, name: str, length: int | None) -> None:
        if not isinstance(value, list):
            raise self.error(name, f"expected a list, found {_kind(value)}")
        if length is not None and len(value) != length:
            raise self.error(name, f"expected {length} values, found {len(value)}")

    def _finite(self, value: Any, name: str, within: Bounds) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(name, f"expected a finite number, found {_kind(value)}")
        low, high = within
        if not low <= value <= high:
            wanted = f"{low:g} or more" if math.isinf(high) else f"a number from {low:g} to {high:g}"
            raise self.error(name, f"expected {wanted}, found {_kind(value)}")
        return float(value)

    def _name(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: f"the text {str(value)[:30]!r}", type(None): "null"}
    return names.get(type(value), json.dumps(value))


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A file before it is written: how its content is made, the run behind each of its entries, and those without."""

    content: Callable[[], Any]
    runs: dict[str, str] = field(default_factory=dict)  # entry → run id
    lacking: list[str] = field(default_factory=list)


Sheets = dict[str, Sheet]  # by path below the export root


class RunValues:
    """One run's rows in the order a file wants them; what a file cannot hold stops the export."""

    def __init__(self, evidence: Evidence, run: dict[str, Any]) -> None:
        self.run, self.evidence = run, evidence

    @cached_property
    def rows(self) -> pl.DataFrame:
        return self.evidence.rows_of(self.run["run"])

    def by(self, order: str, metric: str, **where: int) -> list[float]:
        """A metric's values in order of step, epoch or layer; an undefined one is an error."""
        rows = self._sorted(order, metric, **where)
        undefined = rows.filter(~pl.col("defined"))
        if not undefined.is_empty():
            first = undefined.row(0, named=True)
            raise SondeError(
                f"run {self.run['run']}, epoch {first['epoch']}, metric {metric}: undefined ({first['reason']}), "
                f"which the paper layout cannot hold there; nothing was exported"
            )
        return rows["value"].to_list()

    def nullable(self, order: str, metric: str, **where: int) -> list[float | None]:
        """The same, with None for what is undefined."""
        return [
            value if defined else None
            for value, defined in self._sorted(order, metric, **where).select("value", "defined").iter_rows()
        ]

    def _sorted(self, order: str, metric: str, **where: int) -> pl.DataFrame:
        rows = self.rows.filter(metric=metric, **where).sort(order)
        if rows.is_empty():
            at = f" at epoch {where['epoch']}" if "epoch" in where else ""
            raise SondeError(f"run {self.run['run']} has no {metric}{at}: nothing was exported")
        return rows
