"""Draw a study's figures and say where they are, and which could not be drawn."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sonde.figures.evidence import Evidence
    from sonde.figures.save import Drawn


def folder_of(label: str) -> str:
    """Where the figures of one combination of swept values lie below the others; nowhere of its own where none are."""
    return re.sub(r"[^\w.=,+-]+", "_", label.replace(", ", ","))


def draw(
    evidence: "Evidence", out: Path, *, study: str, variant: str | None = None, quiet: bool = False
) -> "Drawn":
    from sonde.figures.save import draw_all

    drawn = draw_all(evidence, out, study=study, variant=variant)
    for name, why in drawn.skipped.items():
        print(f"not drawn: {name} ({why})", file=sys.stderr)
    if drawn.files and not quiet:
        folders = sorted({file.parent for file in drawn.files})
        pictures = [file for file in drawn.files if file.suffix == ".png"]
        count = f"{len(pictures)} figure{'s' * (len(pictures) != 1)}"
        print(f"{count}, as PNG and PDF with captions, in {' and '.join(map(str, folders))}")
    return drawn
