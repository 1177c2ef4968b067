"""One self-contained HTML page from stored runs: everything on it is gathered from a store, then rendered.

Template, style, script, data and figures are in one file that fetches nothing.  Studies are imported, and their
configurations built, only where the store holds a trained run.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

import sonde
from sonde.analysis.diagnosis import DIAGNOSES
from sonde.analysis.explanations import EXPLANATIONS, documented
from sonde.analysis.runs import by_recipe
from sonde.core.formatting import number
from sonde.core.html_parts import asset, colour_variables, content_policy, joined_scripts, typeset, with_code
from sonde.metrics import TRAINED, base_of
from sonde.show.report.charts import CHART_DIGITS, NO_CHARTS, Sweep, chart_data, colours, styled_names, sweep_of
from sonde.show.report.runs import (
    MOST_NAMED,
    LabelledRun,
    ScalingSection,
    WatchedSection,
    comma_list,
    label_runs,
    sample,
    scaling_sections,
    session_start,
    session_text,
    watched_data,
    watched_sections,
)
from sonde.store.files import Place
from sonde.store.load import RowReader, load
from sonde.store.run import Runs

if TYPE_CHECKING:
    from sonde.show.figures.render import Pictures
    from sonde.show.report.answers import Dots
    from sonde.show.report.sections import AuditTable, Section
    from sonde.studies.study import StudyFinding


@dataclass(frozen=True, kw_only=True)
class AuditPart:
    """Every recipe's audit, when each question fires, and the runs that were left out."""

    tables: "Sequence[AuditTable]" = ()
    thresholds: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None  # why there is no audit


@dataclass(frozen=True, kw_only=True)
class Term:
    """A word of the page and what it means."""

    name: str  # as `sonde explain` knows it
    kind: str
    words: tuple[str, ...]  # as the page writes it
    short: str
    measured: str

    @property
    def key(self) -> str:
        """Its id on the page."""
        return f"term-{self.kind}-{self.name}"


@dataclass(frozen=True, kw_only=True)
class ReportContents:
    """Everything on the page."""

    title: str
    source: str
    written: str  # date and version
    runs: Sequence[LabelledRun]
    rows: pl.DataFrame  # of the runs that may be shown, at least
    sections: "Sequence[Section]" = ()
    audit: AuditPart = field(default_factory=lambda: AuditPart(reason="the store holds no trained run"))
    in_no_study: Mapping[str, str] = field(default_factory=dict)  # run → why
    remarks: Sequence[str] = ()
    watched: Sequence[WatchedSection] = ()
    scaling: Sequence[ScalingSection] = ()
    glossary: Sequence[Term] = ()
    sweep: Sweep = field(default_factory=Sweep)

    @property
    def answered(self) -> "list[Section]":
        """The sections that have an answer."""
        return [section for section in self.sections if section.answer is not None]


MOST_HELD_BYTES = 16_000_000  # of files with rows: about two million rows, or 200 MB in memory

_LAST_EPOCH = pl.col("epoch") == pl.col("epoch").max().over("run", "metric")
_TOP_LAYER = pl.col("layer").is_null() | (pl.col("layer") == pl.col("layer").max().over("run", "metric", "epoch"))


def read_for_report(root: str | Place) -> tuple[Runs, RowReader | None]:
    """The runs of a store and their rows.

    Of a large store only the rows that describe where each run ended, and a reader of the others.
    """
    reader = RowReader(root)
    if reader.packed_bytes <= MOST_HELD_BYTES:
        return load(root), None
    return load(root, _LAST_EPOCH & _TOP_LAYER), reader


def report_contents(stored: Runs, *, source: str, title: str, reader: RowReader | None = None) -> ReportContents:
    """Gather everything the store holds, study by study and run by run.

    With a `reader`, `stored` has the rows of `read_for_report`, and each part of the page reads those that it shows.
    """
    recipes = by_recipe(stored.runs) if stored.runs else []
    runs = label_runs(stored.runs, recipes) if stored.runs else []
    watched = watched_sections(stored)
    contents = ReportContents(
        title=title,
        source=source,
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC by sonde {sonde.__version__}",
        runs=runs,
        rows=stored.rows if reader is None else reader([one.run.id for one in sample(runs)]),
        watched=watched,
        scaling=scaling_sections(watched),
        glossary=_glossary(stored, watched),
        sweep=sweep_of(stored.runs, recipes, stored.rows) if stored.runs else Sweep(),
    )
    if stored.runs:
        from sonde.show.report.sections import with_trained_parts

        contents = with_trained_parts(contents, stored, reader)
    named = {run for section in contents.sections for run in section.left_out}
    broken = {run: why for run, why in stored.broken.items() if run not in named}
    return replace(contents, in_no_study={**contents.in_no_study, **broken})


