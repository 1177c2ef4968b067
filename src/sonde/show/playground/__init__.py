"""The playground: engine, page, style and thresholds in one HTML file that fetches nothing."""

import json

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from sonde import __version__
from sonde.core import formatting
from sonde.core.html_parts import asset, colour_variables, content_policy, joined_scripts
from sonde.show.figures.style import COLOR

ENGINE = (
    *("random", "linear", "functions", "network", "rules", "optimisers"),
    *("tasks", "theory", "measure", "trainer", "exchange", "worker"),
)
"""Scripts of the worker, in the order in which they are joined."""

SHARED = ("dom.js", "axes.js")
"""Scripts of the report that the page uses too."""

PAGE = (
    *("settings", "presets", "python", "words", "charts", "history", "canvas", "drawing", "controls", "session"),
    "page",
)
"""Scripts of the page, in the order in which they are joined."""

RULE_COLOR = {rule: COLOR[rule] for rule in ("bp", "fa", "dfa", "usf", "kp", "pc", "pepita", "frozen")}
"""As in the figures."""

FACTS = {
    "signal_collapsed": formatting.SIGNAL_COLLAPSED,
    "signal_fades": formatting.HEALTHY_STD,
    "signal_exploded": formatting.SIGNAL_EXPLODED,
    "gradient_vanished": formatting.GRADIENT_VANISHED,
    "gradient_exploded": formatting.GRADIENT_EXPLODED,
    "grows": formatting.GROWS,
    "failed": formatting.FAILED_REDUCTION / 100,
    "learned": formatting.LEARNED_REDUCTION / 100,
}
"""Thresholds of figures and findings, which the page's words use too."""


def render_playground() -> str:
    """The whole page."""
    shared = [asset("sonde.show.report", name) for name in SHARED]
    script = joined_scripts([*shared, *(_asset(f"page/{name}.js") for name in PAGE)])
    style = _asset("playground.css") + colour_variables(RULE_COLOR)
    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template("playground.html").render(
        version=__version__,
        policy=content_policy(script, style, "worker-src blob:"),
        style=Markup(style),
        script=Markup(script),
        engine=Markup(joined_scripts([_asset(f"engine/{name}.js") for name in ENGINE])),
        facts=Markup(json.dumps(FACTS)),
        grows=f"{FACTS['grows']:g}",
        exploded=f"{FACTS['signal_exploded']:g}",
        vanished=f"{FACTS['signal_collapsed']:g}",
    )


def _asset(name: str) -> str:
    return asset("sonde.show.playground", name)
