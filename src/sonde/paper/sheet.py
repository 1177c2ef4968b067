"""A file of the paper layout before it is written."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Its content, the run behind each of its entries, and the entries that no run was there for."""

    content: Any
    runs: dict[str, str] = field(default_factory=dict)  # entry → run id
    lacking: list[str] = field(default_factory=list)


Sheets = dict[str, Sheet]  # by path below the export root
