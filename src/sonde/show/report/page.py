"""The page: template, style, script, data and figures in one file that fetches nothing."""

import base64
import io
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from sonde.analysis.evidence import Evidence, NoData
from sonde.core.errors import SondeError
from sonde.core.formatting import number
from sonde.core.html_parts import asset, colour_variables, content_policy, joined_scripts, typeset, with_code
from sonde.show.report import ReportContents, Section, report_contents
from sonde.show.report.charts import CHART_DIGITS, NO_CHARTS, chart_data, colours, styled_names
from sonde.show.report.runs import (
    MOST_NAMED,
    LabelledRun,
    comma_list,
    sample,
    session_start,
    session_text,
    watched_data,
)
from sonde.store.load import RowReader
from sonde.store.run import Runs

if TYPE_CHECKING:
    from sonde.show.figures import FigureSpec
    from sonde.show.report.answers import Dots
    from sonde.studies.study import StudyFinding

SCRIPTS = (
    *("dom.js", "view.js", "store.js", "lines.js", "axes.js", "draw.js", "hover.js", "files.js", "chart.js"),
    *("player.js", "charts.js", "families.js", "sweep.js", "beside.js", "watched.js", "answers.js", "terms.js"),
    "page.js",
)
"""In the order in which they are joined."""

PAGE_PARTS = ("lede", "findings", "audit", "figures", "runs", "watched_runs", "glossary")
"""Templates of what stands inside the elements with `data-part`.  The live page replaces them one by one."""

_LEFT_ALIGNED = ("network", "weights", "rule", "recipe", "verdict")
"""Columns of words; all others hold numbers."""

ANSWERS_FIRST = ("network", "rule", "weights", "recipe", "verdict")
"""Columns that come first in a table of findings: what a line is about, and the answer."""

PIXELS_PER_INCH = 100  # of a figure on the page: crisp on dense screens, legible on others


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure ready to embed."""

    name: str
    title: str
    caption: str
    source: str  # data: URI
    dark: str  # the same for dark pages
    width: int
    height: int


@dataclass(frozen=True)
class Pictures:
    """The figures of a section, and those that could not be drawn, with the reason."""

    drawn: list[Picture] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # title → why


def draw_pictures(evidence: Evidence, study: str, on_figure: Callable[[], None] = lambda: None) -> Pictures:
    """Draw every figure of the study, in the order of `FIGURES`; `on_figure` is called before each."""
    from sonde.show.figures import figures_of

    pictures = Pictures()
    for name, spec in figures_of(study).items():
        on_figure()
        if spec.beside and evidence.beside is None:
            continue
        try:
            pictures.drawn.append(_picture(name, spec, evidence))
        except (NoData, SondeError) as missing:
            pictures.skipped[spec.title] = str(missing)
    return pictures


def _picture(name: str, spec: "FigureSpec", evidence: Evidence) -> Picture:
    from PIL import Image

    from sonde.show.figures.render import PAGE_DPI, page_images

    rendered = page_images(spec, evidence)
    size = Image.open(io.BytesIO(rendered.images["light"])).size
    width, height = (round(pixels * PIXELS_PER_INCH / PAGE_DPI) for pixels in size)
    light, dark = (
        f"data:image/png;base64,{base64.b64encode(rendered.images[theme]).decode()}" for theme in ("light", "dark")
    )
    return Picture(
        name=name, title=spec.title, caption=rendered.caption, source=light, dark=dark, width=width, height=height
    )


def make_report(
    stored: Runs,
    *,
    source: str,
    title: str,
    figures: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    reader: RowReader | None = None,
) -> tuple[ReportContents, dict[str, Pictures], bytes]:
    """What the page about these runs has, its pictures by section, and the page; `on_progress` counts figures.

    `stored` and `reader` are those of `read_for_report`.
    """
    contents = report_contents(stored, source=source, title=title, reader=reader)
    drawn = {section.anchor: Pictures() for section in contents.sections}
    if figures and drawn:
        from sonde.show.figures import figures_of

        total, done = sum(len(figures_of(section.drawn_as)) for section in contents.sections), itertools.count()
        for one in contents.sections:
            drawn[one.anchor] = draw_pictures(one.evidence, one.drawn_as, lambda: on_progress(next(done), total))
    return contents, drawn, render_report(contents, drawn).encode()


def render_report(contents: ReportContents, drawn: dict[str, Pictures], *, live: bool = False) -> str:
    """The whole page; `drawn` holds the pictures of each section by its anchor.

    A `live` page has every section, also those that are empty, the colours of every model and rule, and a script that
    connects to its server.
    """
    shown = shown_runs(contents)
    scripts, styles = [*map(_asset, SCRIPTS)], [_asset("report.css")]
    if live:
        scripts.append(asset("sonde.show.live", "live.js"))
        styles.append(asset("sonde.show.live", "live.css"))
    script = joined_scripts(scripts)
    names = styled_names(shown) if shown or live else []
    style = "".join(styles) + (colour_variables(colours(names)) if names else "")
    return (
        _environment()
        .get_template("report.html")
        .render(
            **_variables(contents, drawn, shown),
            live=live,
            policy=content_policy(script, style, *(["connect-src 'self'"] if live else [])),
            style=Markup(style),
            script=Markup(script),
            data=Markup(as_script(page_data(contents, shown))),
        )
    )


def shown_runs(contents: ReportContents) -> list[LabelledRun]:
    """The runs with lines of their own; fewer where a page could not hold their values."""
    shown = sample(contents.runs)
    values = contents.rows.filter(pl.col("run").is_in([one.run.id for one in shown])).height if shown else 0
    return sample(shown, values)


def as_script(value: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def page_data(contents: ReportContents, shown: Sequence[LabelledRun]) -> dict[str, Any]:
    """The numbers that the page's script draws: what `sonde.show` in the page takes."""
    answers = [one.answer for one in contents.answered if one.answer]
    return {
        "answers": answers_data(contents.answered),
        "glossary": [
            {"key": term.key, "name": term.name, "kind": term.kind, "words": term.words} for term in contents.glossary
        ],
        "charts": chart_data(contents.rows, shown, answers) if shown else NO_CHARTS,
        "sweep": asdict(contents.sweep),
        "watched": watched_data(contents.watched),
    }


