"""A picture for every probe, rule, question and diagnosis, drawn from stored runs as the site is built.

Trained runs are those of `docs/findings/runs` and, three seeds each, of `docs/examples/runs`, which also holds faulty
and healthy programs that were watched.  Where good and bad differ, one of each stands side by side.
"""

import io
import re
from typing import Any

import pictures_trained
import pictures_watched
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from sonde.analysis.explanations import EXPLANATIONS
from sonde.rules import RULES
from sonde.show.figures import FIGURES
from sonde.show.figures.render import fix_layout, render_figure
from sonde.show.figures.style import house_style

DPI = 120
PICTURE = re.compile(r"<!-- picture: (\w+) (\w+) -->")
Drawn = tuple[bytes, str]  # a PNG image and its caption


def _png(figure: Figure) -> bytes:
    with house_style():
        figure.set_dpi(DPI)
        fix_layout(figure)
        image = io.BytesIO()
        FigureCanvasAgg(figure).print_png(image)
    return image.getvalue()


def _draw(kind: str, name: str) -> Drawn:
    if kind == "diagnosis" and pictures_watched.has_picture(name):
        figure, caption = pictures_watched.draw_watched(name)
    elif kind == "rule":
        figure, caption = pictures_trained.draw_rule(name)
    elif isinstance(what := pictures_trained.PICTURES[kind][name], pictures_trained.Ready):
        drawn = render_figure(FIGURES[what.figure], pictures_trained.evidence_of(what.study))
        return drawn.images["png"], f"{drawn.caption.strip()}. {pictures_trained.command(what.study)}"
    else:
        figure, caption = pictures_trained.draw_trained(what)
    return _png(figure), caption


NAMES = {
    "probe": tuple(pictures_trained.PICTURES["probe"]),
    "rule": tuple(name for name in RULES if name in pictures_trained.trained_rules()),
    "question": tuple(pictures_trained.PICTURES["question"]),
    "diagnosis": tuple(
        text.name
        for text in EXPLANATIONS
        if text.kind == "diagnosis"
        and (text.name in pictures_trained.PICTURES["diagnosis"] or pictures_watched.has_picture(text.name))
    ),
}
_drawn: dict[tuple[str, str], Drawn] = {}


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    for kind, names in NAMES.items():
        for name in names:
            _drawn[kind, name] = _draw(kind, name)
            content = _drawn[kind, name][0]
            files.append(File.generated(config, f"names/{kind}/{name}.png", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    up = "../" * page.file.src_uri.count("/")

    def shown(found: re.Match[str]) -> str:
        kind, name = found.groups()
        if (kind, name) not in _drawn:
            return ""
        caption = _drawn[kind, name][1]
        shown_as = f"![{name}: {caption.partition('. ')[0]}]({up}names/{kind}/{name}.png){{ loading=lazy }}"
        return f"{shown_as}\n\n<small markdown>{caption}</small>"

    return PICTURE.sub(shown, markdown)
