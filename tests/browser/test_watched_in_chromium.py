"""The watched runs of a report as a reader uses them, in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from chromium import IN_CHROMIUM, Opened, open_page
from torch import Tensor, nn

from sonde.cli.report import report_command as write_report
from sonde.observe.watch import watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = IN_CHROMIUM


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


@pytest.fixture(scope="module")
def opened(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Two runs: a thousand modules, and a small one whose loss was logged."""
    runs = tmp_path_factory.mktemp("browser") / "runs"
    torch.manual_seed(0)
    for name, blocks in (("many", 200), ("few", 2)):
        model = nn.Sequential(nn.Linear(4, 8), *(Block() for _ in range(blocks)), nn.Linear(8, 2))
        optimiser = torch.optim.Adam(model.parameters(), 1e-3)
        with watch(model, optimiser, runs=runs, name=name) as watching:
            for _ in range(4):
                loss = model(torch.randn(5, 4)).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                watching.log(loss)
    out: Path = runs.parent / "report.html"
    write_report(runs=runs, out=out, quiet=True)
    known = open_page(browser, out, ready="#watched-weights .plot svg")
    yield known
    assert known.complaints == []
    assert [url for url in known.requests if not url.startswith(("file:", "data:"))] == []


def points(opened: Opened, chart: str) -> int:
    path = opened.page.locator(f"#watched-{chart} .line .stroke").first.get_attribute("d") or ""
    return path.count("M") + path.count("L")


def run_named(opened: Opened, name: str) -> None:
    label = opened.page.locator("#watched-run option").filter(has_text=name).get_attribute("value")
    opened.page.select_option("#watched-run", label)
    opened.page.fill("#watched-search", "")
    opened.settle()


def test_a_profile_has_a_point_for_every_module_and_a_search_narrows_it(opened: Opened) -> None:
    run_named(opened, "many")
    assert points(opened, "upper") == 2 + 4 * 200
    opened.page.fill("#watched-search", "17.up")
    opened.settle()
    assert points(opened, "upper") == 2, "17.up and 117.up"
    assert opened.page.locator("#watched-count").text_content() == "2 of 1003 modules"
    assert opened.page.locator("#watched-tree button").all_text_contents() == ["17.upLinear", "117.upLinear"]


def test_the_slider_goes_through_the_watched_steps(opened: Opened) -> None:
    run_named(opened, "few")
    before = opened.page.locator("#watched-upper .line .stroke").first.get_attribute("d")
    opened.page.locator("#watched-step").fill("0")
    opened.settle()
    assert opened.page.locator("#watched-step-said").text_content() == "0 of 3"
    assert opened.page.locator("#watched-upper .line .stroke").first.get_attribute("d") != before


def test_a_module_that_is_chosen_in_the_tree_is_drawn_over_steps(opened: Opened) -> None:
    run_named(opened, "few")
    assert points(opened, "curve") == 4, "the loss"
    opened.page.locator("#watched-tree button[title='1.up']").click()
    opened.settle()
    names = opened.page.locator("#watched-curve figcaption").text_content() or ""
    assert "1.up" in names
    assert opened.page.locator("#watched-curve .line").count() == 4
