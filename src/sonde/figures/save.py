"""Draw every figure of a study and put the files in place, whole or not at all."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.atomic import set_aside
from sonde.errors import SondeError, nearest
from sonde.figures import FIGURES, Evidence, FigureSpec, NoData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150


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
    on_figure: Callable[[str], None] = lambda name: None,
) -> Drawn:
    """Draw the study's figures below `out`, each in its formats with its caption beside it as text.

    `on_figure` is called with a figure's name once its files are in place.
    """
    figures = {name: spec for name, spec in FIGURES.items() if spec.study == study}
    if not figures:
        known = {spec.study for spec in FIGURES.values()}
        raise SondeError(f"no figures for study {study!r}: {nearest(study, known)}")
    if out.exists() and not out.is_dir():
        raise SondeError(f"cannot draw into {out}: it is a file; name a folder")
    files: list[Path] = []
    skipped: dict[str, str] = {}
    for name, spec in figures.items():
        try:
            files += draw_one(spec, evidence, out, variant=variant)
        except NoData as missing:
            stale = [suffix for suffix in spec.formats if (out / f"{spec.path}.{suffix}").exists()]
            skipped[name] = f"{missing}" + ("; the file already there is older" if stale else "")
        else:
            on_figure(name)
    return Drawn(files, skipped)


def draw_one(spec: FigureSpec, evidence: Evidence, out: Path, *, variant: str | None = None) -> list[Path]:
    """Draw one figure and write its files; NoData where its rows are missing."""
    chosen = variant or spec.variant
    selected = evidence if chosen is None else evidence.of(variant=chosen)
    if selected.runs.is_empty():
        raise NoData(f"no runs of the {chosen} variant in {evidence.source}")
    figure, caption = spec.draw(selected)

    from sonde.figures.style import house_style

    target = out / spec.path
    files = [target.with_name(f"{target.name}.{suffix}") for suffix in (*spec.formats, "txt")]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with house_style(), set_aside(*files) as aside:
            settle_layout(figure)
            for path in aside:
                if path.suffix == ".txt":
                    path.write_text(caption, encoding="utf-8")
                else:
                    _write(figure, path, path.suffix[1:])
    except OSError as failure:
        raise SondeError(
            f"cannot write {target}: {failure.strerror or failure}; choose a folder you can write to"
        ) from failure
    return files


def settle_layout(figure: "Figure") -> None:
    """Compute the layout once, so that every format shares it."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")


def _write(figure: "Figure", path: Path, suffix: str) -> None:
    """Render straight into the format: `savefig` would draw everything twice to find the layout again."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    figure.set_dpi(DPI)
    canvas: Any = {"png": FigureCanvasAgg, "pdf": FigureCanvasPdf}[suffix](figure)
    if suffix == "pdf":
        canvas.print_pdf(path, metadata={"CreationDate": None})  # the same data, the same bytes
    else:
        canvas.print_png(path)
