"""The direction of imports: the picture in ARCHITECTURE.md against the import statements; the page itself.

python tests/unit/test_dependencies.py      # draw the picture again, after an arrow was added on purpose
"""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sonde"
PAGE = ROOT / "ARCHITECTURE.md"
PICTURE = re.compile(r"(?<=<!-- drawn from the imports -->\n```\n).*?(?=```)", re.DOTALL)
FREE = {"__init__", "__main__"}  # `sonde` itself hands out names of all rooms
WITHOUT_TORCH = ("store", "analysis", "show", "metrics", "cli")
WITH_TORCH = ("analysis/recompute", "metrics/probes", "metrics/reductions.py", "show/paper/__init__.py")
"""Within the rooms that need no torch, the parts that do: definitions by tensors, and configurations of studies."""

Arrows = Mapping[str, set[str]]


def part_of(file: Path) -> str:
    """The package or module right below `sonde` that a file belongs to."""
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [(part_of(file), file) for file in sorted(SOURCE.rglob("*.py"))]


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@functools.cache
def imported(file: Path) -> frozenset[str]:
    names = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def arrows() -> Arrows:
    """For every room, the other rooms that its files import."""
    parts = {part for part, _ in FILES} - FREE
    drawn: dict[str, set[str]] = {part: set() for part in parts}
    for part, file in FILES:
        if part in parts:
            named = {name.split(".")[1] for name in imported(file) if name.startswith("sonde.")}
            drawn[part] |= (named & parts) - {part}
    return drawn


def ordered(drawn: Arrows) -> list[str]:
    """Every room above those that it imports; raises where there is a cycle."""
    sorter = TopologicalSorter({part: sorted(drawn[part]) for part in sorted(drawn)})
    return list(sorter.static_order())[::-1]


def picture(drawn: Arrows) -> str:
    """A line for every room that imports others; below them the rooms that everybody imports."""
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
    assert match.group() == picture(arrows()), f"python {Path(__file__).relative_to(ROOT)} draws it again"


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


WALKS = [
    re.findall(r"^\d+\. (.*)$", walk, re.MULTILINE)
    for walk in PAGE.read_text().partition("## Three walks")[2].partition("\n## ")[0].split(":\n\n")[1:]
]
HOPS = [hop for walk in WALKS for line in walk for hop in re.findall(r"`(\w+): ([\w.]+)`", line)]


@functools.cache
def defined_in(room: str) -> set[str]:
    """Functions and classes at the top level of a room's files, and methods as `Class.method`."""
    names = set()
    for part, file in FILES:
        for node in parsed(file).body if part == room else []:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            if isinstance(node, ast.ClassDef):
                names |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return names


@pytest.mark.parametrize(("room", "name"), HOPS)
def test_the_walks_name_functions_that_exist(room: str, name: str) -> None:
    assert name in defined_in(room), f"{room} has no {name}"


def test_there_are_three_walks_of_at_most_seven_lines() -> None:
    assert len(WALKS) == 3
    assert all(1 < len(walk) <= 7 for walk in WALKS)
    assert all(re.match(r"`\w+: [\w.]+`", line) for walk in WALKS for line in walk)


def test_the_page_is_short_and_its_tree_has_every_room() -> None:
    page = PAGE.read_text()
    assert len(page.encode()) <= 8_000
    tree = page.partition("src/sonde/\n")[2].partition("```")[0]
    assert set(re.findall(r"\b(\w+)/", tree)) == {part for part, _ in FILES} - FREE


def test_every_dependency_has_a_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = PAGE.read_text().partition("## Dependencies")[2]
    packages = {re.split(r"[^\w-]", one)[0] for one in project["dependencies"]}
    assert not {package for package in packages if not re.search(rf"\b{package}\b", table)}


def test_every_room_says_what_it_is() -> None:
    for room in {part for part, _ in FILES} - FREE:
        lines = (ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text())) or "").splitlines()
        assert 10 <= len(lines) <= 40, f"the docstring of {room}/__init__.py has {len(lines)} lines"


def test_readers_need_no_torch() -> None:
    for file in (file for part, file in FILES if part in WITHOUT_TORCH):
        if file.relative_to(SOURCE).as_posix().startswith(WITH_TORCH):
            continue
        assert not any(name.split(".")[0] == "torch" for name in imported(file)), file


def test_a_page_is_rendered_without_torch() -> None:
    """Only what gathers a page's parts knows the studies, whose configurations bring torch."""
    code = "import sys, sonde.show.report, sonde.show.playground; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    pages = (SOURCE / "show" / "report").glob("*.py")
    gathering = {file.name for file in pages if "sonde.studies" in imported(file)}
    assert gathering == {"sections.py"}


if __name__ == "__main__":
    PAGE.write_text(PICTURE.sub(lambda _: picture(arrows()), PAGE.read_text()))