# ── glossary ────────────────────────────────────────────────────────────────────────────────────────
_WORDS: dict[str, tuple[str, ...]] = {"null": ("null", "chance")}
_WORDS |= {name: (name,) for name in ("credit", "ceiling", "depth", "stream", "interval", "undefined")}
_WORDS |= {name: (name, f"{name}s") for name in ("block", "layer", "probe", "rule", "seed", "epoch")}
_OF_TRAINED_RUNS = {("question", one.name): (one.label,) for one in DIAGNOSES.values() if one.label} | {
    ("probe" if metric.probe == metric.name else "metric", metric.name): metric.spellings
    for metric in TRAINED.values()
    if metric.spellings
}
"""(kind, name) → how the page writes it.  Rules are written by their labels, other metrics by their names."""


def _glossary(stored: Runs, watched: Sequence[WatchedSection]) -> list[Term]:
    """The words, metrics and rules of the page, each with its explanation of `sonde explain`."""
    known, spellings = list(EXPLANATIONS), {("word", name): words for name, words in _WORDS.items()}
    if stored.runs:
        from sonde.plugins import BUILT_IN

        known += [text for kind in ("rule", "probe") for text in documented(kind, BUILT_IN[kind])]
        spellings |= _OF_TRAINED_RUNS
        for run in stored.runs:
            spellings["rule", run.config["rule"]["name"]] = (str(run.about["rule_label"]).partition(" (")[0],)
    else:
        written = _words_of(watched)
        spellings = {key: words for key, words in spellings.items() if written & {*words}}
    measured = {*stored.rows["metric"].unique(), *(name for one in watched for name in one.rows["metric"].unique())}
    for metric in measured:
        for kind in ("probe", "metric"):
            spellings.setdefault((kind, base_of(metric)), ())
    terms = [
        Term(name=text.name, kind=text.kind, words=words, short=text.short, measured=text.measured)
        for text in known
        if (words := spellings.get((text.kind, text.name))) is not None
    ]
    return sorted(terms, key=lambda term: ((term.words or (term.name,))[0].casefold(), term.kind))


def _words_of(watched: Sequence[WatchedSection]) -> set[str]:
    """Every word that the page says about watched runs."""
    texts = [f"{section.about} {section.remarks} {section.findings}" for section in watched]
    return set(re.findall(r"\w+", " ".join(texts)))


# ── the page ────────────────────────────────────────────────────────────────────────────────────────
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


def make_report(
    stored: Runs,
    *,
    source: str,
    title: str,
    figures: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    reader: RowReader | None = None,
) -> "tuple[ReportContents, dict[str, Pictures], bytes]":
    """What the page about these runs has, its pictures by section, and the page; `on_progress` counts figures.

    `stored` and `reader` are those of `read_for_report`.
    """
    contents = report_contents(stored, source=source, title=title, reader=reader)
    drawn: dict[str, Pictures] = {}
    if figures and contents.sections:
        from sonde.show.figures import figures_of
        from sonde.show.figures.render import draw_pictures

        total, done = sum(len(figures_of(section.drawn_as)) for section in contents.sections), itertools.count()
        for one in contents.sections:
            drawn[one.anchor] = draw_pictures(one.evidence, one.drawn_as, lambda: on_progress(next(done), total))
    return contents, drawn, render_report(contents, drawn).encode()


def render_report(contents: ReportContents, drawn: "dict[str, Pictures]", *, live: bool = False) -> str:
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


def page_parts(contents: ReportContents, drawn: "dict[str, Pictures]", shown: Sequence[LabelledRun]) -> dict[str, str]:
    """The markup of every part of the page: what `sonde.show` in the page takes as `html`."""
    environment, variables = _environment(), _variables(contents, drawn, shown)
    return {part: environment.get_template(f"{part}.html").render(**variables) for part in PAGE_PARTS}


def answers_data(sections: "Sequence[Section]") -> list[dict[str, Any]]:
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


def _variables(contents: ReportContents, drawn: "dict[str, Pictures]", shown: Sequence[LabelledRun]) -> dict[str, Any]:
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
