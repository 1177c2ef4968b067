"""Equations become MathML when the site is built: a page needs no script and no network to show them."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_MARKED = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def _mathml(found: re.Match[str]) -> str:
    tag, bracket, latex = found.groups()
    shown = convert(html.unescape(latex).strip(), display="block" if bracket == "[" else "inline")
    return f"<{tag}>{shown}</{tag}>"


def on_page_content(content: str, **_: Any) -> str:
    return _MARKED.sub(_mathml, content)
