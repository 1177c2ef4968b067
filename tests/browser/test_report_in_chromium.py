"""The report as a reader uses it, in a real browser."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chromium import IN_CHROMIUM, Opened, open_page

from sonde.cli.report import report_command as write_report
from sonde.config import change
from sonde.studies import STUDIES
from stores import NASTY, NASTY_ID, NASTY_TREE, rename, write_run, write_study

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = IN_CHROMIUM
CHARTS = ("over-epochs", "first-profile", "second-profile", "third-profile")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audit; a second recipe with a resumed and a diverged run; names and reasons that look like markup."""
    root = tmp_path_factory.mktemp("browser") / "runs"
    ids = write_study(root, "audit")
    rename(root, ids[0], label=NASTY)
    student = STUDIES["snapshots"].configs("quick", [42])[3]
    write_run(root, student, state="unfinished", epoch=7)
    write_run(root, change(student, {"rule": "dfa"}), state="diverged", epoch=3)
    write_run(root, change(student, {"rule": "fa"}), tree=NASTY_TREE)
    out = root.parent / "report.html"
    write_report(runs=root, out=out, title=NASTY, figures=False, quiet=True)
    return out


@pytest.fixture
def opened(browser: "Browser", report: Path) -> Iterator[Opened]:
    """The report on a desktop screen; whatever a test does, nothing may fail or be fetched."""
    known = open_page(browser, report)
    yield known
    assert known.complaints == []
    assert [url for url in known.requests if not url.startswith(("file:", "data:"))] == []
    known.page.close()


def tick(opened: Opened, box: str, label: str) -> None:
    """Click the checkbox with this label."""
    opened.page.locator(f"#{box} label").get_by_text(label, exact=True).click()
    opened.settle()


def rules(opened: Opened, chart: str) -> set[str]:
    return {line["rule"] for line in opened.lines(chart)}


def test_every_chart_has_a_line_for_every_chosen_run(opened: Opened) -> None:
    tick(opened, "networks", NASTY)
    for chart in CHARTS:
        assert len(opened.lines(chart)) == 12, chart
        assert opened.page.inner_text(f"#{chart} figcaption").startswith("12 runs, seeds 42, 123.")
        assert all(path.startswith("M") for path in opened.path(chart, "run") if path)


def test_rules_and_seeds_are_switched_off_and_on(opened: Opened) -> None:
    before = {chart: len(opened.lines(chart)) for chart in CHARTS}
    tick(opened, "rules", "DFA")
    assert all("DFA" not in rules(opened, chart) for chart in CHARTS)
    tick(opened, "seeds", "123")
    assert all({line["seed"] for line in opened.lines(chart)} == {"42"} for chart in CHARTS)
    tick(opened, "rules", "DFA")
    tick(opened, "seeds", "123")
    assert {chart: len(opened.lines(chart)) for chart in CHARTS} == before


def test_controls_stand_beside_the_cosine_until_switched_off(opened: Opened) -> None:
    drawn = opened.lines("third-profile", "control")
    assert {line["control"] for line in drawn} == {"/null", "/bp"}
    opened.page.click("#controls")
    opened.settle()
    assert opened.lines("third-profile", "control") == []


def test_a_mean_is_drawn_only_over_several_seeds_and_says_its_n(opened: Opened) -> None:
    opened.page.click("#mean")
    opened.settle()
    names = {line["name"] for line in opened.lines("over-epochs", "mean")}
    assert "DFA, mean of n = 2 seeds" in names
    assert "arithmetic mean over n = 2 complete runs" in opened.page.inner_text("#over-epochs figcaption")
    tick(opened, "seeds", "123")
    assert opened.lines("over-epochs", "mean") == []  # one seed has no mean


def test_log_and_linear_change_the_scale(opened: Opened) -> None:
    ticks = "#first-profile .axes text"
    log, before = opened.page.locator(ticks).all_text_contents(), opened.path("first-profile")
    assert any("10" in text for text in log)
    opened.page.click("#first-profile .log")
    opened.settle()
    assert opened.page.locator(ticks).all_text_contents() != log
    assert opened.path("first-profile") != before


def test_a_value_that_has_no_place_on_a_log_scale_is_marked_not_moved(opened: Opened) -> None:
    opened.page.select_option("#first-profile .metric", "branch_cosine")
    opened.page.click("#first-profile .log")
    opened.settle()
    assert "not above 0, marked ×" in opened.page.inner_text("#first-profile figcaption")


def test_the_metric_and_the_layer_over_epochs_can_be_chosen(opened: Opened) -> None:
    before = opened.path("over-epochs")
    opened.page.select_option("#over-epochs .metric", "hidden_norm")
    opened.settle()
    last = opened.path("over-epochs")
    assert last != before
    opened.page.select_option("#over-epochs .at", "0")
    opened.settle()
    assert opened.path("over-epochs") != last


def test_another_recipe_brings_its_own_runs(opened: Opened) -> None:
    opened.page.select_option("#family", label="teacher, 20 epochs")
    opened.settle()
    known = {line["run"] for line in opened.lines("over-epochs")}
    assert {run.split("-")[0] for run in known - {NASTY_ID}} == {"student_net"}
    assert opened.epoch == "20 of 20"


