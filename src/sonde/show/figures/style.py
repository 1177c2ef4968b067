"""How every figure looks.  A model or a rule keeps its colour, marker and line style everywhere."""

import hashlib
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

# Okabe and Ito's colour-blind safe palette.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"


class Looks(dict[str, Any]):
    """By name; a stranger's follows from its name alone, so it is the same in every figure and every report."""

    def __init__(self, ours: dict[str, Any], spare: Sequence[Any]) -> None:
        super().__init__(ours)
        self.spare = spare

    def __missing__(self, name: str) -> Any:
        digest = hashlib.sha256(f"{len(self.spare)}/{name}".encode()).digest()
        return self.spare[int.from_bytes(digest[:8], "big") % len(self.spare)]


# Models and rules are never told apart in one panel, so the two halves may share hues.
KNOWN: dict[str, tuple[str, str, Any]] = {  # colour, marker, line
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
    # All of the field at once are more than the palette has: like families, like hues.
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

# Strangers get hues that none of ours has, from Tol's bright and muted palettes; also colour-blind safe.
HUES = ("#882255", "#332288", "#999933", "#44AA99", "#AA3377", "#806000", "#4477AA", "#117733")
DASHES = ("-", (0, (6, 1)), (0, (3, 1)), (0, (1, 1.5)), (0, (6, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
COLOR = Looks({name: color for name, (color, _, _) in KNOWN.items()}, HUES)
MARKER = Looks({name: marker for name, (_, marker, _) in KNOWN.items()}, ("o", "^", "s", "D", "v"))
LINE = Looks({name: line for name, (_, _, line) in KNOWN.items()}, DASHES)

INK, FAINT = "#222222", "#6B6B6B"
COLUMN, SINGLE, DOUBLE = 3.5, 4.8, 7.2  # widths in inches

STYLE: "dict[RcKeyType, Any]" = {
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

SERIF: "dict[RcKeyType, Any]" = {
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
"""What a figure in the style of a paper changes."""


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib's defaults plus the house style, whatever the user's own settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def new_figure(width: float, height: float, title: str) -> Figure:
    """An empty figure with its title at the top left; the layout keeps room for everything."""
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
    """Small print below the panels, one line per note."""
    width = int(figure.get_figwidth() * 21)
    lines = [line for note in dict.fromkeys(notes) for line in textwrap.wrap(note, width)]
    if lines:
        figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=6.5, color=FAINT)


def fine_print(figure: Figure, notes: Iterable[str]) -> None:
    """Small print below the panels in one paragraph; the figure grows by what it takes."""
    text = unbroken(" ".join(note[0].upper() + note[1:] for note in dict.fromkeys(notes) if note))
    lines = textwrap.wrap(text, int(figure.get_figwidth() * 19))
    if lines:
        figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=6.5, color=FAINT)
    figure.set_figheight(figure.get_figheight() + 0.125 * len(lines))


def unbroken(text: str) -> str:
    """The same text with numbers, signs and units held together when it is wrapped."""
    for sign in ("=", "±"):
        text = text.replace(f" {sign} ", f"\u00a0{sign}\u00a0")
    return text.replace(" %", "\u00a0%").replace(" ×", "\u00a0×")


def panel_title(ax: Axes, *lines: str, width: int = 58) -> None:
    """What a panel shows and what it says, each on its own lines."""
    ax.set_title("\n".join(part for line in lines for part in textwrap.wrap(line, width)), color=INK)


def bar_panels(figure: Figure, rows: int = 1) -> tuple[list[list[Axes]], Axes]:
    """Rows of two panels that share their y axis, and a strip for the legend below them."""
    grid = figure.add_gridspec(rows + 1, 2, height_ratios=(*[1] * rows, 0.06))
    panels: list[list[Axes]] = []
    for row in range(rows):
        left = figure.add_subplot(grid[row, 0])
        right = figure.add_subplot(grid[row, 1], sharey=left)
        right.tick_params(labelleft=False)
        panels.append([left, right])
    return panels, figure.add_subplot(grid[rows, :])


def legend_row(ax: Axes, panels: Iterable[Axes], share: float = 1.0) -> None:
    """One legend for several panels in an empty panel of its own, every label once, in as few rows as fit.

    `share` is how much of the figure's width the legend has.
    """
    handles: dict[str, Artist] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    ax.axis("off")
    inches = share * ax.get_figure(root=True).get_figwidth()  # type: ignore[union-attr]
    lengths = [len(label) for label in handles]
    fitting = (n for n in range(len(lengths), 1, -1) if _legend_width(lengths, n) <= inches)
    ax.legend(
        list(handles.values()),
        list(handles),
        loc="center",
        ncols=next(fitting, 1),
        borderpad=0,
        borderaxespad=0,
        handlelength=2.2,
        columnspacing=1.8,
    )


def _legend_width(lengths: list[int], columns: int) -> float:
    """In inches: a column is filled from above and as wide as its longest label."""
    return sum(0.06 * float(column.max()) + 0.5 for column in np.array_split(lengths, columns))


def legend_above(ax: Axes, columns: int = 4) -> None:
    """A legend in a row above the panel, where it covers no data."""
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        borderaxespad=0.2,
        borderpad=0.2,
        handlelength=2.4,
        columnspacing=1.4,
    )
