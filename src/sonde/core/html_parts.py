"""Pieces of HTML that a notebook shows.  Every text is escaped: names of runs and modules are somebody else's."""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence


def table(columns: Mapping[str, str], lines: Iterable[Sequence[str]], title: str = "") -> str:
    """A table; `columns` maps each heading to left or right."""

    def row(tag: str, cells: Sequence[str]) -> str:
        made = (
            f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>'
            for side, cell in zip(columns.values(), cells, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(row("td", line) for line in lines)
    heading = f"<p><strong>{html.escape(title)}</strong></p>" if title else ""
    return f"{heading}<table><thead>{row('th', list(columns))}</thead><tbody>{body}</tbody></table>"


def listing(texts: Iterable[str]) -> str:
    """A list, or nothing where there is nothing to say."""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def small(text: str) -> str:
    """A remark below a table."""
    return f"<p><small>{html.escape(text)}</small></p>"


def picture(png: bytes, alt: str) -> str:
    """An image that is part of the page."""
    return (
        f'<img alt="{html.escape(alt)}" style="max-width:720px;width:100%" '
        f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
    )
