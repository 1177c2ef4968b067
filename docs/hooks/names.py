"""A page for each kind of name, from the texts behind `sonde explain`: nothing is said twice."""

from collections.abc import Iterable
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from sonde.analysis.explanations import EXPLANATIONS, Explanation, documented
from sonde.plugins import BUILT_IN

PAGES = {
    "probe": (
        "Probes",
        "A probe turns a snapshot (a float64 copy of the network on the first test samples) into readings. What they "
        "are for is on [Signal, gradient, credit](../concepts/signal-and-credit.md).",
    ),
    "metric": (
        "Metrics",
        "What `sonde.watch` records in a loop of yours, and what every trained run stores beside its probes.",
    ),
    "rule": (
        "Rules",
        "A rule names the credit a_l that each state h_l is told. `sonde train --rule NAME` trains with one; "
        "[Which rules train depth](../tutorials/rules.md) compares them. Good looks like a cosine well above chance at "
        "every layer and an accuracy near BP's; bad looks like a cosine at chance, whatever its size, and an accuracy "
        "no better than that of frozen blocks. Each has both in its picture, from the same network and data.",
    ),
    "question": (
        "Questions of the audit",
        "`sonde audit` asks them in this order. Why in this order, and what good and bad look like, is on "
        "[the audit's own page](../concepts/audit.md); how often each errs, on [calibration](../calibration.md).",
    ),
    "diagnosis": (
        "Diagnoses",
        "What `sonde diagnose` may say of a watched run, in the order in which one explains another. Good looks like "
        "one line: the run is fine; [My network does not train](../tutorials/does-not-train.md) shows a bad run. "
        "In each picture a healthy program stands on the left and a faulty one on the right, on one scale; below it, "
        "what `sonde diagnose` says of the faulty one.",
    ),
    "word": (
        "Words",
        "What stands beside the numbers in tables, figures and reports; the report explains the same words where they "
        "stand.",
    ),
    "model": ("Models", "Networks to choose by name: `sonde train --model NAME`."),
    "task": ("Tasks", "Data to choose by name: `sonde train --task NAME`."),
}
PARTS = (
    *(("How", "measured"), ("Good looks like", "good"), ("Bad looks like", "bad"), ("Why it matters", "why")),
    *(("Remedy", "remedy"), ("Reference", "reference")),
)


PICTURED = ("probe", "rule", "question", "diagnosis")
"""Kinds of which docs/hooks/pictures.py draws every one."""


def _entry(text: Explanation) -> str:
    parts = [f"**{title}.** {getattr(text, part)}" for title, part in PARTS if getattr(text, part)]
    parts += [f"<!-- picture: {text.kind} {text.name} -->"] * (text.kind in PICTURED)
    return "\n\n".join([f"## `{text.name}` {{ #{text.name} }}", text.short, *parts])


def _page(kind: str, texts: Iterable[Explanation]) -> str:
    title, begin = PAGES[kind]
    said = f"Each is also one command away: `sonde explain {next(iter(texts := list(texts))).name}`."
    return "\n\n".join([f"# {title}", f"{begin} {said}", *map(_entry, texts)]) + "\n"


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    known = [*EXPLANATIONS, *(text for kind, table in BUILT_IN.items() for text in documented(kind, table))]
    for kind in PAGES:
        page = _page(kind, (text for text in known if text.kind == kind))
        files.append(File.generated(config, f"names/{kind}.md", content=page))
    return files
