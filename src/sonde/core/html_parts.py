"""HTML for notebooks and for pages that are one file.

What a notebook shows is escaped here: names of runs and modules come from users.
"""

import base64
import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

ON_DARK = {
    "#000000": "#F2F3F5",
    "#0072B2": "#4AA3E0",
    "#882255": "#D3719F",
    "#332288": "#9B8CE0",
    "#806000": "#C9A23A",
    "#4477AA": "#7FB0DD",
    "#117733": "#5BB878",
    "#AA3377": "#DD77B0",
}
"""Colours of figures that are too dark for a dark page → the colour used there."""
DARK_INK, DARK_PAGE = "#E9EBEE", "#14161A"
"""Text and background of a dark page."""


# ── notebooks ───────────────────────────────────────────────────────────────────────────────────────
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
    """A list; an empty string where there are no texts."""
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


# ── pages that are one file ─────────────────────────────────────────────────────────────────────────
def asset(package: str, name: str) -> str:
    """The text of a file in the folder `assets` of a package."""
    return resources.files(package).joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def joined_scripts(texts: Sequence[str]) -> str:
    """The scripts as one, in this order, in a scope of their own."""
    body = "\n".join(texts)
    return f"(() => {{\n'use strict';\n{body}\n}})();"


def colour_variables(named: Mapping[str, str]) -> str:
    """CSS with a variable `--colour-NAME` for every name, for light pages, dark pages and print."""
    light = "".join(f"--colour-{name}:{colour};" for name, colour in named.items())
    dark = "".join(f"--colour-{name}:{ON_DARK.get(colour, colour)};" for name, colour in named.items())
    return (
        f":root{{{light}}}"
        f':root[data-theme="dark"]{{{dark}}}'
        f'@media screen and (prefers-color-scheme:dark){{:root:not([data-theme="light"]){{{dark}}}}}'
        f"@media print{{:root:root:root{{{light}}}}}"
    )


def content_policy(script: str, style: str, *more: str) -> str:
    """A Content-Security-Policy that allows this script, this style, embedded images and the directives in `more`."""
    codes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    allowed = [
        "default-src 'none'",
        f"script-src 'sha256-{codes[0]}'",
        f"style-src 'sha256-{codes[1]}'",
        "img-src data:",
        *more,
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(allowed)
