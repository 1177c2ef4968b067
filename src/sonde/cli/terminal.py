"""What commands show: tables, JSON, and a bar while one waits."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from sonde.errors import printable

RICH_LINES = 500  # of a table, at most


def print_json(value: Any) -> None:
    """JSON with null for what is undefined."""
    text = json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False)
    if printable(text) != text:
        text = "".join(sign if printable(sign) else f"\\u{ord(sign):04x}" for sign in text)
    print(text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(title: str, columns: dict[str, str], rows: list[list[str]]) -> Table:
    """A plain table; `columns` maps each heading to left or right."""
    grid = Table(
        title=printable(title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
    )
    for heading, side in columns.items():
        heading = printable(heading)
        justify: Literal["left", "right"] = "right" if side == "right" else "left"
        grid.add_column(heading, justify=justify, overflow="fold", no_wrap=heading == "id")
    for row in rows:
        grid.add_row(*map(printable, row))
    return grid


def print_table(title: str, columns: dict[str, str], rows: list[list[str]]) -> None:
    """The table; a long one as plain lines, since rich takes a millisecond and more for each."""
    if len(rows) <= RICH_LINES:
        console().print(table(title, columns, rows))
        return
    lines = [list(map(printable, row)) for row in (list(columns), *rows)]
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
    stream = sys.stderr if stderr else sys.stdout
    file = getattr(stream, "unfiltered", stream)
    found = PrintableConsole(file=file, highlight=False, markup=False)
    return (
        found if found.is_terminal else PrintableConsole(file=file, highlight=False, markup=False, width=400)
    )


class PrintableConsole(Console):
    """Colours are its own: texts bring no control sequences with them."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(printable(one) if isinstance(one, str) else one for one in objects), **options)


class Printable:
    """A stream that lets nothing through that a terminal would obey; `unfiltered` is the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        return self.unfiltered.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


@contextmanager
def count(title: str, *, quiet: bool, of_bytes: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar that appears with the first report of how much of how much is done; nothing where output is piped."""
    to = console(stderr=True)
    if quiet or not to.is_terminal:
        yield lambda done, total: None
        return
    how_much = (DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), *how_much)
    with Progress(*columns, TimeRemainingColumn(compact=True), console=to, transient=True) as bars:
        tasks: list[TaskID] = []

        def report(done: int, total: int) -> None:
            if not tasks:
                tasks.append(bars.add_task(title, total=total))
            bars.update(tasks[0], completed=done, total=total)

        yield report
