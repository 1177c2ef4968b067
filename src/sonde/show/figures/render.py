"""Render figures, the same way for files and for the report, and cache the pictures.

The cache key is a digest of everything a picture is drawn from: the rows and runs, the figure, the source code of this
package and the versions of the libraries that draw.  So a picture found in the cache is the one that would be drawn.
"""

import hashlib
import importlib.metadata
import io
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
import polars as pl

import sonde
from sonde.core import html_parts
from sonde.core.atomic import remove_stale, set_aside
from sonde.core.errors import SondeError, nearest
from sonde.show.figures import Evidence, FigureSpec, NoData, figures_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
MOST_CACHED = 400  # pictures, of about 100 kB each
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
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> DrawnFigures:
    """Draw the study's figures below `out`, each in its formats, with its caption in a text file.

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
        target = out / spec.paths[study]
        try:
            files += draw_files(spec, evidence, target, variant=variant)
        except NoData as missing:
            stale = any(target.with_name(f"{target.name}.{suffix}").exists() for suffix in spec.formats)
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
    rendered = render_figure(spec, evidence, variant, spec.formats)
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


def cached_picture(spec: FigureSpec, evidence: Evidence) -> Rendered:
    """The PNG image, from the cache if the same was drawn before."""
    return _read_cached(picture_digest(spec, spec.select(evidence))) or render_figure(spec, evidence)


def render_figure(
    spec: FigureSpec, evidence: Evidence, variant: str | None = None, formats: Sequence[str] = ("png",)
) -> Rendered:
    """Draw a figure in each format, all with one layout, and cache its PNG image."""
    from sonde.show.figures.style import house_style

    figure, caption = spec.draw(evidence, variant)
    with house_style():
        fix_layout(figure)
        rendered = Rendered(caption, {suffix: _image(figure, suffix) for suffix in formats})
    if "png" in formats:
        _write_cached(picture_digest(spec, spec.select(evidence, variant)), rendered)
    return rendered


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
        canvas.print_pdf(image, metadata={"CreationDate": None})  # the same data, the same bytes
    else:
        canvas.print_png(image)
    return image.getvalue()


def picture_digest(spec: FigureSpec, selected: Evidence) -> str:
    """A digest of everything that a picture depends on."""
    hashed = hashlib.sha256(f"{_code_digest()} {spec.drawn_by} {DPI} {selected.source}".encode())
    for table in (selected.rows, selected.runs):
        content = io.BytesIO()  # the oldest level stores strings in one piece: equal values give equal bytes
        table.rechunk().write_ipc(content, compat_level=pl.CompatLevel.oldest())
        hashed.update(content.getbuffer())
    return hashed.hexdigest()


@cache
def _code_digest() -> str:
    """A digest of every module of Sonde, because any may affect a figure, and of the versions of the libraries."""
    package = Path(sonde.__file__).parent
    hashed = hashlib.sha256(" ".join(map(importlib.metadata.version, _LIBRARIES)).encode())
    for path in sorted(package.rglob("*.py")):
        hashed.update(f"{path.relative_to(package).as_posix()} {path.stat().st_size}\n".encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


def picture_cache() -> Path:
    """The folder of the cached pictures; it may be deleted at any time."""
    return Path(platformdirs.user_cache_dir("sonde", appauthor=False)) / "figures"


def _read_cached(key: str) -> Rendered | None:
    """A cached picture; None if there is none, or if its file is damaged."""
    path = picture_cache() / key
    try:
        checksum, _, content = path.read_bytes().partition(b"\n")
        os.utime(path)  # the least recently used are deleted first
    except OSError:
        return None
    caption, _, image = content.partition(b"\0")
    return Rendered(caption.decode(), {"png": image}) if checksum == _checksum(key, content) else None


def _write_cached(key: str, rendered: Rendered) -> None:
    """Cache a picture and delete the oldest; nothing happens if the folder cannot be written."""
    content = rendered.caption.encode() + b"\0" + rendered.images["png"]
    folder = picture_cache()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        remove_stale(folder)
        with set_aside(folder / key) as (aside,):
            aside.write_bytes(_checksum(key, content) + b"\n" + content)
        oldest_last = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in oldest_last[MOST_CACHED:]:
            path.unlink()


def _checksum(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).hexdigest().encode()
