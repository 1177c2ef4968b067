"""A page for each kind of name, from the texts behind `sonde explain`; rules have a page each (rules.py)."""

from collections.abc import Iterable
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from sonde.analysis.explanations import EXPLANATIONS, Explanation, documented
from sonde.plugins import BUILT_IN

PAGES = {
    "probe": (
        "Probes",
        "A probe computes readings from a snapshot: a float64 copy of the network on the first test samples. "
        "[Signal, gradient, credit](../concepts/signal-and-credit.md) says what they are for.",
    ),
    "metric": (
        "Metrics",
        "These are the values that `sonde.watch` records in your loop, and those that every trained run stores besides "
        "its probes.",
    ),
    "question": (
        "Questions of the audit",
        "`sonde audit` asks these questions, in this order. [The audit](../concepts/audit.md) explains the order, and "
        "[calibration](../calibration.md) measures how often each question is wrong.",
    ),
    "diagnosis": (
        "Diagnoses",
        "These are the diagnoses of `sonde diagnose`; a cause comes before its symptoms. A healthy run gets one line "
        "instead. [My network does not train](../tutorials/does-not-train.md) shows a run that fails. Each picture has "
        "a healthy program on the left and a faulty one on the right, on one scale. The caption quotes what "
        "`sonde diagnose` says about the faulty one.",
    ),
    "word": (
        "Words",
        "These words appear in tables, figures and reports. The report explains them, too.",
    ),
    "model": (
        "Models",
        "Networks to choose by name: `sonde train --model NAME`. Two of them have similar names. `res_mlp` (label: "
        "Residual MLP) has one matrix and a ReLU in each layer, and no normalisation: the residual study trains it. "
        "`residual_mlp` (label: ResMLP) has pre-norm blocks of two matrices between an "
        "embedding and a readout: the other studies train it.",
    ),
    "task": ("Tasks", "Data to choose by name: `sonde train --task NAME`."),
}
PARTS = (
    *(("How", "measured"), ("Good looks like", "good"), ("Bad looks like", "bad"), ("Why it matters", "why")),
    *(("Remedy", "remedy"), ("Reference", "reference")),
)


PICTURED = ("probe", "question", "diagnosis")
"""Kinds of which docs/hooks/pictures.py draws every one."""


def _entry(text: Explanation) -> str:
    parts = [f"**{title}.** {getattr(text, part)}" for title, part in PARTS if getattr(text, part)]
    parts += [f"<!-- picture: {text.kind} {text.name} -->"] * (text.kind in PICTURED)
    return "\n\n".join([f"## `{text.name}` {{ #{text.name} }}", text.short, *parts])


def _page(kind: str, texts: Iterable[Explanation]) -> str:
    title, begin = PAGES[kind]
    said = f"On the terminal: `sonde explain {next(iter(texts := list(texts))).name}`."
    return "\n\n".join([f"# {title}", f"{begin} {said}", *map(_entry, texts)]) + "\n"


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    known = [*EXPLANATIONS, *(text for kind, table in BUILT_IN.items() for text in documented(kind, table))]
    for kind in PAGES:
        page = _page(kind, (text for text in known if text.kind == kind))
        files.append(File.generated(config, f"names/{kind}.md", content=page))
    return files


def on_post_page(output: str, **_: Any) -> str:
    """The theme's search dialog has no name, which screen readers need."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
