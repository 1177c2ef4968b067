"""A study's figures as PNG images inside the page, each with its caption."""

import base64
import io
from dataclasses import dataclass
from typing import Any

from sonde.errors import SondeError
from sonde.figures import FIGURES, Evidence, FigureSpec, NoData

DPI = 150
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


def pictures(evidence: Evidence, study: str) -> Pictures:
    """Every figure of the study, in the order of `FIGURES`."""
    found = Pictures([], {})
    for name, spec in FIGURES.items():
        if spec.study != study:
            continue
        try:
            found.drawn.append(_picture(name, spec, evidence))
        except (NoData, SondeError) as missing:
            found.skipped[spec.title] = str(missing)
    return found


def _picture(name: str, spec: FigureSpec, evidence: Evidence) -> Picture:
    selected = evidence if spec.variant is None else evidence.of(variant=spec.variant)
    if selected.runs.is_empty():
        raise NoData(f"no runs of the {spec.variant} variant in {evidence.source}")
    figure, caption = spec.draw(selected)

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    from sonde.figures.save import settle_layout
    from sonde.figures.style import house_style

    with house_style():
        settle_layout(figure)
        figure.set_dpi(DPI)
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
    image = Image.frombytes("RGBA", canvas.get_width_height(), bytes(canvas.buffer_rgba())).convert("RGB")
    buffer = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    code = base64.b64encode(buffer.getvalue()).decode()
    return Picture(
        name=name,
        title=spec.title,
        caption=caption,
        source=f"data:image/png;base64,{code}",
        width=round(image.width * SHOWN / DPI),
        height=round(image.height * SHOWN / DPI),
    )
