"""HTML for notebooks and for pages that are one file; plain text with formulas as HTML.

What a notebook shows is escaped here: names of runs and modules come from users.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
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


# ── formulas ────────────────────────────────────────────────────────────────────────────────────────
# Texts of Sonde write mathematics in Unicode: `a_l = e B_lᵀ`, `‖h_L‖²`, `a_{l+1}`.  A formula is recognised by its
# signs and becomes MathML; other text stays as it is written.
_LETTER = "[A-Za-zα-ωΑ-Ωℓĥâ][\u0300-\u036f]?"
_GREEK = "[α-ωΔℓ]"
_NO_WORD = "[A-Za-zα-ω0-9_’'-]"
_FUNCTIONS = "cos|cov|exp|log|max|mean|readout|sign|softmax|LayerNorm|RMS"
_TOKEN = re.compile(
    rf"""(?P<code>`[^`]+` | \w+//\w+ | \w\w+\[[^\]]*\])
    | (?P<norm>‖[^‖]{{1,40}}‖)
    | (?P<symbol>(?:{_LETTER}|[Σ∇√])_(?:\{{[^}}]*\}}|[A-Za-z]+(?!{_NO_WORD})|\d+) | mean_[A-Za-z](?!{_NO_WORD}))
    | (?P<derived>∂[A-Za-z]{{2,}}(?!{_NO_WORD}))
    | (?P<function>(?:{_FUNCTIONS})(?=\())
    | (?P<number>\d+(?:\.\d+)?(?:e[-−]?\d+)?(?!{_NO_WORD}))
    | (?P<letter>(?<!{_NO_WORD})(?:{_GREEK}{{1,2}}[A-Za-z]?|{_LETTER})(?!{_NO_WORD}))
    | (?P<raised>[²³ᵀ₀₁₂′⁻¹]+)
    | (?P<sign>[-=+−·×÷/|⟨⟩()\[\],←→≈≥≤<>~∈⊗∘∂∇Σ√±…])
    | (?P<space>[ ]+)
    | (?P<word>\w+)
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_RAISED = {"²": "2", "³": "3", "ᵀ": "T", "⁻¹": "−1", "¹": "1"}
_LOWERED = {"₀": "0", "₁": "1", "₂": "2"}
_INSIDE = {"norm", "symbol", "derived", "function", "number", "letter", "raised", "sign", "space"}
_BINDING = set("=+−·×÷/←→≈≥≤<>~∈⊗∘∂∇Σ√|")
_PAIRS = {"(": ")", "[": "]", "⟨": "⟩"}

_Token = tuple[str, str]  # kind and text


def with_code(text: str) -> str:
    """HTML in which what stands in backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


@lru_cache(maxsize=1024)
def typeset(text: str) -> str:
    """HTML in which what stands in backticks is code, and formulas are MathML."""
    made, inside = list[str](), list[_Token]()
    for kind, part in _tokens(text):
        if kind in _INSIDE and part != "-" and (inside or kind != "space"):
            inside.append((kind, part))
            continue
        if inside:
            made.append(_run(inside))
            inside = []
        made.append(with_code(part) if kind == "code" else escape(part))
    return "".join([*made, _run(inside)])


def _tokens(text: str) -> list[_Token]:
    return [(found.lastgroup or "other", found.group()) for found in _TOKEN.finditer(text)]


def _written(tokens: Iterable[_Token]) -> str:
    return "".join([part for _, part in tokens])


def _run(tokens: list[_Token]) -> str:
    """Signs, letters and numbers in a row: the formulas among them as MathML, the rest as it is written."""
    start, end = 0, len(tokens)
    while start < end and not _may_begin(tokens, start):
        start += 1
    while end > start and not _may_end(tokens[start:end]):
        end -= 1
    inside = tokens[start:end]
    before, after = (escape(_written(some)) for some in (tokens[:start], tokens[end:]))
    if not inside:
        return before + after
    if not _closed(inside) and inside[0][1] in _PAIRS:  # a bracket around more than the formula
        return before + inside[0][1] + _run(inside[1:]) + after
    if not _closed(inside) and inside[-1][1] in _PAIRS.values():
        return before + _run(inside[:-1]) + inside[-1][1] + after
    if not _closed(inside) or not _is_formula(inside):
        return before + _split(inside) + after
    return f"{before}<math>{_row(inside)}</math>{after}"


def _split(tokens: list[_Token]) -> str:
    """Parts between commas by themselves, where the whole is no formula."""
    for at, (_, part) in enumerate(tokens):
        if part == "," and 0 < at < len(tokens) - 1:
            return f"{_run(tokens[:at])},{_run(tokens[at + 1 :])}"
    return escape(_written(tokens))


def _may_begin(tokens: list[_Token], at: int) -> bool:
    kind, part = tokens[at]
    if kind in ("space", "raised") or part in (*",)]…[±", *_BINDING - set("−√Σ∂∇|")):
        return False
    return not (part == "a" and at + 1 < len(tokens) and _ends_word(tokens[at + 1 : at + 3]))


def _ends_word(following: list[_Token]) -> bool:
    """Whether an "a" before these is the article."""
    return len(following) < 2 or (following[0][0] == "space" and following[1][1] not in _BINDING)


def _may_end(tokens: list[_Token]) -> bool:
    kind, part = tokens[-1]
    if part == "|":
        return sum(one == "|" for _, one in tokens) % 2 == 0
    return kind != "space" and part not in (",", "(", "[", "…", *_BINDING)


def _closed(tokens: list[_Token]) -> bool:
    """Whether every bracket is closed."""
    open_ = list[str]()
    for _, part in tokens:
        if part in _PAIRS:
            open_.append(_PAIRS[part])
        elif part in _PAIRS.values() and (not open_ or open_.pop() != part):
            return False
    return not open_


def _is_formula(tokens: list[_Token]) -> bool:
    """Whether it has a Greek letter, a symbol with an index, a norm or an equation."""
    kinds = {kind for kind, _ in tokens}
    bound = {"letter", "function"} & kinds and any(part in _BINDING for _, part in tokens)
    greek = any(kind == "letter" and re.match(_GREEK, part) for kind, part in tokens)
    return bool(kinds & {"norm", "symbol", "derived", "raised"} or bound or greek)


def _row(tokens: list[_Token]) -> str:
    made = list[str]()
    for at, (kind, part) in enumerate(tokens):
        if kind == "raised" and made:
            made.append(_indexed(made.pop(), part))
        elif kind != "space":
            made.append(_element(kind, part))
        elif made and not made[-1].startswith("<mo") and tokens[at + 1][0] != "sign":
            made.append('<mspace width="0.2em"></mspace>')
    return f"<mrow>{''.join(made)}</mrow>"


def _indexed(base: str, signs: str) -> str:
    if signs in _LOWERED:
        return f"<msub>{base}<mn>{_LOWERED[signs]}</mn></msub>"
    if signs == "′":
        return f"{base}<mo>′</mo>"
    raised = "".join(_RAISED.get(sign, sign) for sign in re.findall("⁻¹|.", signs))
    above = f"<mn>{raised}</mn>" if raised.isdigit() else f'<mi mathvariant="normal">{raised}</mi>'
    return f"<msup>{base}{above}</msup>"


def _element(kind: str, part: str) -> str:
    if kind == "norm":
        bar = '<mo stretchy="false" form="{}">‖</mo>'
        return f"<mrow>{bar.format('prefix')}{_row(_tokens(part[1:-1]))}{bar.format('postfix')}</mrow>"
    if kind == "symbol":
        base, _, index = part.partition("_")
        below = _row(_tokens(index.strip("{}")))
        tag = "mo" if base in "Σ∇√" else "mi"
        return f"<msub><{tag}>{escape(base)}</{tag}>{below}</msub>"
    if kind == "derived":
        return f"<mo>∂</mo><mi>{escape(part[1:])}</mi>"
    if kind == "letter" and len(part) > 1 and part[1].isalpha():
        return "".join(f"<mi>{escape(letter)}</mi>" for letter in part)
    tag = {"number": "mn", "sign": "mo", "letter": "mi", "function": "mi"}.get(kind, "mtext")
    still = ' stretchy="false"' if tag == "mo" else ""
    return f"<{tag}{still}>{escape(part)}</{tag}>"
