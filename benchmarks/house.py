"""Count the size of the code in this checkout, beside the goal: `make house`.

    python benchmarks/house.py            the table
    python benchmarks/house.py --names    and the names behind its counts

Sources are counted from their syntax trees.  The calls that a report makes into `src/sonde` are counted in processes
of their own: a report of a watched run of three steps, and one of the runs of docs/findings, without figures.
"""

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from versus import WATCHED

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "sonde"
FINDINGS = ROOT / "docs" / "findings" / "runs"
FREE = ("__init__", "__main__")

SHAPES = (
    *(
        "Run",
        "WatchedRun",
        "MeasuredRun",
        "RunReadings",
        "RunLine",
        "Kind",
        "Entry",
        "WatchedPart",
    ),
    *("RunValues", "RunEvidence", "Manifest"),
    "store/index.py:Line",
)
"""Classes that hold one stored run, or a part of one, under a shape of their own; with a file where others share it."""

TO_ADD = {
    "probe": {
        "src/sonde/metrics/probes/signal.py": "the function",
        "src/sonde/metrics/trained.py": "all that is said about it: test_metrics",
        "src/sonde/analysis/recompute/definitions.py": "its plain definition, which tests compare",
    },
    "rule": {
        "src/sonde/rules/dfa.py": "the class, with its label, needs and first options",
        "src/sonde/rules/__init__.py": "its line in RULES",
        "src/sonde/analysis/recompute/credits.py": "its credit for one sample and its null: contract test",
    },
    "diagnosis": {
        "src/sonde/analysis/diagnosis/network_faults.py": "the function, its text, what it explains and its place",
        "tests/faulty_programs.py": "a program that has the fault, which test_diagnosis runs",
        "docs/examples/runs": "its run, for the picture: python docs/examples/train.py",
    },
}
"""The files that somebody who adds one has to write or edit: file → what for."""

MANY_MEANINGS = {
    *("growth", "masked_growth", "loss", "nudge", "drift", "trace", "state", "nonfinite"),
    *("activation_mean", "activation_std"),  # figures, too
}
"""Names of metrics that also name something else, so that a text beside them may be about that."""


class Count(NamedTuple):
    what: str
    now: str
    goal: str
    names: tuple[str, ...] = ()


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every file of the package with its syntax tree."""
    for file in sorted(SOURCE.rglob("*.py")):
        yield file.relative_to(SOURCE).as_posix(), ast.parse(file.read_text())


def rooms() -> list[str]:
    """Folders and modules right below the package."""
    found = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    return sorted(found - set(FREE))


def defined(tree: ast.Module) -> set[str]:
    """Functions, classes and assigned names at the top level of a module; no imports, none that begins with `_`."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def shared_names() -> list[str]:
    """Top-level names that stand in two or more files."""
    files = defaultdict(list)
    for file, tree in modules():
        for name in defined(tree):
            files[name].append(file)
    return sorted(f"{name}: {', '.join(where)}" for name, where in files.items() if len(where) > 1)


def stating(metrics: set[str]) -> list[str]:
    """Files outside of `metrics/` in which a literal gives a metric a label, a symbol, a scale, bounds or an axis."""
    found = []
    for file, tree in modules():
        tables = [node for top in tree.body if isinstance(top, ast.Assign | ast.AnnAssign) for node in ast.walk(top)]
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _labels(node)]
        known = [node for node in (*tables, *calls) if isinstance(node, ast.expr) and _states(node, metrics)]
        lines = sorted({node.lineno for node in known})
        if lines and not file.startswith("metrics/"):
            found.append(f"{file}: {', '.join(map(str, lines))}")
    return found


def _states(node: ast.AST, metrics: set[str]) -> bool:
    if isinstance(node, ast.Dict):
        pairs = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        named = [value for key, value in pairs if _names_metric(key, metrics)]
        spelled = [key for key, value in pairs if _is_label(key) and _names_metric(value, metrics)]
        return any(_is_label(part) or _is_constant(part) for value in named for part in ast.walk(value)) or bool(
            spelled
        )
    if isinstance(node, ast.Call):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        return any(_names_metric(one, metrics) for one in given) and any(_is_label(one) for one in given)
    if isinstance(node, ast.Tuple):
        return any(_names_metric(one, metrics) for one in node.elts) and any(map(_is_label, node.elts))
    return False


def _labels(call: ast.Call) -> bool:
    return any(keyword.arg in ("label", "ylabel", "symbol") for keyword in call.keywords)


def _names_metric(node: ast.AST, metrics: set[str]) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return any(text.partition("[")[0].partition("/")[0] in metrics - MANY_MEANINGS for text in texts)


def _is_label(node: ast.AST) -> bool:
    """A text that is no name: it has a space in it, or a sign that no name has."""
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and (" " in text or not text.isascii() or "$" in text)


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id.isupper()


