"""The live page beside real processes: one trains, one serves, a browser looks on, and both of them are killed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chromium import IN_CHROMIUM, Opened, open_page

from stores import NASTY

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.timeout(1800), *IN_CHROMIUM]
TOKEN = "a-token-of-the-tests"
PATIENCE = 600_000  # milliseconds until a process on a busy machine has started
BY_LINES = Path(__file__).with_name("watched_by_lines.py")
TRAIN = ["train", "--model", "res_mlp", "--task", "identity", "--rule", "bp", "--epochs", "4000", "--quiet"]
TRAIN += ["--set", "model.L=3", "--set", "model.d=8", "--set", "task.d=8"]
TRAIN += ["--set", "task.steps_per_epoch=5", "--set", "log=epoch"]


@contextmanager
def process(*words: str, **surroundings: str) -> "Iterator[subprocess.Popen[str]]":
    """A process that is gone at the end, whatever happens."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *words],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=os.environ | surroundings,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def served(runs: Path, port: int = 0) -> "Iterator[tuple[str, subprocess.Popen[str]]]":
    words = ("-m", "sonde", "live", "--runs", str(runs), "--port", str(port))
    with process(*words, SONDE_LIVE_TOKEN=TOKEN) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip(), server


def says(opened: Opened, selector: str, words: str) -> None:
    """Until a part of the page matches these words."""
    from playwright.sync_api import expect

    expect(opened.page.locator(selector)).to_contain_text(re.compile(words), timeout=PATIENCE)


def asked(opened: Opened, url: str) -> list[str]:
    """Requests to anywhere but the server."""
    return [known for known in opened.requests if not known.startswith((url, "data:"))]


def test_a_run_is_followed_from_an_empty_store_through_the_death_of_trainer_and_server(
    browser: "Browser", tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    with served(runs) as (url, server):
        assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/{TOKEN}/", url)
        opened = open_page(browser, url, ready="#live")
        says(opened, "#live", "no runs yet")
        assert not runs.exists(), "nothing is written"
        opened.page.evaluate("window.unmoved = true")
        with process("-m", "sonde", *TRAIN, "--runs", str(runs)) as trainer:
            says(opened, "#live", "1 running")
            says(opened, "#running", r"epoch [3-9][\d,]* of 4,000 · about .* left")
            assert opened.page.locator("main > section").first.get_attribute("id") == "running"
            assert opened.page.locator("#running .plot path.stroke").count() == 1
            says(opened, "#runs tbody", r"running\s*[3-9]\d*/4000")
            opened.page.select_option("#over-epochs .metric", "train_loss")
            points = len(opened.path("over-epochs")[0])
            while len(opened.path("over-epochs")[0]) <= points:
                opened.page.wait_for_timeout(50)
            assert opened.page.locator("#over-epochs .metric").input_value() == "train_loss"
            trainer.kill()
        says(opened, "#live", "1 interrupted")
        says(opened, "#runs tbody", r"interrupted: sonde train --model res_mlp .* resumes it")
        says(opened, "#running", "No run is training")
        assert opened.complaints == []
        server.kill()
        says(opened, "#live", "Disconnected since .*, retrying")
    port = int(url.split(":")[2].split("/")[0])
    trained = process("-m", "sonde", *TRAIN, "--runs", str(runs))
    with trained as trainer, served(runs, port) as (again, server):
        assert again == url
        says(opened, "#live", "1 running")
        trainer.send_signal(signal.SIGINT)
        says(opened, "#live", "1 interrupted")
        assert opened.page.evaluate("window.unmoved"), "the page was never loaded again"
        server.send_signal(signal.SIGINT)
        _, told = server.communicate()
        assert server.returncode == 130
        assert told.endswith("sonde: the live page ended; runs that train or are watched go on\n")
    assert asked(opened, url) == []
    opened.page.close()


def test_a_watched_loop_of_a_thousand_modules_is_followed_step_by_step_and_its_name_stays_text(
    browser: "Browser", tmp_path: Path
) -> None:
    with served(tmp_path) as (url, _), process(str(BY_LINES), str(tmp_path), NASTY) as loop:
        assert loop.stdin is not None
        opened = open_page(browser, url, ready="#live")
        for step in range(4):
            print("go on", file=loop.stdin, flush=True)
            says(opened, "#watched-step-said", f"^{step} of {step}$")
        says(opened, "#watched-count", "1003 modules")
        says(opened, "#watched-runs-box, #watched", re.escape(NASTY))
        says(opened, "#watched-upper figcaption", "802 values")
        opened.page.locator("#watched-step").fill("1")
        opened.page.fill("#watched-search", "17.up")
        print("go on", file=loop.stdin, flush=True)
        says(opened, "#watched-step-said", "^1 of 4$")
        assert opened.page.input_value("#watched-search") == "17.up"
        says(opened, "#live", "1 running")
        loop.kill()
        says(opened, "#live", "1 interrupted")
        says(opened, "#watched", "its process is gone")
        assert opened.complaints == []
        assert asked(opened, url) == []
        opened.page.close()


def test_the_live_page_passes_axe_with_runs_and_without_on_every_screen(browser: "Browser", tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not there")
    with served(tmp_path) as (url, _):
        pages = [
            open_page(browser, url, viewport={"width": width, "height": 900}, color_scheme=scheme, ready="#live")
            for width in (1400, 800, 390)
            for scheme in ("light", "dark")
        ]
        for opened in (pages[0], pages[-1]):
            says(opened, "#live", "no runs yet")
            assert serious(axe, opened) == []
        with process(str(BY_LINES), str(tmp_path), "looked at") as loop:
            assert loop.stdin is not None
            print("go on", file=loop.stdin, flush=True)
            for opened in pages:
                says(opened, "#watched-step-said", "^0 of 0$")
                says(opened, "#live", "1 running")
                says(opened, "#running", "looked at")
                assert serious(axe, opened) == []
                assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for opened in pages:
            assert opened.complaints == []
            opened.page.close()


def serious(axe: Any, opened: Opened) -> list[tuple[str, str]]:
    found = axe.Axe().run(opened.page).response
    assert len(found["passes"]) > 10
    bad = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    return [(one["id"], one["nodes"][0]["html"]) for one in bad]
