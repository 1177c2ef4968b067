"""A real browser for the tests: Debian's chromium, driven by Playwright, and what a page did in it."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
GROUP = "browser"  # one worker drives the browser
LATENCY = 30_000  # milliseconds a step may take on a busy machine


def missing() -> str | None:
    """Why there can be no browser tests here, or None."""
    if importlib.util.find_spec("playwright") is None:
        return "no browser tests: playwright is not installed (pip install playwright)"
    if _chromium() is None:
        return "no browser tests: chromium was not found (apt-get install chromium, or SONDE_CHROMIUM=path)"
    return None


def _chromium() -> str | None:
    return os.environ.get("SONDE_CHROMIUM") or shutil.which("chromium")


IN_CHROMIUM = [pytest.mark.xdist_group(GROUP), pytest.mark.skipif(missing() is not None, reason=missing() or "")]


@contextmanager
def chromium() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=_chromium(), args=FLAGS)
        yield started
        started.close()


@dataclass
class Opened:
    """A page, and everything it complained about or asked for."""

    page: "Page"
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def lines(self, chart: str, kind: str = "run") -> list[dict[str, str]]:
        """The lines of a chart as drawn."""
        found: list[dict[str, str]] = self.page.eval_on_selector_all(
            f"#{chart} .line.{kind}", "groups => groups.map(group => ({...group.dataset}))"
        )
        return found

    def path(self, chart: str, kind: str = "line") -> list[str]:
        """The shapes of a chart's lines."""
        found: list[str] = self.page.eval_on_selector_all(
            f"#{chart} .{kind} .stroke", "paths => paths.map(path => path.getAttribute('d'))"
        )
        return found

    def point(self, chart: str, rule: str, place: int) -> tuple[float, float]:
        """Where on the screen a point of the first line of a rule stands."""
        x, y = self.page.evaluate(
            """([chart, rule, place]) => {
              const line = document.querySelector(`#${chart} .line.run[data-rule="${rule}"] .stroke`);
              const numbers = line.getAttribute('d').slice(1).split(/[ML ]/).map(Number);
              const corner = line.ownerSVGElement.getScreenCTM();
              return [corner.e + corner.a * numbers[2 * place], corner.f + corner.d * numbers[2 * place + 1]];
            }""",
            [chart, rule, place],
        )
        return x, y

    def visible_words(self) -> int:
        """How many words can be read before anything is opened: text and charts, without lists to choose from."""
        found: int = self.page.evaluate(
            """() => {
              const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
              let words = 0;
              while (walk.nextNode()) {
                const { data, parentElement } = walk.currentNode;
                if (!parentElement.checkVisibility()) continue;
                if (parentElement.closest('option, script, style, .unseen')) continue;
                words += (data.match(/\\S*[\\p{L}\\d]\\S*/gu) || []).length;
              }
              return words;
            }"""
        )
        return found

    def open_boxes(self) -> None:
        """Open every box that a reader can open."""
        self.page.evaluate("document.querySelectorAll('details').forEach((box) => { box.open = true; })")
        self.settle()

    def settle(self) -> None:
        """Until what was asked for is drawn."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    def says(self, selector: str, text: str) -> None:
        """Until a part of the page shows a text; fails where it does not come."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_contain_text(text, timeout=LATENCY)

    def wait_for_epoch(self, least: int) -> None:
        """Until the slider is there.  The page's policy lets no script in that could wait inside it."""
        for _ in range(LATENCY // 50):
            if int(self.epoch.split()[0]) >= least:
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"still at epoch {self.epoch}")

    @property
    def epoch(self) -> str:
        return self.page.inner_text("#epoch-said")


def open_page(
    browser: "Browser",
    at: Path | str,
    *,
    hash: str = "",
    ready: str = "#third-profile .plot svg",
    **options: Any,
) -> Opened:
    """The page of a file or an address, once this part of it is there."""
    page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
    page.set_default_timeout(LATENCY)
    opened = Opened(page)
    page.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: opened.complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (opened.complaints.append("dialog"), dialog.dismiss()))
    page.on("request", lambda request: opened.requests.append(request.url))
    page.goto((at if isinstance(at, str) else at.as_uri()) + hash, timeout=600_000)
    page.wait_for_selector(ready, state="attached")
    return opened
