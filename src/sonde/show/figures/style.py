"""How every figure looks: colours, markers, fonts, titles and legends.

A model or a rule keeps its colour, marker and line style everywhere.
"""

import colorsys
import hashlib
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import to_hex, to_rgb, to_rgba, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text

from sonde.core.formatting import sentence_case
from sonde.core.html_parts import DARK_INK, DARK_PAGE, ON_DARK

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

# Okabe and Ito's colour-blind safe palette.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"


class Style(dict[str, Any]):
    """A colour, marker or line style for every name.

    A name that is not in the table gets one of `spare`, chosen by a hash of the name: it is the same in every figure
    and every report.  So a new rule or a plugin needs no entry.
    """

    def __init__(self, known: dict[str, Any], spare: Sequence[Any]) -> None:
        super().__init__(known)
        self.spare = spare

    def __missing__(self, name: str) -> Any:
        digest = hashlib.sha256(f"{len(self.spare)}/{name}".encode()).digest()
        return self.spare[int.from_bytes(digest[:8], "big") % len(self.spare)]


# One panel shows either models or rules, so a model and a rule may share a colour.
_KNOWN: dict[str, tuple[str, str, Any]] = {  # colour, marker, line
    "plain_mlp": (VERMILLION, "s", (0, (4, 1.2))),
    "res_mlp": (BLUE, "o", "-"),
    "residual_mlp": (GREEN, "o", "-"),
    "vit_mini": (PURPLE, "^", (0, (4, 1.2))),
    "student_net": (ORANGE, "D", (0, (1, 1))),
    "bp": (BLACK, "o", "-"),
    "fa": (SKY, "^", (0, (5, 1.5))),
    "dfa": (VERMILLION, "s", (0, (3, 1, 1, 1))),
    "state_bridge": (GREEN, "D", (0, (1, 1))),
    "credit_bridge": (PURPLE, "v", (0, (5, 1, 1, 1, 1, 1))),
    "frozen": (GREY, "x", (0, (2, 2))),
    # More rules than the palette has colours: rules of one kind have similar colours.
    "usf": (ORANGE, "P", "-"),
    "frsf": ("#DDAA33", "P", (0, (4, 1.2))),
    "brsf": ("#BB7700", "P", (0, (1, 1))),
    "kp": (BLUE, "X", "-"),
    "mirror": ("#88CCEE", "X", (0, (4, 1.2))),
    "drtp": ("#CC6677", "<", "-"),
    "dkp": ("#7A3B69", "<", (0, (4, 1.2))),
    "fdfa": ("#AA4499", "<", (0, (1, 1))),
    "forward_gradient": ("#8A8A00", ">", "-"),
    "predsim": ("#2A9D8F", "h", "-"),
    "ddtp": ("#4B3F9E", "p", "-"),
    "conv_net": (SKY, "v", "-"),
    "res_net": (BLACK, "P", (0, (4, 1.2))),
    # Programs that were watched.
    "healthy": (BLUE, "o", "-"),
    "faulty": (VERMILLION, "s", (0, (4, 1.2))),
}

