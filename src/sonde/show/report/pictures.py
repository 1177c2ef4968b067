"""A study's figures as PNG images inside the page, each with its caption."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass

from sonde.core.errors import SondeError
from sonde.show.figures import Evidence, FigureSpec, NoData, figures_of
from sonde.show.figures.render import DPI, cached_picture

SHOWN = 100  # pixels of the page per inch: crisp on dense screens, legible on others
COLOURS = 128  # of the palette: a third of the bytes, and lines and letters look the same


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure ready to embed."""

    name: str
    title: str
    caption: str
    source: str  # data: URI
    width: int
    height: int


@dataclass(frozen=True)
class Pictures:
    """What was drawn of a study, and what could not be, with the reason."""

    drawn: list[Picture]
    skipped: dict[str, str]  # title → why


def pictures(evidence: Evidence, study: str, on_figure: Callable[[], None] = lambda: None) -> Pictures:
    """Every figure of the study, in the order of `FIGURES`; `on_figure` is called before each."""
    shown = Pictures([], {})
    for name, spec in figures_of(study).items():
        on_figure()
        try:
            shown.drawn.append(_picture(name, spec, evidence))
        except (NoData, SondeError) as missing:
            shown.skipped[spec.title] = str(missing)
    return shown


def _picture(name: str, spec: FigureSpec, evidence: Evidence) -> Picture:
    rendered = cached_picture(spec, evidence)

    from PIL import Image

    image = Image.open(io.BytesIO(rendered.images["png"])).convert("RGB")
    buffer = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    code = base64.b64encode(buffer.getvalue()).decode()
    return Picture(
        name=name,
        title=spec.title,
        caption=rendered.caption,
        source=f"data:image/png;base64,{code}",
        width=round(image.width * SHOWN / DPI),
        height=round(image.height * SHOWN / DPI),
    )
