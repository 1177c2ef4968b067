"""The page: template, style, script and data in one file that asks the network for nothing."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from sonde.core.formatting import number
from sonde.show.figures.style import COLOR
from sonde.show.report.charts import DIGITS, as_script, chart_data, styled
from sonde.show.report.inline import asset, colours, joined, policy
from sonde.show.report.parts import Contents, Opening, Said
from sonde.show.report.pictures import Pictures
from sonde.show.report.runs import MOST_NAMED, RunLine, listed, sample
from sonde.show.report.watched import watched_data

SCRIPTS = (
    "dom.js",
    "view.js",
    "store.js",
    "lines.js",
    "axes.js",
    "draw.js",
    "hover.js",
    "files.js",
    "chart.js",
    "player.js",
    "charts.js",
    "families.js",
    "sweep.js",
    "beside.js",
    "watched.js",
    "answers.js",
    "terms.js",
    "page.js",
)
"""In the order in which they are joined."""

PARTS = ("lede", "findings", "audit", "figures", "runs", "watched_runs")
"""Templates of what stands inside the elements with `data-part`: made once for a page, or anew for `sonde.show`."""

WORDS = ("network", "weights", "rule", "recipe", "verdict")
"""Columns of words, set to the left; all others hold numbers."""


def render(
    contents: Contents,
    drawn: dict[str, Pictures],
    *,
    live: bool = False,
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
    allowed: Sequence[str] = (),
) -> str:
    """The whole page; `drawn` holds the pictures of each section by its anchor.

    A page that is to be refreshed is `live`: it has every section, also those that are empty now.  `scripts` run after
    its own, in the same scope; `styles` follow its own; `allowed` are more lines of its policy,
    like `connect-src 'self'`.
    """
    shown = _shown(contents)
    script = joined([*(_asset(name) for name in SCRIPTS), *scripts])
    style = _asset("report.css") + "".join(styles) + colours({name: COLOR[name] for name in styled(shown)})
    return (
        _environment()
        .get_template("report.html")
        .render(
            **_words(contents, drawn, shown),
            live=live,
            policy=policy(script, style, *allowed),
            style=Markup(style),
            script=Markup(script),
            data=Markup(as_script(page_data(contents))),
        )
    )


def page_data(contents: Contents) -> dict[str, Any]:
    """The numbers that the page's script draws: what `sonde.show` takes."""
    return {
        "answers": answers_data(contents.answers),
        "glossary": [asdict(term) for term in contents.glossary],
        "charts": chart_data(contents.rows, _shown(contents)),
        "sweep": asdict(contents.sweep),
        "watched": watched_data(contents.watched),
    }


def answers_data(answers: Sequence[Opening]) -> list[dict[str, Any]]:
    """What the page's script reads: every answer with its dots, as [seed, value or null]."""
    return [
        {
            "id": one.id,
            "about": one.about,
            "more": one.more,
            **asdict(one.answer),
            "dots": [
                {
                    "label": dots.label,
                    "style": dots.style,
                    "note": dots.note,
                    "values": [
                        (seed, float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None)
                        for seed, value in dots.values.items()
                    ],
                }
                for dots in one.answer.dots
            ],
        }
        for one in answers
    ]


def page_parts(contents: Contents, drawn: dict[str, Pictures]) -> dict[str, str]:
    """The words of the page by part, as markup in which names are text: what `sonde.show` takes as `html`."""
    environment, words = _environment(), _words(contents, drawn, _shown(contents))
    return {part: environment.get_template(f"{part}.html").render(**words) for part in PARTS}


def _shown(contents: Contents) -> list[RunLine]:
    """The runs with lines of their own."""
    return sample(contents.runs, contents.rows.height)


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "table": findings_table,
        "lead": lead,
        "overhead": overhead,
        "duration": duration,
        "aside": aside,
        "listed": listed,
        "zip": zip,
    }
    return environment


def _words(contents: Contents, drawn: dict[str, Pictures], shown: Sequence[RunLine]) -> dict[str, Any]:
    """What the templates speak of."""
    return {
        "contents": contents,
        "shown": shown,
        "ids": {run.id for run in shown},
        "most": None if len(shown) == len(contents.runs) else MOST_NAMED,
        "drawn": drawn,
        "totals": totals(contents.runs),
        "digits": DIGITS,
    }


def _asset(name: str) -> str:
    return asset("sonde.show.report", name)


def findings_table(findings: Sequence[Said]) -> dict[str, Any] | None:
    """The findings that have cells, as headings with their side and lines; None where there are none."""
    tabled = [finding for finding in findings if finding.shown]
    if not tabled:
        return None
    headings = list(dict.fromkeys(heading for finding in tabled for heading in finding.shown))
    return {
        "columns": {heading: "left" if heading in WORDS else "right" for heading in headings},
        "lines": [[finding.shown.get(heading, "–") for heading in headings] for finding in tabled],
    }


def lead(sentence: str) -> tuple[str, str]:
    """What a sentence is about and what it says: "DFA" and "‖h‖ grows …"."""
    subject, colon, rest = sentence.partition(": ")
    return (subject, rest) if colon and len(subject) <= 60 else ("", sentence)


def aside(cell: str) -> tuple[str, str]:
    """A value and what stands beside it in brackets: "0.3 ± 0.02" and "(-0.004, 1)"."""
    value, bracket, rest = cell.partition(" (")
    return (value, f"({rest}") if bracket and rest.endswith(")") and value else (cell, "")


def overhead(seconds: dict[str, float]) -> str:
    """Time in probes relative to time in training."""
    train = seconds.get("train", 0.0)
    return f"{100 * seconds.get('probes', 0.0) / train:.0f} %" if train > 0 else "undefined"


def duration(seconds: float | None) -> str:
    """Seconds as a reader says them."""
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{number(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def totals(runs: Sequence[RunLine]) -> dict[str, Any]:
    """Over the runs that recorded time in training: the overhead of measuring, with n."""
    timed = [run for run in runs if run.seconds.get("train", 0.0) > 0]
    seconds = {part: sum(run.seconds.get(part, 0.0) for run in timed) for part in ("train", "probes")}
    return {"n": len(timed), "seconds": seconds, "complete": sum(run.state == "complete" for run in runs)}
