"""The answers that open a report, its words, files, sweep and pairs of runs, on screens of every width."""

import csv
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chromium import IN_CHROMIUM, Opened, open_page

from sonde.analysis.explanations import explanations
from sonde.cli.report import report_command as write_report
from sonde.config import change
from sonde.studies import STUDIES
from stores import NASTY, rename, write_run, write_study

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Download

pytestmark = IN_CHROMIUM
WIDTHS = (32, 64, 128)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audit, and a sweep of widths under two rules and two seeds; one name looks like markup."""
    root = tmp_path_factory.mktemp("views") / "runs"
    ids = write_study(root, "audit")
    rename(root, ids[1], rule_label=NASTY)
    swept = [config for config in STUDIES["audit"].configs("quick", (1, 2)) if config.rule.label in ("BP", "FA")]
    for config in swept:
        for width in WIDTHS:
            write_run(root, replace(change(config, {"model.d": width}), epochs=3))
    out = root.parent / "report.html"
    write_report(runs=root, out=out, figures=False, quiet=True)
    return out


@pytest.fixture(scope="module")
def wide(browser: "Browser", report: Path) -> Iterator[Opened]:
    known = open_page(browser, report, viewport={"width": 1400, "height": 900}, ready="#beside-chart .plot svg")
    yield known
    assert known.complaints == []
    assert [url for url in known.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    known.page.close()


def test_the_first_screen_has_a_sentence_a_chart_and_how_sure_for_a_study(wide: Opened) -> None:
    first = wide.page.locator(".answer").first
    for part in (".sentence", ".plot svg", ".sure"):
        box = first.locator(part).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900, part
    assert "frozen blocks" in first.locator(".sentence").inner_text()
    assert "n = 2 seeds" in first.locator(".sure").inner_text()
    assert first.locator(".line.dots").count() == 6


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 800, 390])
def test_every_screen_is_quiet_and_passes_axe(browser: "Browser", report: Path, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not there")
    opened = open_page(
        browser,
        report,
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        ready=".answer .plot svg",
    )
    opened.settle()
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    found = axe.Axe().run(opened.page).response
    assert len(found["passes"]) > 20
    bad = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert [(one["id"], one["nodes"][0]["html"]) for one in bad] == []
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    opened.page.close()


def test_a_word_is_explained_by_key_and_by_touch_as_sonde_explain_says_it(browser: "Browser", report: Path) -> None:
    opened = open_page(
        browser, report, viewport={"width": 390, "height": 800}, has_touch=True, ready=".answer .plot svg"
    )
    page = opened.page
    opened.settle()
    word = page.locator(".answer .term").get_by_text("seeds", exact=True).first
    word.focus()
    page.keyboard.press("Enter")
    (text,) = explanations("seed")
    opened.says("#explained", text.short)
    page.keyboard.press("Escape")
    assert not page.locator("#explained").is_visible()
    assert page.evaluate("document.activeElement.textContent") == "seeds"
    page.locator("#audit .term").get_by_text("D1", exact=True).first.tap()
    (question,) = explanations("D1")
    opened.says("#explained", question.short.partition("?")[0])
    assert page.locator("#explained math").count() > 0, "with its formulas"
    page.keyboard.press("Escape")
    page.click("#glossary summary")
    glossary = page.locator("#glossary").inner_text()
    assert "`" not in glossary
    for symbol in ("ρ", "nudge", "null", "credit", "growth", "D1", "D2", "D3", "D4", "BP", "DFA"):
        assert symbol in glossary
    assert opened.complaints == []
    page.close()


def saved(opened: Opened, chart: str, form: str) -> bytes:
    with opened.page.expect_download() as waiting:
        opened.page.click(f"#{chart} .save-{form}")
    known: Download = waiting.value
    return Path(known.path()).read_bytes()


def test_a_chart_is_saved_as_svg_png_and_csv_and_names_stay_text(wide: Opened) -> None:
    chart = wide.page.locator(".answer .chart").first.get_attribute("id") or ""
    picture = ElementTree.fromstring(saved(wide, chart, "svg"))
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert NASTY in texts
    assert not [one for one in picture.iter() if one.tag.endswith(("script", "b", "img"))]
    assert "var(--" not in ElementTree.tostring(picture, encoding="unicode")
    assert saved(wide, chart, "png")[:4] == b"\x89PNG"
    lines = list(csv.DictReader(io.StringIO(saved(wide, chart, "csv").decode())))
    assert {line["line"] for line in lines} >= {NASTY, "BP"}
    assert len(lines) == 12
    assert all(0 < float(line["test accuracy"]) < 1 for line in lines)


def test_a_sweep_compares_what_it_says_and_names_what_it_holds(wide: Opened) -> None:
    page = wide.page
    page.select_option("#sweep-x", "model.d")
    page.select_option("#sweep-by", "rule")
    page.locator("#sweep-held [data-key=epochs] select").select_option("3")
    wide.settle()
    caption = page.inner_text("#sweep-chart figcaption")
    assert caption.startswith("12 runs, with epochs = 3")
    assert "mean over n = 2 seeds" in caption
    ticks = page.locator("#sweep-chart .axes text").all_text_contents()
    assert set(map(str, WIDTHS)) <= set(ticks)
    assert len(wide.lines("sweep-chart")) == 12
    assert len(wide.lines("sweep-chart", "mean")) == 2
    page.select_option("#sweep-by", "")
    page.locator("#sweep-held [data-key=epochs] select").select_option("3")
    wide.settle()
    assert "rule = " in page.inner_text("#sweep-chart figcaption"), "two rules are never one line"
    assert len(wide.lines("sweep-chart", "mean")) == 1


def test_two_runs_stand_side_by_side_layer_by_layer_and_epoch_by_epoch(wide: Opened) -> None:
    page = wide.page
    entries = page.locator("#beside-a option").all_text_contents()
    short = [run for run in entries if "-s1-" in run]
    page.select_option("#beside-a", next(run for run in short if "-bp-" in run))
    page.select_option("#beside-b", next(run for run in short if "-fa-" in run))
    page.select_option("#beside-chart .metric", "hidden_norm")
    wide.settle()
    assert page.locator("#beside-chart .heat").count() == 2 * 5, "layers 0 … 4 of both"
    assert page.locator("#beside-chart .heat rect").count() == 2 * 5 * 4, "epochs 0 … 3"
    assert "rule (A bp, B fa)" in page.inner_text("#beside-chart figcaption")
    page.focus("#beside-chart .plot")
    page.keyboard.press("ArrowLeft")
    assert "epoch 3" in page.inner_text("#beside-chart .spoken")
    assert "beside.a=" in page.evaluate("new Promise((done) => setTimeout(() => done(location.hash), 400))")


def test_the_controls_stay_in_view_while_the_charts_scroll(wide: Opened) -> None:
    from playwright.sync_api import expect

    wide.page.locator("#first-profile figcaption").scroll_into_view_if_needed()
    nav, bar = (wide.page.locator(part).bounding_box() for part in ("nav", "#stage .bar-of-choices"))
    assert nav is not None
    assert bar is not None
    assert nav["y"] == 0, "the contents stay in view, too"
    assert abs(bar["y"] - nav["height"]) < 4
    expect(wide.page.locator("nav [aria-current]")).to_have_text("Charts")
    assert wide.page.locator("#epoch").is_visible()


def test_a_wide_table_says_that_it_scrolls_on_a_phone_and_not_on_a_desk(
    browser: "Browser", report: Path, wide: Opened
) -> None:
    said = "getComputedStyle(document.querySelector('#audit .scroll'), '::before').content"
    opened = open_page(browser, report, viewport={"width": 390, "height": 800}, ready=".answer .plot svg")
    opened.settle()
    assert "scrolls sideways" in opened.page.evaluate(said)
    opened.page.close()
    audit = wide.page.locator("#audit .scroll").first
    assert audit.evaluate("box => box.scrollWidth <= box.clientWidth + 1 || box.classList.contains('wider')")


def test_the_charts_open_on_what_the_first_answer_speaks_of(browser: "Browser", demo: Path) -> None:
    from playwright.sync_api import expect

    opened = open_page(browser, demo, ready=".answer .plot svg")
    given = json.loads(opened.page.inner_text("#data") or opened.page.locator("#data").text_content() or "")
    first = given["answers"][0]
    runs = {line["run"] for line in opened.lines("over-epochs")}
    assert len(runs) == sum(len(dots["values"]) for dots in first["dots"])
    assert all("identity" in run for run in runs), "the first answer is about the networks that learn the identity"
    assert opened.page.input_value("#over-epochs .metric") == first["metric"] == "train_loss"
    opened.page.locator(".answer").nth(1).locator(".charted a").click()
    expect(opened.page.locator("#over-epochs .metric")).to_have_value("test_acc")
    assert {line["run"].split("-")[2] for line in opened.lines("over-epochs")} <= {"digits", "parity"}
    assert opened.complaints == []
    opened.page.close()


# ── the page that `make demo` writes ────────────────────────────────────────────────────────────────
MOST_WORDS = 1500


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of `make demo`, with values that were made up: the same studies, networks, rules and seeds."""
    root = tmp_path_factory.mktemp("demo") / "runs"
    for study in (STUDIES["residual"], STUDIES["audit"]):
        seeds = study.seeds["quick"]
        for config in (*study.configs("quick", seeds), *study.beside("quick", seeds)):
            write_run(root, config)
    out = root.parent / "report.html"
    write_report(runs=root, out=out, quiet=True)
    return out


