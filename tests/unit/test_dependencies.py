"""The direction of dependencies, read off the import statements."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "sonde"
COMMON = "checked criteria errors generators identity losses network readers rows statistics strangers theory verdicts"
MAY_IMPORT = {
    **dict.fromkeys(COMMON.split(), ""),
    "chains": "",
    "models": "chains",
    "rules": "",
    "probes": "",
    "store": "",
    "datasets": "store",
    "tasks": "datasets store",
    "optimisers": "",
    "guests": "models optimisers rules probes tasks store",
    "config": "guests models optimisers rules probes tasks",
    "training": "config guests models optimisers rules probes tasks store",
    "engine": "config guests training store",
    "recompute": "config models store training",
    "figures": "",
    "paper": "figures",
    "report": "figures",
    "playground": "figures report",
    "compare": "store",
    "audit": "compare store",
    "studies": "audit compare config figures models paper probes rules store tasks training",
    "explanations": "",
    "watching": "diagnosis experiments store",
    "checking": "diagnosis experiments figures store watching",
    "diagnosis": "explanations",
    "experiments": "diagnosis watching",
    "integrations": "store watching",
    "bench": "config datasets engine models rules store studies tasks training",
}
FREE = {"__init__", "__main__", "cli"}
WITHOUT_TORCH = (
    "diagnosis",
    "explanations",
    "figures",
    "store",
    "paper",
    "datasets",
    "audit",
    "compare",
    "report",
    "playground",
)


def part(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [(part(file), file) for file in sorted(SOURCE.rglob("*.py"))]


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_part_has_its_place() -> None:
    assert {part for part, _ in FILES} - FREE == MAY_IMPORT.keys()


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_dependencies_point_one_way(package: str) -> None:
    allowed = {package, "__version__", *COMMON.split(), *MAY_IMPORT[package].split()}
    for file in (file for part, file in FILES if part == package):
        parts = {name.split(".")[1] for name in imported(file) if name.startswith("sonde.")}
        assert parts <= allowed, f"{file.relative_to(SOURCE)} imports {parts - allowed}"


def test_readers_need_no_torch() -> None:
    for file in (file for part, file in FILES if part in WITHOUT_TORCH):
        assert not any(name.split(".")[0] == "torch" for name in imported(file)), file
