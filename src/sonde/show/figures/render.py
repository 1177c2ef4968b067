"""Render figures, the same way for files and for the report, and cache the images of pages.

The cache key is a digest of everything a picture is drawn from: the rows and runs, the figure, the source code of this
package and the versions of the libraries that draw.
"""

import base64
import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from sonde.core import html_parts
from sonde.core.errors import SondeError, nearest
from sonde.show.figures import Evidence, FigureSpec, Layout, NoData, figures_of
from sonde.store.files import cache_key, read_cached, remove_stale, set_aside, write_cached

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "pdf")  # of every figure
DPI = 300  # the narrowest figure is 1,620 pixels wide
PAGE_DPI = 150  # of an image inside a page
PIXELS_PER_INCH = 100  # of a figure on the page: crisp on dense screens, legible on others
PALETTE = 128  # colours of an image inside a page: a third of the bytes, and lines and letters look the same
_KIND = "figures"  # in the cache
_LIBRARIES = ("matplotlib", "numpy", "polars")


@dataclass(frozen=True)
class DrawnFigures:
    """The files written, and the figures that could not be drawn with the reason."""

    files: list[Path]
    skipped: dict[str, str]


def draw_all(
    evidence: Evidence,
    out: Path,
    *,
    study: str,
    variant: str | None = None,
    layout: Layout = "study",
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> DrawnFigures:
    """Draw the study's figures below `out`, each in its formats, with its caption in a text file.

    The paper layout has other file names, and other variants of some figures.

    Figures of the runs beside a study's own are left out if there are no such runs: a changed study trains none.
    """
    figures = {name: spec for name, spec in figures_of(study).items() if not (spec.beside and evidence.beside is None)}
    _check_variant(evidence, study, variant)
    if out.exists() and not out.is_dir():
        raise SondeError(f"cannot draw into {out}: it is a file; name a folder")
    files: list[Path] = []
    skipped: dict[str, str] = {}
    for done, (name, spec) in enumerate(figures.items()):
        on_progress(done, len(figures))
        target = out / spec.path(study, layout)
        chosen = variant or spec.variant_in(layout)
        try:
            files += draw_files(spec, evidence, target, variant=chosen)
        except NoData as missing:
            stale = any(target.with_name(f"{target.name}.{suffix}").exists() for suffix in FORMATS)
            skipped[name] = f"{missing}" + "; the file already there is older" * stale
    return DrawnFigures(files, skipped)


def _check_variant(evidence: Evidence, study: str, variant: str | None) -> None:
    """Refuse a variant that no run has."""
    variants = set(evidence.runs["variant"].drop_nulls())
    if variant is not None and variant not in variants:
        there = nearest(variant, variants) if variants else f"the runs of {study} have no variants, leave it out"
        raise SondeError(f"--variant {variant}: no run in {evidence.source} has it: {there}")


def draw_files(spec: FigureSpec, evidence: Evidence, target: Path, *, variant: str | None = None) -> list[Path]:
    """Draw one figure and write its files, all or none of them; NoData if its rows are missing."""
    rendered = render_figure(spec, evidence, variant, FORMATS, for_pages=True)
    contents = {**rendered.images, "txt": rendered.caption.encode()}
    files = [target.with_name(f"{target.name}.{suffix}") for suffix in contents]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(target.parent)
        with set_aside(*files) as aside:
            for path, content in zip(aside, contents.values(), strict=True):
                path.write_bytes(content)
    except OSError as failure:
        raise SondeError(
            f"cannot write {target}: {failure.strerror or failure}; choose a folder you can write to"
        ) from failure
    return files


@dataclass(frozen=True)
class Rendered:
    """A figure as images, by format, with its caption; a notebook shows both."""

    caption: str
    images: dict[str, bytes]

    def __repr__(self) -> str:
        return f"<figure as {', '.join(self.images)}: {self.caption.partition('. ')[0]}>"

    def _repr_html_(self) -> str:
        return html_parts.picture(self.images["png"], self.caption) + html_parts.small(self.caption)


def page_images(spec: FigureSpec, evidence: Evidence) -> Rendered:
    """Small PNG images for a light and a dark page, as `light` and `dark`; from the cache if they were drawn before."""
    found = read_cached(_KIND, picture_digest(spec, spec.select(evidence)))
    if found is not None:
        caption, size, images = found.split(b"\0", 2)
        return Rendered(caption.decode(), {"light": images[: int(size)], "dark": images[int(size) :]})
    from sonde.show.figures.style import house_style

    figure, caption_text = spec.draw(evidence)
    with house_style():
        fix_layout(figure)
        images_of = _page_images(figure)
    _cache_page_images(spec, spec.select(evidence), caption_text, images_of)
    return Rendered(caption_text, images_of)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure ready to embed in a page."""

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


def _picture(name: str, spec: FigureSpec, evidence: Evidence) -> Picture:
    from PIL import Image

    rendered = page_images(spec, evidence)
    size = Image.open(io.BytesIO(rendered.images["light"])).size
    width, height = (round(pixels * PIXELS_PER_INCH / PAGE_DPI) for pixels in size)
    light, dark = (
        f"data:image/png;base64,{base64.b64encode(rendered.images[theme]).decode()}" for theme in ("light", "dark")
    )
    return Picture(
        name=name, title=spec.title, caption=rendered.caption, source=light, dark=dark, width=width, height=height
    )


def render_figure(
    spec: FigureSpec,
    evidence: Evidence,
    variant: str | None = None,
    formats: Sequence[str] = ("png",),
    *,
    for_pages: bool = False,
) -> Rendered:
    """Draw a figure in each format, all with one layout; on request, cache its page images."""
    from sonde.show.figures.style import house_style

    figure, caption = spec.draw(evidence, variant)
    with house_style():
        fix_layout(figure)
        rendered = Rendered(caption, {suffix: _image(figure, suffix) for suffix in formats})
        if for_pages:
            _cache_page_images(spec, spec.select(evidence, variant), caption, _page_images(figure))
    return rendered


def _page_images(figure: "Figure") -> dict[str, bytes]:
    """The figure for light and dark pages.  Its artists have the colours of a dark page afterwards."""
    from sonde.show.figures.style import recolour_for_dark

    light = _small_image(figure)
    recolour_for_dark(figure)
    return {"light": light, "dark": _small_image(figure)}


def _small_image(figure: "Figure") -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure.set_dpi(PAGE_DPI)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    image = drawn.quantize(PALETTE, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette: Any = np.array(image.getpalette()).reshape(-1, 3)
    palette[np.asarray(image)[0, 0]] = np.asarray(drawn)[0, 0]  # the page's own colour, not one near it
    image.putpalette(palette.ravel().tolist())
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def _cache_page_images(spec: FigureSpec, selected: Evidence, caption: str, images: dict[str, bytes]) -> None:
    parts = (caption.encode(), str(len(images["light"])).encode(), images["light"] + images["dark"])
    write_cached(_KIND, picture_digest(spec, selected), b"\0".join(parts))


def fix_layout(figure: "Figure") -> None:
    """Compute the layout and switch the layout engine off, so that every format has the same layout."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")


