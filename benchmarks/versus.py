"""This checkout against an earlier one: processor times of commands and of training, in turns, and their ratio.

    git worktree add --detach /tmp/base COMMIT
    python benchmarks/versus.py /tmp/base many                 show, audit and report of 4,000 runs
    python benchmarks/versus.py /tmp/base reports training     reports of few runs; training and watching

Writes benchmarks/versus.json, and benchmarks/versus.md from it.  Each measurement is a process of its own.  The two
checkouts take turns, and the one that begins alternates; a ratio is that of the smallest times, which other programs
disturb least, and beside it stands the range of the ratios by turn.  Stores are written by the earlier checkout, and
each reads its own copy.  `--runs` takes another folder of runs than docs/findings/runs for the reports.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NUMBERS, PAGE = HERE / "versus.json", HERE / "versus.md"
MANY = 4_000

FILL = "import sys; from pathlib import Path; import store; store.fill(Path(sys.argv[1]), int(sys.argv[2]))"
WATCHED = """
import sys, torch, sonde
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
with sonde.watch(net, optimiser, runs=sys.argv[1]):
    for _ in range(3):
        optimiser.zero_grad()
        net(torch.randn(16, 4)).square().mean().backward()
        optimiser.step()
"""
TRAINING = """
import sys, tempfile, time
from dataclasses import replace
import sonde
from sonde.studies import STUDIES
study, rule, times = sys.argv[1], sys.argv[2], []
config = next(c for c in STUDIES[study].configs("quick", [42]) if f"-{rule}-" in c.id)
for turn in range(4):
    with tempfile.TemporaryDirectory() as runs:
        begin = time.process_time()
        sonde.train(replace(config, seed=turn), runs=runs)
        times.append(time.process_time() - begin)
print(min(times[1:]))
"""
WATCHING = """
import sys, tempfile, time, torch, sonde
torch.set_num_threads(1)
width, deep, steps, times = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), []
for turn in range(4):
    torch.manual_seed(0)
    layers = [part for _ in range(deep) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    net, criterion = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)), torch.nn.CrossEntropyLoss()
    optimiser = torch.optim.Adam(net.parameters())
    x, y = torch.randn(64, width), torch.randint(10, (64,))
    with tempfile.TemporaryDirectory() as runs:
        begin = time.process_time()
        with sonde.watch(net, optimiser, loss=criterion, runs=runs):
            for _ in range(steps):
                optimiser.zero_grad()
                criterion(net(x), y).backward()
                optimiser.step()
        times.append(time.process_time() - begin)
