"""The direction of dependencies: the picture in ARCHITECTURE.md against the import statements.

python tests/unit/test_dependencies.py      # draw the picture anew, after an arrow was added on purpose
"""

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sonde"
PAGE = ROOT / "ARCHITECTURE.md"
PICTURE = re.compile(r"(?<=<!-- drawn from the imports -->\n```\n).*?(?=```)", re.DOTALL)
FREE = {"__init__", "__main__"}  # `sonde` itself hands out names of all parts
WITHOUT_TORCH = ("store", "analysis", "show", "metrics")
WITH_TORCH = ("analysis/recompute", "metrics/probes", "metrics/reductions.py", "show/paper/from_files.py")
"""Of the rooms that need no torch, what does: definitions by tensors, and configurations of studies."""

Arrows = Mapping[str, set[str]]


def part_of(file: Path) -> str:
    """The package or module right below `sonde` that a file belongs to."""
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [(part_of(file), file) for file in sorted(SOURCE.rglob("*.py"))]


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def arrows() -> Arrows:
    """Of every part, the other parts that its files import."""
    parts = {part for part, _ in FILES} - FREE
    drawn: dict[str, set[str]] = {part: set() for part in parts}
    for part, file in FILES:
        if part in parts:
            named = {name.split(".")[1] for name in imported(file) if name.startswith("sonde.")}
            drawn[part] |= (named & parts) - {part}
    return drawn


def ordered(drawn: Arrows) -> list[str]:
    """Every part above what it imports; raises where there is a circle."""
    sorter = TopologicalSorter({part: sorted(drawn[part]) for part in sorted(drawn)})
    return list(sorter.static_order())[::-1]


def picture(drawn: Arrows) -> str:
    """A line a part that imports others; below them those that import small modules alone, and those modules."""
    small = {part for part in drawn if not drawn[part]}
    floor = {part for part in drawn if not drawn[part] - small} - small
    width = max(map(len, drawn))
    lines = [
        f"{part:<{width}} → {' '.join(sorted(drawn[part] - small))}"
        for part in ordered(drawn)
        if part not in small | floor
    ]
    lines += [" ".join(sorted(floor)), f"everybody → {' '.join(sorted(small))}"]
    return "\n".join(lines) + "\n"


def test_the_picture_of_the_architecture_is_what_the_imports_say() -> None:
    match = PICTURE.search(PAGE.read_text())
    assert match is not None
    assert match.group() == picture(arrows()), f"python {Path(__file__).relative_to(ROOT)} draws it anew"


def test_every_arrow_points_downward() -> None:
    drawn = arrows()
    order = ordered(drawn)
    assert all(order.index(part) < order.index(other) for part in drawn for other in drawn[part])


@pytest.mark.parametrize("parts", ["models rules tasks metrics"])
def test_what_there_is_to_choose_from_meets_in_the_seam_alone(parts: str) -> None:
    drawn, chosen = arrows(), set(parts.split())
    assert not any(drawn[part] & chosen for part in chosen)


def test_definitions_share_nothing_with_what_they_check() -> None:
    named = {name for file in (SOURCE / "analysis" / "recompute").glob("*.py") for name in imported(file)}
    assert not {
        name for name in named if name.startswith(("sonde.metrics.probes", "sonde.metrics.reductions", "sonde.rules"))
    }


HOPS = re.findall(r"^\| \d+ \| `(\S+): (\S+)` \|", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("file", "name"), HOPS)
def test_the_walk_goes_where_the_functions_are(file: str, name: str) -> None:
    body: list[ast.stmt] = ast.parse((SOURCE / file).read_text()).body
    for part in name.split("."):
        here = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert part in here, f"{file} has no {name}"
        body = here[part].body


def test_the_walk_is_at_most_fifteen_hops_long() -> None:
    assert 1 < len(HOPS) <= 15


def test_readers_need_no_torch() -> None:
    for file in (file for part, file in FILES if part in WITHOUT_TORCH):
        if file.relative_to(SOURCE).as_posix().startswith(WITH_TORCH):
            continue
        assert not any(name.split(".")[0] == "torch" for name in imported(file)), file


def test_a_page_is_rendered_without_torch() -> None:
    """Only what gathers a page's parts knows the studies, whose configurations bring torch."""
    code = "import sys, sonde.show.report.page, sonde.show.playground; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    pages = (SOURCE / "show" / "report").glob("*.py")
    gathering = {file.name for file in pages if "sonde.studies" in imported(file)}
    assert gathering == {"sections.py"}


if __name__ == "__main__":
    PAGE.write_text(PICTURE.sub(lambda _: picture(arrows()), PAGE.read_text()))
