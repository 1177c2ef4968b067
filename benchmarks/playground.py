"""Frames a second of the playground while it trains: 50 layers of width 32, batch 32, in chromium without a GPU.

python benchmarks/playground.py             # three networks: playground.json, and the table in docs/playground.md
python benchmarks/playground.py --page      # the table anew

A frame is a step of training, all readings of all layers, and everything on the page drawn.  Beside it what a frame
costs the worker, which computes, and the page, which draws; the two work at once.  On Linux, where /proc has the
processor's time of a thread.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from live import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HERE = Path(__file__).parent
NUMBERS = HERE / "playground.json"
PAGE = HERE.parent / "docs" / "playground.md"
TABLE = re.compile(r"(<!-- benchmarks/playground.json -->\n).*?(<!-- end -->)", re.DOTALL)
WARM, FRAMES = 30, 150
SIZE = "depth=50&width=32&batch=32&pace=1&skip=true&by_depth=true"
NETWORKS = {
    "the identity, BP, single ReLU layers": f"#{SIZE}",
    "a teacher, DFA, pre-LayerNorm, two matrices a block": f"#{SIZE}&task=teacher&rule=dfa&norm=pre&block=two",
    "two spirals, Kolen–Pollack, single ReLU layers": f"#{SIZE}&task=spirals&rule=kp&optimiser=adam",
}

THREADS = ("worker", "page")

# When each frame was drawn, as the page counts them.
TIMES = """(frames) => new Promise((done) => {
  const times = [];
  let before = Number(document.documentElement.dataset.frames);
  new MutationObserver(() => {
    const now = Number(document.documentElement.dataset.frames);
    if (now > before) times.push(performance.now());
    before = now;
    if (times.length > frames) done(times);
  }).observe(document.documentElement, { attributes: true, attributeFilter: ['data-frames'] });
})"""


def measured(driven: "Browser", file: Path, place: str) -> dict[str, float]:
    """Frames a second by the clock, and the processor's milliseconds of a frame in each of the two threads."""
    page = driven.new_page(viewport={"width": 1400, "height": 900})
    page.goto(f"{file.as_uri()}{place}")
    page.evaluate(TIMES, WARM)  # until everything is compiled
    before = worked(driven)
    times: list[float] = page.evaluate(TIMES, FRAMES)
    after = worked(driven)
    page.close()
    spent = {name: (after[name] - before[name]) / len(times) for name in THREADS}
    return {"frames_per_second": 1000 * (len(times) - 1) / (times[-1] - times[0]), **spent}


def worked(driven: "Browser") -> dict[str, float]:
    """Milliseconds that the processor has worked for each of the threads, in all processes that show a page."""
    session = driven.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    found = dict.fromkeys(THREADS, 0.0)
    for id in (process["id"] for process in processes if process["type"] == "renderer"):
        for thread in Path(f"/proc/{id}/task").iterdir():
            drawing = thread.name == str(id)
            if drawing or (thread / "comm").read_text().startswith("DedicatedWorker"):
                ticks = (thread / "stat").read_text().rpartition(")")[2].split()[11:13]
                spent = 1000 * sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
                found["page" if drawing else "worker"] += spent
    return found


def measure() -> dict[str, Any]:
    from sonde.show.playground import render_playground
    from sonde_bench.table import machine

    found: dict[str, Any] = {"machine": machine(), "frames": FRAMES, "networks": {}}
    with tempfile.TemporaryDirectory() as folder, browser() as driven:
        file = Path(folder) / "playground.html"
        file.write_text(render_playground())
        found["chromium"] = driven.version
        for name, place in NETWORKS.items():
            found["networks"][name] = {key: round(value, 2) for key, value in measured(driven, file, place).items()}
            print(name, found["networks"][name], flush=True)
    return found


def table(known: dict[str, Any]) -> str:
    lines = [
        "| 50 layers, width 32, batch 32 | frames a second | worker, ms a frame | page, ms a frame |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {name} | {one['frames_per_second']:.0f} | {one['worker']:.1f} | {one['page']:.1f} |"
        for name, one in known["networks"].items()
    ]
    machine = known["machine"]
    said = (
        f"Over {known['frames']} frames of one step each, with `python benchmarks/playground.py`: "
        f"{machine['processor']}, {machine['cores']} cores at a load of {machine['load']:.1f}, no GPU, "
        f"chromium {known['chromium']}, {machine['date']}. Frames are counted by the clock, with other programs "
        "running; milliseconds are processor time in each of the two threads. The threads work at once. With a core "
        "for each, a frame would take as long as the slower thread, or as one refresh of the screen."
    )
    return "\n".join([*lines, "", said])


def placed(text: str, made: str) -> str:
    """The page with this table in its place."""
    return TABLE.sub(lambda place: f"{place[1]}{made}\n{place[2]}", text)


def main() -> None:
    if "--page" not in sys.argv[1:]:
        NUMBERS.write_text(json.dumps(measure(), indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(placed(PAGE.read_text(), table(json.loads(NUMBERS.read_text()))))


if __name__ == "__main__":
    main()