def shapes() -> list[str]:
    """Those of SHAPES that still exist, with their files."""
    found = []
    for file, tree in modules():
        classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        found += [f"{file}:{name}" for name in sorted(classes) if {name, f"{file}:{name}"} & set(SHAPES)]
    return found


REPORTED = """
import collections, json, os, sys
from sonde.cli import app
source, counts = sys.argv[1], collections.Counter()
def count(frame, event, _):
    code = frame.f_code
    is_function = code.co_flags & 1  # the body of a module or of a class is none
    if event == "call" and is_function and code.co_filename.startswith(source):
        counts[os.path.relpath(code.co_filename, source), code.co_name] += 1
sys.setprofile(count)
try:
    app(["report", "--runs", sys.argv[2], "--out", sys.argv[3], "--no-figures", "--quiet"])
except SystemExit as ended:
    assert not ended.code, ended
finally:
    sys.setprofile(None)
print(json.dumps([[file, name, n] for (file, name), n in counts.items()]))
"""


def reported(runs: Path, page: Path) -> dict[tuple[str, str], int]:
    """(file, function) → calls, of a report of these runs."""
    told = _python(REPORTED, str(SOURCE), str(runs), str(page))
    return {(file, name): n for file, name, n in json.loads(told.splitlines()[-1])}


def _python(code: str, *arguments: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise SystemExit(f"a process that is counted failed:\n{ran.stderr}")
    return ran.stdout


def counts() -> Iterator[Count]:
    sources = list(SOURCE.rglob("*.py"))
    yield Count("Python files in src", f"{len(sources)}", "200")
    yield Count("lines in src", f"{sum(len(file.read_text().splitlines()) for file in sources):,}", "32,000")
    top = rooms()
    yield Count("rooms at the top level", f"{len(top)}", "16", tuple(top))
    shared = shared_names()
    yield Count("top-level names in two or more files", f"{len(shared)}", "60", tuple(shared))
    stated = stating(metric_names())
    yield Count("places that state a metric's label, bounds or axis", f"{len(stated) + 1}", "1", tuple(stated))
    held = shapes()
    yield Count("shapes of a stored run", f"{len(held)}", "3", tuple(held))
    yield from of_reports()
    yield Count(
        "files to add a probe / rule / diagnosis",
        " / ".join(str(len(files)) for files in TO_ADD.values()),
        "3 / 3 / 3",
        tuple(f"{kind}: {', '.join(files)}" for kind, files in TO_ADD.items()),
    )
    moved = [file for files in TO_ADD.values() for file in files if not (ROOT / file).exists()]
    if moved:
        yield Count("of these, files that are gone: update TO_ADD", f"{len(moved)}", "0", tuple(moved))
    for what, name in (("public names without a docstring", "undocumented"), ("private words", "private_words")):
        lines = (ROOT / "tests" / "unit" / f"{name}.txt").read_text().splitlines()
        yield Count(what, f"{sum(int(line.partition(' ')[0]) for line in lines)}", "0", tuple(lines))
    size = (ROOT / "ARCHITECTURE.md").stat().st_size
    yield Count("bytes of ARCHITECTURE.md", f"{size:,}", "8,000")


def of_reports() -> Iterator[Count]:
    with tempfile.TemporaryDirectory() as folder:
        watched, page = Path(folder) / "watched", Path(folder) / "report.html"
        _python(WATCHED, str(watched))
        calls = reported(watched, page)
        files = sorted({file for file, _ in calls})
        made = sum(calls.values())
        goal = "30 / 6,000"
        most = sorted(calls.items(), key=lambda item: -item[1])[:10]
        said = tuple(f"{n:,} × {file}: {name}" for (file, name), n in most)
        yield Count("files / calls, report of one watched run", f"{len(files)} / {made:,}", goal, said)
        many = reported(_copied(FINDINGS, Path(folder) / "runs"), page)
        flattened = sum(n for (_, name), n in many.items() if name == "flatten")
        n = sum(1 for _ in FINDINGS.iterdir())
        yield Count(f"calls of flatten, report of {n} runs", f"{flattened:,}", "500")


def _copied(runs: Path, to: Path) -> Path:
    """A copy, so that the index that a reader may write is not left in the checkout."""
    shutil.copytree(runs, to)
    return to


def metric_names() -> set[str]:
    from sonde.metrics import TRAINED, WATCHED

    return {*TRAINED, *WATCHED}


def table(found: list[Count]) -> str:
    width = max(len(count.what) for count in found)
    lines = [f"{'':<{width}}  {'now':>12}  {'goal':>12}"]
    return "\n".join(lines + [f"{count.what:<{width}}  {count.now:>12}  {count.goal:>12}" for count in found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="the names behind the counts, too")
    chosen = parser.parse_args()
    found = list(counts())
    print(table(found))
    for count in found:
        if chosen.names and count.names:
            print(f"\n{count.what}", *(f"  {name}" for name in count.names), sep="\n")


if __name__ == "__main__":
    main()
