"""What commands print: tables, lines and JSON."""

import json
import math
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

MANY = 500  # lines of a table


def print_json(value: Any) -> None:
    """JSON with null for what is undefined."""
    print(json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(title: str, columns: dict[str, str], rows: list[list[str]]) -> Table:
    """A plain table; `columns` maps each heading to left or right."""
    grid = Table(
        title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False
    )
    for heading, side in columns.items():
        justify: Literal["left", "right"] = "right" if side == "right" else "left"
        grid.add_column(heading, justify=justify, overflow="fold", no_wrap=heading == "id")
    for row in rows:
        grid.add_row(*row)
    return grid


def print_table(title: str, columns: dict[str, str], rows: list[list[str]]) -> None:
    """The table; a long one as plain lines, since rich takes a millisecond and more for each."""
    if len(rows) <= MANY:
        console().print(table(title, columns, rows))
        return
    lines = [list(columns), *rows]
    widths = [max(cell_len(line[place]) for line in lines) for place in range(len(columns))]
    print(title)
    for line in lines:
        cells = []
        for cell, width, side in zip(line, widths, columns.values(), strict=True):
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if side == "right" else cell + space)
        print("  ".join(cells).rstrip())


def console(*, stderr: bool = False) -> Console:
    """Wide enough for a table when the output goes into a file or a pipe."""
    found = Console(stderr=stderr, highlight=False, markup=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, markup=False, width=400)