def test_the_slider_changes_the_profile(opened: Opened) -> None:
    before = opened.path("first-profile")
    opened.page.fill("#epoch", "3")
    opened.settle()
    assert opened.epoch == "3 of 20"
    assert opened.path("first-profile") != before


def test_new_data_are_shown_in_place_and_the_readers_view_stays(opened: Opened) -> None:
    page = opened.page
    tick(opened, "rules", "DFA")
    page.select_option("#first-profile .metric", "growth")
    page.fill("#epoch", "3")
    page.locator("#audit .recipe summary").first.click()
    page.locator("#first-profile .plot").scroll_into_view_if_needed()
    page.focus("#epoch")
    top = page.evaluate("document.querySelector('#epoch').getBoundingClientRect().top")
    before = opened.lines("first-profile")
    page.evaluate(
        """(gone) => {
          const given = JSON.parse(document.getElementById('data').textContent);
          const run = given.charts.runs.findIndex((one) => one.id === gone);
          given.charts.series = given.charts.series.filter((one) => one.r !== run);
          const inside = document.querySelector('[data-part=audit]').innerHTML;
          sonde.show({ charts: given.charts, html: { audit: `<p id="grown">later</p>`.repeat(20) + inside } });
        }""",
        before[0]["run"],
    )
    opened.settle()
    assert page.locator("#grown").count() == 20
    assert page.locator("#audit .recipe").first.get_attribute("open") is not None
    assert opened.lines("first-profile") == before[1:]
    assert page.input_value("#first-profile .metric") == "growth"
    assert opened.epoch == "3 of 20"
    assert page.evaluate("document.activeElement.id") == "epoch"
    assert abs(page.evaluate("document.querySelector('#epoch').getBoundingClientRect().top") - top) < 2


def test_a_link_shows_what_its_sender_saw(browser: "Browser", report: Path, opened: Opened) -> None:
    tick(opened, "rules", "DFA")
    opened.page.select_option("#third-profile .metric", "rho")
    opened.page.fill("#epoch", "0")
    opened.page.wait_for_function("() => location.hash.includes('charts.epoch=0')")
    there = open_page(browser, report, hash=opened.page.evaluate("location.hash"))
    assert "DFA" not in rules(there, "over-epochs")
    assert there.page.input_value("#third-profile .metric") == "rho"
    assert there.epoch == "0 of 20"
    assert there.complaints == []
    there.page.close()


def test_play_advances_and_pause_stops(opened: Opened) -> None:
    opened.page.fill("#epoch", "2")
    opened.page.click("#epoch-play")
    opened.wait_for_epoch(4)
    assert opened.page.inner_text("#epoch-play") == "Pause"
    opened.page.click("#epoch-play")
    stopped = opened.epoch
    opened.page.wait_for_timeout(700)
    assert opened.epoch == stopped
    assert opened.page.inner_text("#epoch-play") == "Play"


def test_hovering_tells_run_seed_epoch_layer_and_value(opened: Opened) -> None:
    opened.page.locator("#first-profile .plot").scroll_into_view_if_needed()
    x, y = opened.point("first-profile", "DFA", 2)
    opened.page.mouse.move(x, y)
    opened.says("#first-profile .tip", "seed ")
    tip = opened.page.inner_text("#first-profile .tip")
    assert "epoch 20, layer 2" in tip
    assert "n = 128 samples" in tip
    assert "residual_mlp-" in tip


def test_an_undefined_value_is_a_gap_and_tells_its_reason(opened: Opened) -> None:
    frozen = opened.page.locator("#third-profile .line.run[data-rule=frozen]").first
    assert "L" not in (frozen.locator(".stroke").get_attribute("d") or "")  # layer 0 alone, then a gap
    assert frozen.locator(".undefined").count() == 1
    opened.page.focus("#third-profile .plot")
    tips = set()
    for key in ("ArrowUp", *["ArrowDown"] * 11, "ArrowRight"):
        opened.page.keyboard.press(key)
        tips.add(opened.page.inner_text("#third-profile .tip"))
    assert any(f"undefined: no credit reaches it {NASTY}" in tip for tip in tips)


def test_names_that_look_like_markup_stay_text_and_execute_nothing(opened: Opened) -> None:
    page = opened.page
    assert page.title() == NASTY
    assert page.inner_text("h1") == NASTY
    assert page.locator("#networks label").get_by_text(NASTY, exact=True).count() == 1
    tick(opened, "networks", NASTY)
    page.click("#third-profile .values summary")
    opened.says("#third-profile .values", NASTY)  # the table is filled by the event that follows the click
    page.select_option("#family", label="teacher, 20 epochs")
    opened.settle()
    assert NASTY_ID in {line["run"] for line in opened.lines("over-epochs")}
    page.locator("#over-epochs .plot").scroll_into_view_if_needed()
    page.mouse.move(*opened.point("over-epochs", "FA", 5))
    opened.says("#over-epochs .tip", NASTY_ID)
    page.locator("#findings .left-out summary").first.click()
    page.click(f"#findings a >> text={NASTY_ID}")
    assert page.evaluate("document.querySelector(':target').id") == f"run-{NASTY_ID}"
    assert page.locator(":target").is_visible(), "a link opens the box that its target is in"
    assert page.locator("img, iframe, object").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("b").count() == 0  # complaints, a dialog among them, are looked at when the page closes


