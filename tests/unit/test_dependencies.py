"""The direction of dependencies, read off the import statements."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "sonde"
TORCH_SIDE = {"models", "rules", "probes", "tasks", "training", "studies", "config"}
FORBIDDEN = {
    "models": {
        "rules",
        "probes",
        "tasks",
        "store",
        "training",
        "studies",
        "figures",
        "cli",
        "engine",
        "paper",
    },
    "rules": {
        "models",
        "probes",
        "tasks",
        "store",
        "training",
        "studies",
        "figures",
        "cli",
        "engine",
        "paper",
    },
    "probes": {
        "models",
        "rules",
        "tasks",
        "store",
        "training",
        "studies",
        "figures",
        "cli",
        "engine",
        "paper",
    },
    "tasks": {"models", "rules", "probes", "training", "studies", "figures", "cli", "engine", "paper"},
    "store": {
        "models",
        "rules",
        "probes",
        "tasks",
        "training",
        "studies",
        "figures",
        "cli",
        "engine",
        "paper",
        "config",
    },
    "datasets": {
        "models",
        "rules",
        "probes",
        "tasks",
        "training",
        "studies",
        "figures",
        "cli",
        "engine",
        "config",
    },
    "training": {"studies", "figures", "cli", "engine", "paper"},
    "figures": {
        "models",
        "rules",
        "probes",
        "tasks",
        "store",
        "training",
        "studies",
        "cli",
        "engine",
        "config",
    },
    "engine": {"studies", "figures", "cli", "paper"},
    "paper": {
        "models",
        "rules",
        "probes",
        "tasks",
        "store",
        "training",
        "studies",
        "cli",
        "engine",
        "config",
    },
    "studies": {"cli", "engine"},
    "compare": {*TORCH_SIDE, "figures", "cli", "engine", "paper", "audit"},
    "report": {*TORCH_SIDE, "store", "cli", "engine", "paper", "audit", "compare"},
    "audit": {*TORCH_SIDE, "figures", "cli", "engine", "paper"},
    "bench": {"cli", "figures", "report", "paper", "audit", "compare"},
}


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("package", FORBIDDEN)
def test_dependencies_point_one_way(package: str) -> None:
    for file in (SOURCE / package).rglob("*.py"):
        parts = {name.split(".")[1] for name in imported(file) if name.startswith("sonde.")}
        assert not parts & FORBIDDEN[package], (
            f"{file.relative_to(SOURCE)} imports {parts & FORBIDDEN[package]}"
        )


def test_only_the_command_line_knows_the_benchmarks() -> None:
    for file in SOURCE.rglob("*.py"):
        if file.relative_to(SOURCE).parts[0] not in ("bench", "cli"):
            assert not any(name.startswith("sonde.bench") for name in imported(file)), file


@pytest.mark.parametrize("package", ["figures", "store", "paper", "datasets", "audit", "compare", "report"])
def test_readers_need_no_torch(package: str) -> None:
    for file in (SOURCE / package).rglob("*.py"):
        assert not any(name.split(".")[0] == "torch" for name in imported(file)), file
