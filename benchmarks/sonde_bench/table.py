"""The table of rows, in words and files."""

import importlib.metadata
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from sonde.store import files
from sonde.store.run import describe_environment
from sonde_bench.measure import Row

COLUMNS = {
    "what": "left",
    "ours": "right",
    "reference": "right",
    "BioTorch": "right",
    "limit": "right",
    "ratio": "right",
    "10–90 %": "right",
    "at most": "right",
}
TRIED = Path(__file__).with_name("tried.md")
"""What was tried and did not help; ends every page of results."""

NOTE = (
    "Reference: a bare PyTorch loop with the fused AdamW, or what the row names. Ratio: ours ÷ reference, the median "
    "over interleaved rounds and the range of their middle 80 %; process time on one thread, of a step where nothing "
    "else is said; --jobs and commands: wall time. Limit: the matrix products alone, at the rate measured in the "
    "same rounds; of a command, an interpreter that does nothing. Compiled in: by the clock, before the first step, "
    "in no ratio, and less where torch.compile finds it in its cache. * above what it may be."
)


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each row; a row against BioTorch fills the column of the row it belongs to."""
    biotorch_seconds = {row.biotorch_of: row.reference for row in rows if row.biotorch_of is not None}
    return [_line(row, biotorch_seconds.get(row.name)) for row in rows if row.biotorch_of is None]


def _line(row: Row, theirs: float | None) -> list[str]:
    bar = "" if row.bar is None else f"{row.bar:.2f}"
    if row.skipped is not None:
        return [f"{row.name}: skipped: {row.skipped}", "", "", "", "", "", "", bar]
    return [
        row.name,
        _seconds(row.ours),
        _seconds(row.reference) + ("" if row.compiling is None else f", compiled in {row.compiling:.0f} s"),
        _seconds(theirs),
        _seconds(row.limit),
        "" if row.ratio is None else f"{row.ratio:.3f}{'*' if row.above_bar else ''}",
        "" if row.p10 is None or row.p90 is None else f"{row.p10:.3f}–{row.p90:.3f}",
        bar,
    ]


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.2f} ms"


def profiles(rows: Sequence[Row]) -> list[str]:
    """Where the time goes in every row above its bar."""
    return [
        line
        for row in rows
        if row.profile
        for line in (
            f"{row.name}: {row.ratio:.3f}, at most {row.bar:.2f}; where the time goes:",
            *row.profile,
        )
    ]


def machine() -> dict[str, Any]:
    """What the times are measured on; `load` is how many others were computing there just before."""
    about = describe_environment(torch.get_num_threads(), "cpu")
    packages = ("sonde", "torch", *(name for name in ("biotorch", "jax") if find_spec(name)))
    return {
        "processor": about["machine"]["processor"],
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": about["machine"]["cores"],
        "system": about["machine"]["system"],
        "python": about["python"],
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "threads": about["threads"],
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "date": datetime.now(UTC).date().isoformat(),
    }


def markdown(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """The table with the machine's description and the profiles of slow rows."""
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    marks = ["---:" if side == "right" else "---" for side in COLUMNS.values()]
    table = [list(COLUMNS), marks, *lines(rows)]
    said = profiles(rows)
    return "\n".join(
        [
            "# Benchmark",
            "",
            f"`sonde bench` on {about['date']}: {about['processor']} ({about['instructions']}), "
            f"{about['cores']} cores; threads: {about['threads']}; load before it began: {about['load']}; "
            f"{about['system']}; Python {about['python']}, {packages}.",
            "",
            *(f"| {' | '.join(cells)} |".replace("*", "\\*") for cells in table),
            "",
            NOTE.replace("*", "\\*"),
            *(["", "```", *said, "```"] if said else []),
            "",
            TRIED.read_text(encoding="utf-8").rstrip("\n"),
            "",
        ]
    )


def save(folder: Path, rows: Sequence[Row], about: dict[str, Any]) -> list[Path]:
    """`results.json` and `results.md`."""
    files.make_folder(folder)
    content = {"machine": about, "rows": [row.to_json() for row in rows]}
    texts = {
        "results.json": json.dumps(content, indent=1, ensure_ascii=False) + "\n",
        "results.md": markdown(rows, about),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
