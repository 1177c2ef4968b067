"""The playground: engine, page, style and facts in one file that asks the network for nothing."""

import json

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from sonde import __version__
from sonde.core import formatting as verdicts
from sonde.show.figures.style import COLOR
from sonde.show.report.inline import asset, colours, joined, policy

ENGINE = (
    "random",
    "linear",
    "functions",
    "network",
    "rules",
    "optimisers",
    "tasks",
    "theory",
    "measure",
    "trainer",
    "exchange",
    "worker",
)
"""Scripts of the worker, in the order in which they are joined."""

SHARED = ("dom.js", "axes.js")
"""Scripts of the report that the page uses too."""

PAGE = ("settings", "presets", "python", "words", "charts", "history", "canvas", "controls", "page")
"""Scripts of the page, in the order in which they are joined."""

RULE_COLOR = {rule: COLOR[rule] for rule in ("bp", "fa", "dfa", "usf", "kp", "frozen")}
"""As in the figures."""

FACTS = {
    "signal_collapsed": verdicts.SIGNAL_COLLAPSED,
    "signal_fades": verdicts.HEALTHY_STD,
    "signal_exploded": verdicts.SIGNAL_EXPLODED,
    "gradient_vanished": verdicts.GRADIENT_VANISHED,
    "gradient_exploded": verdicts.GRADIENT_EXPLODED,
}
"""From which number on the page says what the findings of a study say."""


def render() -> str:
    """The whole page."""
    shared = [asset("sonde.show.report", name) for name in SHARED]
    script = joined([*shared, *(_asset(f"page/{name}.js") for name in PAGE)])
    style = _asset("playground.css") + colours(RULE_COLOR)
    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template("playground.html").render(
        version=__version__,
        policy=policy(script, style, "worker-src blob:"),
        style=Markup(style),
        script=Markup(script),
        engine=Markup(joined([_asset(f"engine/{name}.js") for name in ENGINE])),
        facts=Markup(json.dumps(FACTS)),
    )


def _asset(name: str) -> str:
    return asset("sonde.show.playground", name)