# Colours that no name above has, from Tol's bright and muted palettes; also colour-blind safe.
_SPARE_COLOURS = ("#882255", "#332288", "#999933", "#44AA99", "#AA3377", "#806000", "#4477AA", "#117733")
_SPARE_LINES = ("-", (0, (6, 1)), (0, (3, 1)), (0, (1, 1.5)), (0, (6, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
COLOR = Style({name: color for name, (color, _, _) in _KNOWN.items()}, _SPARE_COLOURS)
MARKER = Style({name: marker for name, (_, marker, _) in _KNOWN.items()}, ("o", "^", "s", "D", "v"))
LINE = Style({name: line for name, (_, _, line) in _KNOWN.items()}, _SPARE_LINES)

RULE_ORDER = ("bp", "fa", "dfa", "state_bridge", "credit_bridge", "frozen")
"""The rules that come first in every legend; all others follow by name."""


def rule_rank(rule: str) -> int:
    """The place of a rule in a legend; rules that are not in `RULE_ORDER` share the last one."""
    return RULE_ORDER.index(rule) if rule in RULE_ORDER else len(RULE_ORDER)


INK, FAINT, PAPER = "#222222", "#6B6B6B", "#FFFFFF"
TABLE_RULE, NO_VALUE = "#D0D0D0", "#BDBDBD"  # between rows of a table; of a heat map's undefined cells
SINGLE_PANEL, DOUBLE = 5.4, 7.2  # widths in inches

RC_PARAMS: "dict[RcKeyType, Any]" = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "ytick.minor.size": 0,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.2,
    "figure.titlesize": 9.5,
    "figure.titleweight": "bold",
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "pdf.fonttype": 42,  # TrueType: Type 3 fonts are refused by publishers and cannot be edited
    "mathtext.fontset": "dejavusans",
}

SERIF_PARAMS: "dict[RcKeyType, Any]" = {
    "font.family": ["STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "figure.titlesize": 10,
    "grid.linestyle": ":",
    "grid.color": "#C8C8C8",
}
"""What a figure in the style of a paper sets differently."""


@contextmanager
def house_style() -> Iterator[None]:
    """Use matplotlib's defaults plus `RC_PARAMS`, and ignore the user's own settings."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC_PARAMS)
        yield


def new_figure(width: float, height: float, title: str) -> Figure:
    """Create an empty figure with constrained layout; a long title is broken at its commas."""
    figure = Figure(figsize=(width, height), layout="constrained")
    lines = [""]
    for part in title.split(", "):
        joined = f"{lines[-1]}, {part}" if lines[-1] else part
        if len(joined) <= width * 11.5:
            lines[-1] = joined
        else:
            lines.append(part)
    figure.suptitle(",\n".join(line for line in lines if line), x=0.012, ha="left", color=INK)
    return figure


def footnotes(figure: Figure, notes: Iterable[str]) -> None:
    """Write small print below the panels, each note on its own lines."""
    width = int(figure.get_figwidth() * 21)
    _write_below(figure, [line for note in dict.fromkeys(notes) for line in textwrap.wrap(note, width)])


def fine_print(figure: Figure, notes: Iterable[str]) -> None:
    """Write small print below the panels in one paragraph, and make the figure higher by what it takes."""
    text = unbroken(" ".join(sentence_case(note) for note in dict.fromkeys(notes) if note))
    lines = textwrap.wrap(text, int(figure.get_figwidth() * 19))
    _write_below(figure, lines)
    figure.set_figheight(figure.get_figheight() + 0.125 * len(lines))


def _write_below(figure: Figure, lines: list[str]) -> None:
    if lines:
        figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=6.5, color=FAINT)


def unbroken(text: str) -> str:
    """Replace the spaces around signs and units, so that wrapping keeps a number with them."""
    for sign in ("=", "±"):
        text = text.replace(f" {sign} ", f"\u00a0{sign}\u00a0")
    return text.replace(" %", "\u00a0%").replace(" ×", "\u00a0×")


def panel_title(ax: Axes, *lines: str, width: int = 58) -> None:
    """Set the title of a panel; each line is wrapped at `width` letters."""
    ax.set_title("\n".join(part for line in lines for part in textwrap.wrap(line, width)), color=INK)


def panel_grid(
    figure: Figure, rows: int, columns: int, *, legend: float = 0.06, share_y: bool = False
) -> tuple[list[list[Axes]], Axes]:
    """Create rows of panels and a strip below them for the legend, `legend` of a panel high.

    With `share_y` the panels of a row share the y axis, and only the left one labels it.
    """
    layout = figure.add_gridspec(rows + 1, columns, height_ratios=(*[1] * rows, legend))
    grid: list[list[Axes]] = []
    for row in range(rows):
        left = figure.add_subplot(layout[row, 0])
        shared = left if share_y else None
        grid.append([left, *(figure.add_subplot(layout[row, at], sharey=shared) for at in range(1, columns))])
        for ax in grid[row][1:]:
            ax.tick_params(labelleft=not share_y)
    return grid, figure.add_subplot(layout[rows, :])


def legend_row(ax: Axes, panels: Iterable[Axes], share: float = 1.0) -> None:
    """Draw one legend for several panels into an empty panel: each label once, in as few rows as fit.

    `share` is the part of the figure's width that the legend may take.
    """
    handles = legend_entries(panels)
    ax.axis("off")
    inches = share * ax.get_figure(root=True).get_figwidth()  # type: ignore[union-attr]
    lengths = [max(map(len, label.split("\n"))) for label in handles]
    fitting = (n for n in range(len(lengths), 1, -1) if _legend_width(lengths, n) <= inches)
    style: dict[str, Any] = {"borderpad": 0, "borderaxespad": 0, "handlelength": 2.2, "columnspacing": 1.8}
    ax.legend(list(handles.values()), list(handles), loc="center", ncols=next(fitting, 1), **style)


SEED_LINE, BAND = "_seed", "_band"
"""Labels of the line of a seed and of a band, which have one entry in a legend, whatever their colour."""


def legend_entries(panels: Iterable[Axes]) -> dict[str, Artist]:
    """Everything that is drawn, each label once; thin lines of seeds and bands come last."""
    handles: dict[str, Artist] = {}
    kinds: set[object] = set()
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
        kinds |= {artist.get_label() for artist in (*panel.lines, *panel.collections)}
    if SEED_LINE in kinds:
        handles["one seed"] = Line2D([], [], color=FAINT, linewidth=0.6)
    if BAND in kinds:
        handles["± s.d. over seeds"] = Patch(color=FAINT, alpha=0.2, linewidth=0)
    return handles


def _legend_width(lengths: list[int], columns: int) -> float:
    """In inches: a column is filled from above and as wide as its longest label."""
    return sum(0.06 * float(column.max()) + 0.5 for column in np.array_split(lengths, columns))


def legend_above(ax: Axes, columns: int = 4) -> None:
    """Draw the legend in a row above the panel, where it covers no data."""
    style: dict[str, Any] = {"borderpad": 0.2, "borderaxespad": 0.2, "handlelength": 2.4, "columnspacing": 1.4}
    handles = legend_entries([ax])
    ax.legend(list(handles.values()), list(handles), loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, **style)


# ── dark pages ──────────────────────────────────────────────────────────────────────────────────────
_DARK_MAPS = {"RdBu_r": "berlin"}  # from blue to red over white → over black
_LEAST_LUMINANCE = 0.16  # of a line on a dark page: a contrast of 3.5 and more


def recolour_for_dark(figure: Figure) -> None:
    """Give every artist the colour that it has on a dark page.  Colour maps with a white centre get a dark one."""
    for artist in figure.findobj():
        if isinstance(artist, Line2D):
            artist.set_markerfacecolor(_on_dark(artist.get_markerfacecolor()))
            artist.set_markeredgecolor(_on_dark(artist.get_markeredgecolor()))
            artist.set_color(_on_dark(artist.get_color()))
        elif isinstance(artist, Text):
            artist.set_color(_on_dark(artist.get_color()))
            arrow = artist.arrow_patch if isinstance(artist, Annotation) else None
            for patch in (artist.get_bbox_patch(), arrow):
                _recolour_patch(patch)
        elif isinstance(artist, Patch):
            _recolour_patch(artist)
        elif isinstance(artist, AxesImage):
            _recolour_map(artist)
        elif isinstance(artist, Collection) and artist.get_array() is None:
            artist.set_facecolor([_on_dark(color) for color in to_rgba_array(artist.get_facecolor())])
            artist.set_edgecolor([_on_dark(color) for color in to_rgba_array(artist.get_edgecolor())])


def _recolour_patch(patch: Patch | None) -> None:
    if patch is not None:
        patch.set_facecolor(_on_dark(patch.get_facecolor()))
        patch.set_edgecolor(_on_dark(patch.get_edgecolor()))


def _recolour_map(image: AxesImage) -> None:
    known = image.get_cmap()
    dark = _DARK_MAPS.get(known.name, "")
    if dark in matplotlib.colormaps:  # matplotlib 3.10
        image.set_cmap(matplotlib.colormaps[dark].with_extremes(bad=_on_dark(known.get_bad())))


def _on_dark(color: Any) -> Any:
    """The colour on a dark page, as transparent as before."""
    if isinstance(color, str) and color == "none":
        return color
    red, green, blue, alpha = to_rgba(color)
    return (*_opaque_on_dark(to_hex((red, green, blue)).upper()), alpha)


@cache
def _opaque_on_dark(color: str) -> tuple[float, float, float]:
    """Greys run from the dark page's ink (black) to the page (white); other colours become lighter where needed."""
    if color in ON_DARK:
        return to_rgb(ON_DARK[color])
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(color))
    if saturation < 0.12:
        ink, page = (np.array(to_rgb(end)) for end in (DARK_INK, DARK_PAGE))
        red, green, blue = (ink + lightness * (page - ink)).tolist()
        return red, green, blue
    if lightness > 0.8:  # a tint behind something else
        return colorsys.hls_to_rgb(hue, 1.05 - lightness, 0.6 * saturation)
    while _luminance(rgb := colorsys.hls_to_rgb(hue, lightness, saturation)) < _LEAST_LUMINANCE:
        lightness += 0.02
    return rgb


def _luminance(rgb: tuple[float, float, float]) -> float:
    """Relative luminance as in WCAG 2."""
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