def _image(figure: "Figure", suffix: str) -> bytes:
    """Render straight into the format: `savefig` would draw everything twice to find the layout again."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    figure.set_dpi(DPI)
    canvas: Any = {"png": FigureCanvasAgg, "pdf": FigureCanvasPdf}[suffix](figure)
    image = io.BytesIO()
    if suffix == "pdf":
        with _without_shaping_tables():
            canvas.print_pdf(image, metadata={"CreationDate": None})  # the same data, the same bytes
    else:
        canvas.print_png(image)
    return image.getvalue()


@contextmanager
def _without_shaping_tables() -> Iterator[None]:
    """Embed fonts without the tables that place letters: in a PDF they are placed, and to thin the tables out takes
    a third of the time of a file.
    """
    from fontTools import subset  # type: ignore[import-untyped]

    options: Any = subset.Options
    before = getattr(options, "_drop_tables_default", [])
    options._drop_tables_default = [*before, "GDEF", "GPOS", "GSUB"]
    try:
        yield
    finally:
        options._drop_tables_default = before


def picture_digest(spec: FigureSpec, selected: Evidence) -> str:
    """A digest of everything that a picture depends on."""
    hashed = hashlib.sha256()
    if isinstance(selected.held, pl.DataFrame):
        tables = [selected.held, selected.runs]
    else:
        tables = [selected.runs]
        hashed.update(selected.held.stamp(selected.runs["run"]).encode())
    for table in tables:
        content = io.BytesIO()  # the oldest level stores strings in one piece: equal values give equal bytes
        table.rechunk().write_ipc(content, compat_level=pl.CompatLevel.oldest())
        hashed.update(content.getbuffer())
    return cache_key(spec.name, str(PAGE_DPI), str(selected.source), hashed.hexdigest(), libraries=_LIBRARIES)