def test_dark_and_light_follow_the_system_and_the_button(browser: "Browser", report: Path) -> None:
    opened = open_page(browser, report, color_scheme="dark")
    shade = "getComputedStyle(document.body).backgroundColor"
    line = "getComputedStyle(document.querySelector('.line[data-rule=BP] .stroke')).stroke"
    dark, dark_line = opened.page.evaluate(shade), opened.page.evaluate(line)
    opened.page.click("#theme")
    light = opened.page.evaluate(shade)
    assert (dark, light) == ("rgb(20, 22, 26)", "rgb(255, 255, 255)")
    assert (dark_line, opened.page.evaluate(line)) == ("rgb(242, 243, 245)", "rgb(0, 0, 0)")
    opened.page.click("#theme")
    assert opened.page.evaluate(shade) == dark
    opened.page.close()


def test_everything_works_from_the_keyboard(opened: Opened) -> None:
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    page.focus("#choices-box summary")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
        if page.evaluate("document.activeElement.id") == "epoch":
            break
    assert {"family", "mean", "controls", "epoch-play", "epoch"} <= reached
    page.keyboard.press("ArrowLeft")
    opened.settle()
    assert opened.epoch == "19 of 20"
    assert page.get_attribute("#epoch", "aria-valuetext") == "epoch 19 of 20"
    page.keyboard.press("Home")
    opened.settle()
    assert opened.epoch == "0 of 20"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


def test_arrow_keys_read_a_chart_aloud(opened: Opened) -> None:
    opened.page.focus("#over-epochs .plot")
    opened.page.keyboard.press("ArrowLeft")
    spoken = opened.page.inner_text("#over-epochs .spoken")
    assert "epoch 20" in spoken
    opened.page.keyboard.press("ArrowLeft")
    assert "epoch 19" in opened.page.inner_text("#over-epochs .spoken")
    opened.page.keyboard.press("Enter")  # as a click does, it takes the profiles to that epoch
    opened.settle()
    assert opened.epoch == "19 of 20"


@pytest.mark.parametrize("width", [360, 768])
def test_a_narrow_screen_never_scrolls_sideways(browser: "Browser", report: Path, width: int) -> None:
    opened = open_page(browser, report, viewport={"width": width, "height": 740})
    wide = opened.page.evaluate("document.documentElement.scrollWidth")
    opened.page.evaluate("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    assert (wide, opened.page.evaluate("document.documentElement.scrollWidth")) == (width, width)
    opened.page.close()


def test_paper_has_no_controls_and_keeps_the_charts(opened: Opened) -> None:
    opened.page.wait_for_function("document.querySelectorAll('#stage .plot svg').length === 4")
    opened.page.emulate_media(media="print")
    visible = "boxes => boxes.filter(box => box.checkVisibility()).length"
    assert opened.page.eval_on_selector_all(".controls, button:not(.term), select, input, nav", visible) == 0
    drawn = "[...document.querySelectorAll('#stage .plot svg')].filter(box => box.checkVisibility()).length === 4"
    opened.page.wait_for_function(drawn)  # the charts are drawn anew for paper
    assert opened.page.eval_on_selector_all(".key", visible) == 3  # which line is which, also in the sweep
    opened.page.emulate_media(media="screen")
    assert opened.page.pdf(format="A4")[:5] == b"%PDF-"


def test_less_motion_is_slower_and_still_plays(browser: "Browser", report: Path) -> None:
    opened = open_page(browser, report, reduced_motion="reduce")
    opened.page.fill("#epoch", "2")
    start = time.perf_counter()
    opened.page.click("#epoch-play")
    opened.wait_for_epoch(4)
    assert time.perf_counter() - start > 1.9  # a second each; with motion, half
    opened.page.close()


def test_thirty_runs_of_a_hundred_epochs_are_small_and_playable(browser: "Browser", tmp_path: Path) -> None:
    """Below 5 MB with its figures; the time until it can be used is printed (pytest -s)."""
    for study in ("audit", "cifar10"):
        write_study(tmp_path / "runs", study, scale="full", seeds=(42, 123, 456))
    out = tmp_path / "report.html"
    write_report(runs=tmp_path / "runs", out=out, quiet=True)
    assert out.stat().st_size < 5e6
    start = time.perf_counter()
    opened = open_page(browser, out)
    opened.page.fill("#epoch", "50")
    opened.settle()
    assert opened.epoch == "50 of 100"
    print(f"{out.stat().st_size / 1e6:.1f} MB, interactive after {time.perf_counter() - start:.2f} s")
    assert len(opened.lines("first-profile")) >= 12
    opened.page.close()
