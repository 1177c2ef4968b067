"""What commands show: tables, JSON, and a bar while one waits."""

import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
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
from rich.text import Text

from sonde.cli.streams import Steady
from sonde.core.errors import one_line, printable

RICH_LINES = 500  # of a table, at most


def print_json(value: Any) -> None:
    """JSON with null for what is undefined."""
    unicode = (sys.stdout.encoding or "utf-8").lower().replace("-", "") in ("utf8", "utf16", "utf32")
    text = json.dumps(_plain(value), indent=1, ensure_ascii=not unicode, allow_nan=False)
    if printable(text) != text:
        text = "".join(sign if printable(sign) else f"\\u{ord(sign):04x}" for sign in text)
    print(text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(title: str, columns: dict[str, str], rows: list[list[str]], wrapped: str = "") -> Table:
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
        grid.add_column(
            heading,
            justify=justify,
            overflow="fold",
            no_wrap=heading != wrapped if wrapped else heading == "id",
        )
    for row in rows:
        grid.add_row(*map(_cell, row))
    return grid


def print_table(title: str, columns: dict[str, str], rows: list[list[str]], wrapped: str = "") -> None:
    """The table; where the terminal is too narrow for it, a block for each row, so that no word is broken.

    The column that may be `wrapped` is broken between words before that.
    A long one is printed as plain lines, since rich takes a millisecond and more for each.
    """
    to = console()
    if len(rows) <= RICH_LINES:
        if fits(columns, rows, wrapped):
            to.print(table(title, columns, rows, wrapped))
        else:
            _print_blocks(to, title, list(columns), rows)
        return
    lines = [list(map(_cell, row)) for row in (list(columns), *rows)]
    widths = _widths(columns, rows)
    print(title)
    for line in lines:
        cells = []
        for cell, width, side in zip(line, widths, columns.values(), strict=True):
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if side == "right" else cell + space)
        print("  ".join(cells).rstrip())


def fits(columns: Collection[str], rows: Sequence[Sequence[str]], wrapped: str = "") -> bool:
    """Whether a table is as wide as the terminal, or less."""
    return sum(_widths(columns, rows, wrapped)) + 2 * (len(columns) - 1) <= console().width


def _widths(columns: Collection[str], rows: Sequence[Sequence[str]], wrapped: str = "") -> list[int]:
    """Of every column; of one that may be wrapped, its longest word."""
    widths = []
    for cells in zip(columns, *rows, strict=True):
        parts = [part for cell in cells for part in cell.split()] if cells[0] == wrapped else cells
        widths.append(max((cell_len(_cell(part)) for part in parts), default=0))
    return widths


def _print_blocks(to: Console, title: str, headings: list[str], rows: list[list[str]]) -> None:
    """Every row below its first cell, a line for each heading; lines are broken between words."""
    to.print(title, style="bold")
    widest = max(map(cell_len, headings[1:]), default=0)
    for row in rows:
        to.print(_cell(row[0]), style="bold", soft_wrap=True)
        block = Table.grid(padding=(0, 2), pad_edge=False)
        block.add_column(width=min(widest, to.width // 2) + 2)
        block.add_column(ratio=1)
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            if cell:
                block.add_row(Text(f"  {printable(heading)}", style="dim"), _cell(cell))
        to.print(block)


def _cell(text: str) -> str:
    """A cell is one line, whatever a name holds."""
    return text if text.isprintable() else printable(one_line(text))


def console(*, stderr: bool = False) -> Console:
    """Wide enough for a table when the output goes into a file or a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    file = getattr(stream, "unfiltered", stream)
    found = PrintableConsole(file=file, highlight=False, markup=False)
    return found if found.is_terminal else PrintableConsole(file=file, highlight=False, markup=False, width=400)


class PrintableConsole(Console):
    """Colours are its own: texts bring no control sequences with them."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(printable(one) if isinstance(one, str) else one for one in objects), **options)


class Printable:
    """A stream that lets nothing through that a terminal would obey; `unfiltered` is the stream itself."""

    def __init__(self, stream: "TextIO | Steady") -> None:
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