def page_parts(contents: ReportContents, drawn: dict[str, Pictures], shown: Sequence[LabelledRun]) -> dict[str, str]:
    """The markup of every part of the page: what `sonde.show` in the page takes as `html`."""
    environment, variables = _environment(), _variables(contents, drawn, shown)
    return {part: environment.get_template(f"{part}.html").render(**variables) for part in PAGE_PARTS}


def answers_data(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Every answer for the page's script, with its dots as [seed, value or null]."""

    def dots_data(dots: "Dots") -> dict[str, Any]:
        known = {key: value for key, value in asdict(dots).items() if key != "runs"}
        return known | {"values": [(seed, _rounded(value)) for seed, value in dots.values.items()]}

    return [
        {
            "id": f"answer-{section.anchor}",
            "about": section.about,
            "more": section.anchor if section.findings else "audit",
            **asdict(section.answer),
            "dots": [dots_data(dots) for dots in section.answer.dots],
        }
        for section in sections
        if section.answer is not None
    ]


def _rounded(value: float) -> float | None:
    return float(f"{value:.{CHART_DIGITS}g}") if math.isfinite(value) else None


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
        "typeset": lambda text: Markup(typeset(text)),
        "with_code": lambda text: Markup(with_code(text)),
        "duration": duration,
        "aside": aside,
        "comma_list": comma_list,
        "session_start": session_start,
        "session_text": session_text,
        "zip": zip,
    }
    return environment


def _variables(contents: ReportContents, drawn: dict[str, Pictures], shown: Sequence[LabelledRun]) -> dict[str, Any]:
    """The variables of the templates."""
    return {
        "contents": contents,
        "shown": shown,
        "ids": {one.run.id for one in shown},
        "most": None if len(shown) == len(contents.runs) else MOST_NAMED,
        "drawn": drawn,
        "totals": totals(contents.runs),
        "digits": CHART_DIGITS,
    }


def _asset(name: str) -> str:
    return asset("sonde.show.report", name)


def findings_table(findings: Sequence["StudyFinding"]) -> dict[str, Any] | None:
    """The findings that have cells, as headings with their side and lines; None where there are none."""
    said = ({"verdict": str(one.numbers["verdict"])} if "verdict" in one.numbers else {} for one in findings)
    tabled = [verdict | one.shown for one, verdict in zip(findings, said, strict=True) if one.shown]
    if not tabled:
        return None
    headings = list(dict.fromkeys(heading for cells in tabled for heading in cells))
    headings.sort(key=lambda heading: ANSWERS_FIRST.index(heading) if heading in ANSWERS_FIRST else len(ANSWERS_FIRST))
    return {
        "columns": {heading: "left" if heading in _LEFT_ALIGNED else "right" for heading in headings},
        "lines": [[cells.get(heading, "–") for heading in headings] for cells in tabled],
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


def totals(runs: Sequence[LabelledRun]) -> dict[str, Any]:
    """Seconds in training and in probes, over the n runs that recorded time in training; and how many are complete."""
    timed = [one.run.manifest.seconds for one in runs if one.run.manifest.seconds.get("train", 0.0) > 0]
    seconds = {part: sum(known.get(part, 0.0) for known in timed) for part in ("train", "probes")}
    complete = sum(one.run.status.state == "complete" for one in runs)
    return {"n": len(timed), "seconds": seconds, "complete": complete}
