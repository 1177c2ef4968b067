"""Render figures, the same way for files and for the report, and keep the pictures for whoever asks next.

A picture is kept under a digest of all it was drawn from: the rows and runs, the figure, the source code of this
package and the libraries that draw.  So one that is found is the one that would be drawn.
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
MOST_KEPT = 400  # pictures, of about 100 kB each
LIBRARIES = ("matplotlib", "numpy", "polars")


@dataclass(frozen=True)
class Drawn:
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
) -> Drawn:
    """Draw the study's figures below `out`, each in its formats with its caption beside it as text.

    Figures of the runs beside a study's own are left out where there are none: a study that is changed trains none.
    """
    figures = {name: spec for name, spec in figures_of(study).items() if not (spec.beside and evidence.beside is None)}
    refuse_variant(evidence, study, variant)
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
    return Drawn(files, skipped)


def refuse_variant(evidence: Evidence, study: str, variant: str | None) -> None:
    """A variant that no run has is an error, not a study without figures."""
    variants = set(evidence.runs["variant"].drop_nulls())
    if variant is not None and variant not in variants:
        there = nearest(variant, variants) if variants else f"the runs of {study} have no variants, leave it out"
        raise SondeError(f"--variant {variant}: no run in {evidence.source} has it: {there}")


def draw_files(spec: FigureSpec, evidence: Evidence, target: Path, *, variant: str | None = None) -> list[Path]:
    """Draw one figure and put its files in place, whole or not at all; NoData where its rows are missing."""
    rendered = render(spec, evidence, variant, spec.formats)
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


def picture(spec: FigureSpec, evidence: Evidence) -> Rendered:
    """The PNG image: the one that was kept when the same was drawn before, else a new one."""
    return _kept(digest(spec, spec.select(evidence))) or render(spec, evidence)


def render(
    spec: FigureSpec, evidence: Evidence, variant: str | None = None, formats: Sequence[str] = ("png",)
) -> Rendered:
    """Draw a figure in each format, all with one layout, and keep its PNG image."""
    from sonde.show.figures.style import house_style

    figure, caption = spec.draw(evidence, variant)
    with house_style():
        settle_layout(figure)
        rendered = Rendered(caption, {suffix: _image(figure, suffix) for suffix in formats})
    if "png" in formats:
        _keep(digest(spec, spec.select(evidence, variant)), rendered)
    return rendered


def settle_layout(figure: "Figure") -> None:
    """Compute the layout once, so that every format shares it."""
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


def digest(spec: FigureSpec, selected: Evidence) -> str:
    """Of everything that a picture depends on."""
    hashed = hashlib.sha256(f"{_code()} {spec.drawn_by} {DPI} {selected.source}".encode())
    for table in (selected.rows, selected.runs):
        content = io.BytesIO()  # older strings lie in one piece: the same values are the same bytes
        table.rechunk().write_ipc(content, compat_level=pl.CompatLevel.oldest())
        hashed.update(content.getbuffer())
    return hashed.hexdigest()


@cache
def _code() -> str:
    """Of every module of Sonde, so that none that has a say in a figure can be forgotten, and of what it draws with."""
    package = Path(sonde.__file__).parent
    hashed = hashlib.sha256(" ".join(map(importlib.metadata.version, LIBRARIES)).encode())
    for path in sorted(package.rglob("*.py")):
        hashed.update(f"{path.relative_to(package).as_posix()} {path.stat().st_size}\n".encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


def kept_in() -> Path:
    """The folder of the pictures that are kept; it may be deleted at any time."""
    return Path(platformdirs.user_cache_dir("sonde", appauthor=False)) / "figures"


def _kept(key: str) -> Rendered | None:
    """A picture that is whole, else None."""
    path = kept_in() / key
    try:
        seal, _, content = path.read_bytes().partition(b"\n")
        os.utime(path)  # the oldest go first
    except OSError:
        return None
    caption, _, image = content.partition(b"\0")
    return Rendered(caption.decode(), {"png": image}) if seal == _seal(key, content) else None


def _keep(key: str, rendered: Rendered) -> None:
    """Whole or not at all; where there is no room or no right to write, nothing is kept."""
    content = rendered.caption.encode() + b"\0" + rendered.images["png"]
    folder = kept_in()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        remove_stale(folder)
        with set_aside(folder / key) as (aside,):
            aside.write_bytes(_seal(key, content) + b"\n" + content)
        oldest_last = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in oldest_last[MOST_KEPT:]:
            path.unlink()


def _seal(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).hexdigest().encode()
