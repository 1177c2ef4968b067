"""How long the live page takes to show what was stored: from the end of a flush or an epoch to the browser's page.

python benchmarks/live.py             # three loops of ten updates each: live.json, and the table in docs/live.md
python benchmarks/live.py --page      # the table anew

One update follows the other as soon as the page has shown it.  Both clocks are this machine's.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
NUMBERS = HERE / "live.json"
PAGE = HERE.parent / "docs" / "live.md"
TABLE = re.compile(r"(<!-- benchmarks/live.json -->\n).*?(<!-- end -->)", re.DOTALL)
UPDATES = 10
START = 300_000  # milliseconds until the server has started
WATCH = """([selector]) => {
  window.shownAt = {};
  const look = () => {
    const text = document.querySelector(selector)?.textContent;
    if (text && !(text in window.shownAt)) window.shownAt[text] = Date.now() / 1000;
  };
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


@contextmanager
def browser() -> "Iterator[Browser]":
    """Debian's chromium, or the one that SONDE_CHROMIUM names."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SONDE_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@contextmanager
def live_page(driven: "Browser", runs: Path, **options: Any) -> "Iterator[Page]":
    """`sonde live` in a process of its own, and its page."""
    command, pipe = [sys.executable, "-m", "sonde", "live", "--runs", runs.name], subprocess.PIPE
    with subprocess.Popen(command, cwd=runs.parent, stdout=pipe, stderr=pipe, text=True) as server:
        try:
            assert server.stdout is not None
            page = driven.new_page(**options)
            page.set_default_timeout(START)
            page.goto(server.stdout.readline().strip())
            page.locator("#live").filter(has_text="·").wait_for()
            yield page
        finally:
            server.kill()


def shown(page: "Page", text: str) -> float:
    """When the page first had this text; waits for it."""
    while True:
        found: float | None = page.evaluate("text => window.shownAt[text] ?? null", text)
        if found is not None:
            return found
        page.wait_for_timeout(20)


def watched(page: "Page", runs: Path, blocks: int) -> list[float]:
    """Seconds from flush to page, of a residual network with four modules and one around them in every block."""
    import torch
    from torch import Tensor, nn

    import sonde

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)
            self.act, self.down = nn.ReLU(), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.down(self.act(self.up(self.norm(x))))
            return x

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), *(Block() for _ in range(blocks)), nn.Linear(8, 2))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    page.evaluate(WATCH, ["#watched-step-said"])
    found = []
    with sonde.watch(model, optimiser, runs=runs, name=f"{blocks} blocks", every=1) as watch:
        for step in range(UPDATES):
            optimiser.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimiser.step()
            _ = watch.facts  # flushes
            stored = time.time()
            found.append(shown(page, f"{step} of {step}") - stored)
    return found


def trained(page: "Page", runs: Path) -> list[float]:
    """Seconds from the commit of an epoch to the page's table."""
    import sonde

    page.evaluate(WATCH, ["#runs tbody tr td:nth-of-type(3)"])
    found: list[float] = []

    def wait(progress: Any) -> None:
        stored = time.time()
        found.append(shown(page, f"{progress.epoch}/{progress.epochs}") - stored)

    config = sonde.RunConfig(
        model=sonde.models.ResMLP(d=32, L=5),
        task=sonde.tasks.Identity(d=32, steps_per_epoch=10),
        rule=sonde.rules.Backprop(),
        epochs=UPDATES - 1,
        seed=42,
    )
    sonde.train(config, runs=runs, on_progress=wait)
    return found


LOOPS: dict[str, Callable[["Page", Path], list[float]]] = {
    "a trained run of 5 blocks, epoch by epoch": trained,
    "a watched loop of 28 modules, step by step": lambda page, runs: watched(page, runs, 5),
    "a watched loop of 1,003 modules, step by step": lambda page, runs: watched(page, runs, 200),
}


def measure() -> dict[str, Any]:
    """Seconds of every update, and what they were measured on."""
    from sonde_bench.table import machine

    found: dict[str, Any] = {"machine": machine(), "seconds": {}}
    with browser() as driven:
        for name, loop in LOOPS.items():
            with tempfile.TemporaryDirectory() as folder, live_page(driven, Path(folder) / "runs") as page:
                found["seconds"][name] = [round(one, 3) for one in loop(page, Path(folder) / "runs")]
                print(f"{name}: {statistics.median(found['seconds'][name]):.2f} s", flush=True)
    return found


def table(known: dict[str, Any]) -> str:
    """Median and largest of each loop, and the conditions."""
    lines = ["| | updates | median, s | largest, s |", "|---|---:|---:|---:|"]
    lines += [
        f"| {name} | {len(seconds)} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |"
        for name, seconds in known["seconds"].items()
    ]
    machine = known["machine"]
    lines += [
        "",
        f"Measured with `python benchmarks/live.py` on {machine['processor']}, {machine['cores']} cores, at a load of "
        f"{machine['load']:.1f}, {machine['date']}.",
    ]
    return "\n".join(lines)


def placed(text: str, made: str) -> str:
    """The page with this table in its place."""
    return TABLE.sub(lambda place: f"{place[1]}{made}\n{place[2]}", text)


def main() -> None:
    if "--page" not in sys.argv[1:]:
        NUMBERS.write_text(json.dumps(measure(), indent=1) + "\n")
    PAGE.write_text(placed(PAGE.read_text(), table(json.loads(NUMBERS.read_text()))))


if __name__ == "__main__":
    main()