print(min(times[1:]))
"""


class Checkout:
    """A checkout whose code is run in processes of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    @property
    def commit(self) -> str:
        """Its commit, short."""
        return _git(self.root, "rev-parse", "--short", "HEAD")

    def python(self, *words: str, cache: Path | None = None) -> str:
        """The standard output of a Python process with this checkout's package and benchmarks."""
        paths = os.pathsep.join((str(self.root / "src"), str(self.root / "benchmarks")))
        given = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        given.pop("PYTHONDONTWRITEBYTECODE", None)  # or every process compiles anew
        given |= {"XDG_CACHE_HOME": str(cache), "SONDE_CACHE": str(cache)} if cache else {}
        done = subprocess.run([sys.executable, *words], env=given, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{self.root}: {' '.join(words)[-300:]}\n{done.stderr}")
        return done.stdout

    def seconds(self, *words: str, cache: Path | None = None) -> float:
        """The processor time of a command of Sonde's, its start included."""
        before = _spent()
        self.python("-m", "sonde", *words, cache=cache)
        return _spent() - before


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout.strip()


Measure = Callable[[Checkout, Path], float]
"""Seconds of something, of a checkout, with a folder of its own."""


def in_turns(pair: tuple[Checkout, Checkout], folders: tuple[Path, Path], measure: Measure, turns: int) -> Any:
    """Both checkouts, one after the other, so many times; the first turn is not counted."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for which in (0, 1) if turn % 2 else (1, 0):
            took = measure(pair[which], folders[which])
            if turn:
                taken[which].append(took)
    before, now = (min(times) for times in taken)
    ratios = sorted(new / old for old, new in zip(*taken, strict=True))
    return {
        "before": round(before, 3),
        "now": round(now, 3),
        "ratio": round(now / before, 4),
        "range": [round(ratios[0], 3), round(ratios[-1], 3)],
        "turns": turns,
    }


def many(pair: tuple[Checkout, Checkout], place: Path, _: Path) -> Iterator[tuple[str, tuple[Path, Path], Measure]]:
    """Readers of a store of thousands, with an index and without."""
    store = place / "before"
    if not store.exists():
        pair[0].python("-c", FILL, str(store), str(MANY))
    folders = (store, _copy(store, place / "now"))
    for name in ("show", "audit", "report"):
        out = ("--no-figures", "--quiet", "--out", str(place / "report.html")) if name == "report" else ()
        yield f"{name}, {MANY:,} runs", folders, _command(name, *out)
    yield f"show, {MANY:,} runs, no index", folders, _without_index("show")


def _copy(store: Path, to: Path) -> Path:
    """Files as links, the index left out."""
    if not to.exists():
        shutil.copytree(store, to, copy_function=os.link, ignore=shutil.ignore_patterns(".index", ".locks"))
    return to


def _command(*words: str) -> Measure:
    return lambda checkout, folder: checkout.seconds(*words, "--runs", str(folder), cache=folder.parent / "cache")


def _without_index(*words: str) -> Measure:
    def measure(checkout: Checkout, folder: Path) -> float:
        shutil.rmtree(folder / ".index", ignore_errors=True)
        return _command(*words)(checkout, folder)

    return measure


def reports(
    pair: tuple[Checkout, Checkout], place: Path, runs: Path
) -> Iterator[tuple[str, tuple[Path, Path], Measure]]:
    """Reports of the published runs, and of one watched run."""
    few = (_copy(runs, place / "few-before"), _copy(runs, place / "few-now"))
    page = ("report", "--quiet", "--out", str(place / "report.html"))
    n = sum(1 for path in runs.iterdir() if not path.name.startswith("."))
    yield f"report, {n} runs", few, _command(*page, "--no-figures")
    yield f"report, {n} runs, figures drawn before", few, _command(*page)
    watched = (place / "watched-before", place / "watched-now")
    pair[0].python("-c", WATCHED, str(watched[0]))
    _copy(watched[0], watched[1])
    yield "report, one watched run", watched, _command(*page)


def training(pair: tuple[Checkout, Checkout], place: Path, _: Path) -> Iterator[tuple[str, tuple[Path, Path], Measure]]:
    """Whole runs of the quick studies, and loops that are watched; imports are not counted."""
    nowhere = (place, place)
    for study, rule in (("residual", "bp"), ("audit", "bp"), ("audit", "dfa"), ("audit", "state_bridge")):
        yield f"train: {study}, {rule}", nowhere, _program(TRAINING, study, rule)
    for width, deep, steps in ((32, 3, 2000), (256, 6, 500)):
        yield f"watch: MLP of {deep} × {width}", nowhere, _program(WATCHING, str(width), str(deep), str(steps))


def _program(code: str, *words: str) -> Measure:
    return lambda checkout, _: float(checkout.python("-c", code, *words).splitlines()[-1])


PARTS = {"many": many, "reports": reports, "training": training}


def page(known: dict[str, Any]) -> str:
    """The tables of all that was measured."""
    lines = [
        "# This checkout against earlier ones",
        "",
        "Written by `benchmarks/versus.py` from `versus.json`. Seconds are processor time, the smallest of all turns;",
        "in brackets the range of the ratio by turn. Both checkouts take turns on one machine, beside other work.",
    ]
    for part, found in known.items():
        lines += [
            "",
            f"## {part}: {found['now']} against {found['before']}, {found['on']}, load {found['load']}",
            "",
            "| | before, s | now, s | now ÷ before | turns |",
            "|---|---:|---:|---:|---:|",
        ]
        for name, row in found["rows"].items():
            low, high = row["range"]
            ratio = f"{row['ratio']:.3f} ({low:.2f} to {high:.2f})"
            lines.append(f"| {name} | {row['before']:.2f} | {row['now']:.2f} | {ratio} | {row['turns']} |")
    return "\n".join(lines) + "\n"


def _about(pair: tuple[Checkout, Checkout]) -> dict[str, Any]:
    """Which checkouts were measured, when, and beside how much other work."""
    load = round(os.getloadavg()[0], 1)
    return {"before": pair[0].commit, "now": pair[1].commit, "on": f"{datetime.now(UTC):%Y-%m-%d}", "load": load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, nargs="?", help="the folder of the earlier checkout; none: write the page")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure (default: everything)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=HERE.parent / "docs" / "findings" / "runs")
    parser.add_argument("--place", type=Path, help="a folder for the stores, which are kept there")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    chosen = parser.parse_args()
    known: dict[str, Any] = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    if chosen.base is not None:
        pair = (Checkout(chosen.base), Checkout(HERE.parent))
        with tempfile.TemporaryDirectory() as temporary:
            place = chosen.place or Path(temporary)
            place.mkdir(parents=True, exist_ok=True)
            for part in chosen.parts or PARTS:
                rows = known.get(part, {}).get("rows", {}) if chosen.only else {}
                for name, folders, measure in PARTS[part](pair, place, chosen.runs):
                    if chosen.only not in name:
                        continue
                    rows[name] = in_turns(pair, folders, measure, chosen.turns)
                    print(name, rows[name], flush=True)
                    known[part] = _about(pair) | {"rows": rows}
                    NUMBERS.write_text(json.dumps(known, indent=1) + "\n")
    PAGE.write_text(page(known))


if __name__ == "__main__":
    main()
