"""What pages made of one file share: text from a package's assets, colours, and a policy that lets nothing else in."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources

from sonde.show.figures.style import BLACK, BLUE

ON_DARK = {
    BLACK: "#F2F3F5",
    BLUE: "#4AA3E0",
    "#882255": "#D3719F",
    "#332288": "#9B8CE0",
    "#806000": "#C9A23A",
    "#4477AA": "#7FB0DD",
    "#117733": "#5BB878",
    "#AA3377": "#DD77B0",
}
"""Colours that a dark page would swallow."""


def asset(package: str, name: str) -> str:
    """The text of a file in the `assets` of a package."""
    return resources.files(package).joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def joined(texts: Sequence[str]) -> str:
    """Scripts as one, in this order, in a scope of their own."""
    body = "\n".join(texts)
    return f"(() => {{\n'use strict';\n{body}\n}})();"


def colours(named: Mapping[str, str]) -> str:
    """A variable `--colour-NAME` for every name, on light, on dark and on paper."""
    light = "".join(f"--colour-{name}:{colour};" for name, colour in named.items())
    dark = "".join(f"--colour-{name}:{ON_DARK.get(colour, colour)};" for name, colour in named.items())
    return (
        f":root{{{light}}}"
        f':root[data-theme="dark"]{{{dark}}}'
        f'@media screen and (prefers-color-scheme:dark){{:root:not([data-theme="light"]){{{dark}}}}}'
        f"@media print{{:root:root:root{{{light}}}}}"
    )


def policy(script: str, style: str, *more: str) -> str:
    """This script and this style sheet, images inside the page, what `more` adds, and nothing else is fetched."""
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
