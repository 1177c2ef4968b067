"""What the page's symbols and words mean, in the words of `sonde explain`."""

from collections.abc import Iterable, Mapping

from sonde.analysis.explanations.by_name import EXPLANATIONS, documented
from sonde.analysis.explanations.explanation import Explanation
from sonde.metrics import TRAINED, base_of
from sonde.plugins import BUILT_IN
from sonde.show.report.parts import Term

SPELLINGS: dict[tuple[str, str], tuple[str, ...]] = {
    ("question", "growth"): ("D1",),
    ("question", "gradient"): ("D2",),
    ("question", "credit"): ("D3",),
    ("question", "worth"): ("D4",),
    ("word", "credit"): ("credit",),
    ("word", "null"): ("null", "chance"),
    ("word", "ceiling"): ("ceiling",),
    ("word", "depth"): ("depth",),
    ("word", "block"): ("block", "blocks"),
    ("word", "layer"): ("layer", "layers"),
    ("word", "stream"): ("stream",),
    ("word", "probe"): ("probe", "probes"),
    ("word", "rule"): ("rule", "rules"),
    ("word", "seed"): ("seed", "seeds"),
    ("word", "interval"): ("interval",),
    ("word", "undefined"): ("undefined",),
    ("word", "epoch"): ("epoch", "epochs"),
} | {
    ("probe" if metric.probe == metric.name else "metric", metric.name): metric.spellings
    for metric in TRAINED.values()
    if metric.spellings
}
"""As the page writes them.  Rules are written by their labels, other probes and metrics by their names."""


def glossary(rules: Mapping[str, str], metrics: Iterable[str]) -> list[Term]:
    """The words above, the rules among the runs (name → label), and their metrics: each once, with what it means."""
    known = [*EXPLANATIONS, *(text for kind in ("rule", "probe") for text in documented(kind, BUILT_IN[kind]))]
    names = {base_of(metric) for metric in metrics}
    found = []
    for text in known:
        key = (text.kind, text.name)
        if key in SPELLINGS:
            found.append(_term(text, SPELLINGS[key]))
        elif text.kind == "rule" and text.name in rules:
            found.append(_term(text, (rules[text.name],)))
        elif text.kind in ("probe", "metric") and text.name in names:
            found.append(_term(text, ()))
    return sorted(found, key=lambda term: ((term.words or (term.name,))[0].casefold(), term.kind))


def _term(text: Explanation, words: tuple[str, ...]) -> Term:
    return Term(name=text.name, kind=text.kind, words=words, short=text.short, measured=text.measured)
