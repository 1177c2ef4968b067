"""What commands print: text, tables, JSON and a progress bar."""

import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
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

from sonde.core.errors import one_line, printable

if TYPE_CHECKING:
    from sonde.analysis.conclusions import Conclusion

_PIPE_WIDTH = 80
RICH_LINES = 500  # the longest table that rich draws: it takes a millisecond and more for each line


def plural(n: int, noun: str) -> str:
    """`1 run`, `1,200 runs`."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def print_text(text: str = "", *, dim: bool = False, bold: bool = False, wrap: bool = True) -> None:
    """Print a paragraph.

    A terminal wraps it between words and keeps its indent; with `wrap=False` it stays one line, to be copied.
    """
    to = console()
    style = "dim" if dim else "bold" if bold else None
    if wrap and to.is_terminal:
        told = text.lstrip(" ")
        to.print(Padding(told, (0, 0, 0, len(text) - len(told)), expand=False) if told != text else text, style=style)
    else:
        to.print(text, style=style, soft_wrap=True)


def print_conclusion(found: "Conclusion") -> None:
    """Print how a command ends, its first line in bold; for a file or a pipe as on 80 columns."""
    to = console()
    width = to.width if to.is_terminal else _PIPE_WIDTH
    for place, line in enumerate(found.lines(width)):
        to.print(line, style="bold" if place == 0 else None, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print JSON, with null for undefined numbers."""
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


def print_table(title: str, columns: dict[str, str], rows: list[list[str]], wrapped: str = "") -> None:
    """Print a table; `columns` maps each heading to `left` or `right`.

    The column `wrapped` is broken between words where the terminal is narrow.  Where that is not enough, each row is
    printed as a block, so that no word is broken.  A long table is printed as plain lines.
    """
    to = console()
    if len(rows) <= RICH_LINES:
        if fits(columns, rows, wrapped):
            to.print(_rich_table(title, columns, rows, wrapped))
        else:
            _print_blocks(to, title, list(columns), rows)
        return
    widths = _widths(columns, rows)
    print(title)
    for line in ([_cell(cell) for cell in row] for row in (list(columns), *rows)):
        cells = []
        for cell, width, side in zip(line, widths, columns.values(), strict=True):
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if side == "right" else cell + space)
        print("  ".join(cells).rstrip())


def _rich_table(title: str, columns: dict[str, str], rows: list[list[str]], wrapped: str) -> Table:
    grid = Table(
        title=printable(title), title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False
    )
    for heading, side in columns.items():
        heading = printable(heading)
        justify: Literal["left", "right"] = "right" if side == "right" else "left"
        whole = heading != wrapped if wrapped else heading == "id"
        grid.add_column(heading, justify=justify, overflow="fold", no_wrap=whole)
    for row in rows:
        grid.add_row(*map(_cell, row))
    return grid


def fits(columns: Collection[str], rows: Sequence[Sequence[str]], wrapped: str = "") -> bool:
    """Whether a table is at most as wide as the terminal."""
    return sum(_widths(columns, rows, wrapped)) + 2 * (len(columns) - 1) <= console().width


def _widths(columns: Collection[str], rows: Sequence[Sequence[str]], wrapped: str = "") -> list[int]:
    """The width of every column; the width of its longest word for the wrapped one."""
    widths = []
    for cells in zip(columns, *rows, strict=True):
        parts = [part for cell in cells for part in cell.split()] if cells[0] == wrapped else cells
        widths.append(max((cell_len(_cell(part)) for part in parts), default=0))
    return widths


def _print_blocks(to: Console, title: str, headings: list[str], rows: list[list[str]]) -> None:
    """Print every row as a block: its first cell, then a line for each heading."""
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
    """The text on one line, without control sequences."""
    return text if text.isprintable() else printable(one_line(text))


class PrintableConsole(Console):
    """A console whose texts bring no control sequences of their own."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, with control sequences removed from texts."""
        super().print(*(printable(one) if isinstance(one, str) else one for one in objects), **options)


def console(*, stderr: bool = False) -> Console:
    """A console on standard output or error; wide enough for any table where that is a file or a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    file = getattr(stream, "unfiltered", stream)
    found = PrintableConsole(file=file, highlight=False, markup=False)
    return found if found.is_terminal else PrintableConsole(file=file, highlight=False, markup=False, width=400)


@contextmanager
def progress_bar(title: str, *, quiet: bool, of_bytes: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yield a function (done, total) that draws a bar from its first call on; no bar where output is not a terminal."""
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
