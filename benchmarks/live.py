"""How long the live page takes to show what was stored: from the end of a flush or an epoch to the browser's page.

python benchmarks/live.py      # three loops of ten updates each; docs/live.md quotes what it prints

One update follows the other as soon as the page has shown it.  Both clocks are this machine's.
"""

import os
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


def main() -> None:
    print(
        f"{UPDATES} updates each, seconds: median (largest); load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    with browser() as driven:
        for name, loop in LOOPS.items():
            with tempfile.TemporaryDirectory() as folder, live_page(driven, Path(folder) / "runs") as page:
                found = loop(page, Path(folder) / "runs")
                print(f"{name}: {statistics.median(found):.2f} ({max(found):.2f})", flush=True)


if __name__ == "__main__":
    main()