@pytest.mark.parametrize("width", [1400, 390])
def test_a_reader_sees_at_most_so_many_words_before_opening_anything(
    browser: "Browser", demo: Path, width: int
) -> None:
    opened = open_page(browser, demo, viewport={"width": width, "height": 900}, ready="#beside-chart .plot svg")
    opened.settle()
    closed = opened.visible_words()
    opened.open_boxes()
    assert 500 < closed <= MOST_WORDS
    assert opened.visible_words() > 3 * closed, "the details are there"
    opened.page.close()


@pytest.mark.slow
def test_the_report_of_make_demo_has_no_more_words(browser: "Browser", tmp_path: Path) -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    commands = re.findall(r"^\t\$\(BIN\)/sonde (.+ demo/.+)$", makefile, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        subprocess.run([sys.executable, "-m", "sonde", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    opened = open_page(browser, tmp_path / "demo" / "report.html", ready="#beside-chart .plot svg")
    opened.settle()
    assert opened.visible_words() <= MOST_WORDS
    assert opened.complaints == []
    opened.page.close()


def test_every_table_fits_a_desk_and_has_its_verdict_first(browser: "Browser", demo: Path) -> None:
    opened = open_page(browser, demo, viewport={"width": 1400, "height": 900}, ready=".answer .plot svg")
    opened.page.evaluate("document.querySelectorAll('.values').forEach((box) => box.remove())")
    opened.open_boxes()
    wider = opened.page.eval_on_selector_all(
        ".scroll", "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.ariaLabel)"
    )
    assert wider == []
    for table in opened.page.locator("#audit table, #findings table").all():
        headings = table.locator("thead th").all_inner_texts()
        assert "verdict" in headings[:4], headings
    opened.page.close()


def test_a_verdict_is_a_word_with_a_shape_and_a_colour(browser: "Browser", demo: Path) -> None:
    opened = open_page(browser, demo, ready=".answer .plot svg")
    looks = opened.page.eval_on_selector_all(
        "#audit .mark",
        "marks => marks.map(mark => [mark.classList[1], mark.querySelector('path').getAttribute('d'),"
        " getComputedStyle(mark).color, mark.textContent.trim()])",
    )
    states = {state for state, *_ in looks}
    assert {"good", "open", "none"} <= states
    assert len({shape for _, shape, *_ in looks}) == len(states), "a shape for each state"
    assert all(words for *_, words in looks)
    opened.page.close()


def test_no_line_runs_through_a_label_on_a_phone(browser: "Browser", demo: Path) -> None:
    opened = open_page(browser, demo, viewport={"width": 390, "height": 900}, ready=".answer .plot svg")
    opened.settle()
    struck = opened.page.evaluate(
        """() => [...document.querySelectorAll('.answer svg')].flatMap((svg) => {
          const boxes = (kind) => [...svg.querySelectorAll(kind)].map((one) => [one, one.getBoundingClientRect()]);
          const crosses = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
          const texts = boxes('text');
          const lines = boxes('line').map(([one, { x, y, width, height }]) =>
            [one, new DOMRect(x - 0.5, y, width + 1, height + 0.1)]);
          return texts.flatMap(([text, box], i) => [...lines, ...texts.slice(i + 1)]
            .filter(([, other]) => crosses(box, other)).map(([other]) => text.textContent + other.outerHTML));
        })"""
    )
    assert struck == []
    opened.page.close()


def test_figures_are_drawn_for_light_and_for_dark(browser: "Browser", demo: Path) -> None:
    shown = "images => [...new Set(images.filter(image => image.checkVisibility()).map(image => image.className))]"
    opened = open_page(browser, demo, color_scheme="dark", ready=".answer .plot svg")
    pictures = opened.page.locator("#figures img")
    assert pictures.count() >= 8
    assert pictures.evaluate_all(shown) == ["on-dark"]
    opened.page.click("#theme")
    assert pictures.evaluate_all(shown) == ["on-light"]
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert pictures.evaluate_all(shown) == ["on-light"], "paper is white"
    opened.page.close()


@pytest.mark.parametrize("lacking", ["BP", "FA"])
def test_the_table_of_values_has_every_value_under_its_own_seed_whichever_rule_lacks_one(
    browser: "Browser", lacking: str, tmp_path: Path
) -> None:
    for config in STUDIES["audit"].configs("quick", (0, 1, 2)):
        if config.rule.label in ("BP", "FA") and (config.rule.label, config.seed) != (lacking, 0):
            write_run(tmp_path / "runs", config)
    out = tmp_path / "report.html"
    write_report(runs=tmp_path / "runs", out=out, figures=False, quiet=True)
    opened = open_page(browser, out, ready=".answer .plot svg")
    chart = opened.page.locator(".answer .chart").first
    id = chart.get_attribute("id") or ""
    chart.locator(".values summary").click()
    opened.says(f"#{id} .values", "seed 2")  # the table is filled by the event that follows the click
    head, *body = [row.locator("th, td").all_inner_texts() for row in chart.locator(".values tr").all()]
    assert head == ["line", "seed 0", "seed 1", "seed 2"]
    table = {(line, seed): cell for line, *cells in body for seed, cell in zip(head[1:], cells, strict=True)}
    assert table.pop((f"Pre-LN ResMLP, {lacking}", "seed 0")) == "not measured"
    file = csv.reader(io.StringIO(saved(opened, id, "csv").decode()))
    stored = {(line, f"seed {seed}"): float(value) for _, line, seed, value, _ in list(file)[1:]}
    assert len(stored) == 5
    assert {at: float(cell) for at, cell in table.items()} == pytest.approx(stored, rel=1e-3)
    assert opened.complaints == []
    opened.page.close()
