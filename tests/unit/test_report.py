"""`sonde report`: one file with everything the store holds, nothing fetched, and names that stay text."""

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer
from typer.testing import CliRunner

from sonde.cli.report import report_command
from sonde.config import change
from sonde.core.errors import SondeError
from sonde.show.figures.render import draw_pictures
from sonde.show.report import aside, duration, findings_table, lead, overhead
from sonde.studies import STUDIES
from stores import NASTY, NASTY_ID, NASTY_TREE, STUDENT, rename, write_run, write_study

app = typer.Typer()
app.command()(report_command)


class Page(HTMLParser):
    """What a browser would make of the page: its text, its attributes and its script elements."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source, self.text, self.tags = source, "", list[tuple[str, dict[str, str | None]]]()
        self.scripts, self.styles = list[str](), list[str]()
        self.inside = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside == "style":
            self.styles.append(data)
        else:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def written(runs: Path, *words: str) -> Page:
    out = runs.parent / "report.html"
    report_to(runs, out, *words)
    return Page(out.read_text())


def report_to(runs: Path, out: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["--runs", str(runs), "--out", str(out), "--no-figures", *words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """An audit, an unfinished run that was resumed, a diverged one, a run of no study, and nasty names."""
    root = tmp_path_factory.mktemp("report") / "runs"
    ids = write_study(root, "audit")
    rename(root, ids[2], label=NASTY, task_label=NASTY)
    student = STUDIES["snapshots"].configs("quick", [42])[3]
    write_run(root, student, state="unfinished", epoch=7)
    write_run(root, change(student, {"rule": "dfa"}), state="diverged", epoch=3)
    write_run(root, change(student, {"epochs": 5, "rule": "fa"}))
    write_run(root, student, tree=NASTY_TREE)
    return written(root)


def test_every_run_is_in_the_table_with_its_state_sessions_and_overhead(page: Page) -> None:
    rows = [attributes["id"] for attributes in page.all("tr") if "id" in attributes]
    assert len(rows) == 16
    assert "interrupted" in page.text
    assert f"diverged: loss is {NASTY}" in page.text
    assert "resumed after epoch 3" in page.text
    assert "a processor, cpu, threads: 1" in page.text
    assert "Measuring took 25 % of the time training took" in " ".join(page.text.split())


def test_machines_and_paths_are_named_only_on_request(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write_run(root, STUDENT, state="unfinished", epoch=7)
    out = tmp_path / "out.html"
    report_to(root, out)
    text = out.read_text()
    assert "somewhere" not in text
    assert str(tmp_path) not in text
    report_to(root, out, "--with-provenance")
    text = out.read_text()
    assert "somewhere, a processor, cpu" in text
    assert "resumed after epoch 3 on somewhere" in text
    assert str(root) in text


def test_findings_and_audit_say_what_they_stand_on(page: Page) -> None:
    text = " ".join(page.text.split())
    assert f"{STUDIES['audit'].question[1:]}" in text
    assert "n = 2 (seeds 42, 123), 2 runs" in text
    assert "Fires where ‖h‖ grows more than 50× over a block" in text
    targets = {attributes["id"] for _, attributes in page.tags if attributes.get("id")}
    links = {attributes["href"] for attributes in page.all("a")}
    assert {unquote(link[1:]) for link in links if link} <= targets


def test_runs_outside_every_study_are_named_with_the_reason(page: Page) -> None:
    text = " ".join(page.text.split())
    assert "it belongs to no study; the nearest is snapshots (quick scale): epochs = 5 instead of 20" in text
    assert "Not asked: 1 run" in text
    assert re.search(r"[Dd]iverged at epoch \d+ in 1 of \d seeds?", text)


def test_a_study_known_only_through_shared_runs_is_named_not_shown(tmp_path: Path) -> None:
    write_study(tmp_path / "runs", "audit")
    text = " ".join(written(tmp_path / "runs").text.split())
    assert "snapshots (quick scale): 6 of its 24 runs are stored, all of them shared with audit" in text
    assert "What happens to the residual stream" not in text


def test_names_that_look_like_markup_stay_text(page: Page) -> None:
    assert NASTY in page.text
    assert f"{NASTY_ID}: it belongs to no study; the nearest is snapshots (quick scale): " in page.text
    assert len(page.all("script")) == 2  # the data and the page's own
    assert "<script>alert" not in page.source
    assert not page.all("b")
    assert not page.all("img")


def test_only_the_pages_own_script_and_style_may_run_and_nothing_is_fetched(page: Page) -> None:
    policy = next(
        known["content"] for known in page.all("meta") if known.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    for kind, content in (("script", page.scripts[-1]), ("style", page.styles[0])):
        code = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{code}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    sources = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert all(value is not None and value.startswith(("#", "data:")) for value in sources)
    assert not re.search(r"@import|url\(", page.styles[0])


def test_the_page_can_be_read_by_ear_and_by_key(page: Page) -> None:
    assert page.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(deeper - level <= 1 for level, deeper in itertools.pairwise(levels))
    assert page.all("a")[0] == {"class": "skip", "href": "#findings"}
    assert all("scope" in attributes for attributes in page.all("th"))


def test_quick_and_full_runs_of_a_study_have_a_section_each(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    for scale in ("quick", "full"):
        for config in STUDIES["cifar10"].configs(scale, [42])[:2]:
            write_run(runs, config)
    page = written(runs)
    sections = [attributes["id"] for attributes in page.all("article") if "id" in attributes]
    assert sections == ["cifar10-quick", "cifar10-full"]
    assert "cifar10 · quick scale · 2 of 4 runs · seed 42" in page.text


def test_no_section_counts_more_runs_than_the_study_has(tmp_path: Path) -> None:
    study = STUDIES["residual"]
    for config in (*study.configs("quick", [42]), *study.beside("quick", [42])):
        write_run(tmp_path, config)
    text = written(tmp_path).text
    wanted, others = (len(part("quick", [42])) for part in (study.configs, study.beside))
    assert f"{wanted} of {wanted} runs and {others} more" in text
    counts = re.findall(r"([\d,]+) of ([\d,]+) runs", text)
    assert counts
    assert all(int(present) <= int(expected) for present, expected in counts)


def test_a_store_without_a_complete_run_still_has_charts_and_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    write_run(runs, STUDIES["audit"].configs("quick", [42])[0], state="unfinished", epoch=2)
    text = " ".join(written(runs).text.split())
    assert "there are no findings" in text
    assert "Undefined: the store holds no complete run" in text
    assert "it is interrupted" in text


def test_figures_are_inside_the_page_with_caption_and_alternative_text(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_study(runs, "audit", seeds=(42,))
    import sonde
    from sonde.show.report import render_report, report_contents

    found = report_contents(sonde.load(runs), source="runs", title="t")
    (section,) = found.sections
    drawn = draw_pictures(section.evidence, "audit")
    page = Page(render_report(found, {section.anchor: drawn}))
    images = page.all("img")
    assert len(images) == 2 * len(drawn.drawn) >= 8
    for light, dark, picture in zip(images[::2], images[1::2], drawn.drawn, strict=True):
        assert (light["class"], dark["class"]) == ("on-light", "on-dark")
        assert light["src"] != dark["src"]
        for image in (light, dark):
            assert image["src"] is not None
            assert base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))[:4] == b"\x89PNG"
            assert picture.title in (image["alt"] or "")
            assert len(image["src"]) < 200_000
        assert picture.caption in page.text


def test_a_figure_that_cannot_be_drawn_is_named_with_the_reason(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_study(runs, "audit", seeds=(42,))
    import sonde
    from sonde.show.report import report_contents

    (section,) = report_contents(sonde.load(runs), source="runs", title="t").sections
    skipped = draw_pictures(section.evidence, "snapshots").skipped
    assert any("no run" in why for why in skipped.values())


def test_mistakes_are_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SondeError, match=r"holds no runs: `sonde run STUDY"):
        report_to(tmp_path / "empty", tmp_path / "r.html")
    with pytest.raises(SondeError, match=r"is a folder: name a file"):
        report_to(tmp_path / "empty", tmp_path)
    with pytest.raises(SondeError, match="does not exist"):
        report_to(tmp_path / "nowhere", tmp_path / "r.html")
    write_run(tmp_path / "runs", STUDIES["audit"].configs("quick", [42])[0], state="unfinished", epoch=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(SondeError, match="is a file: name a folder"):
        report_to(tmp_path / "runs", tmp_path / "file" / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_the_file_is_written_whole_and_quietly(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "made" / "r.html"
    runs.mkdir()
    write_run(runs, STUDIES["audit"].configs("quick", [42])[0])
    assert "1 runs" not in report_to(runs, out, "-q")
    assert report_to(runs, out, "--title", NASTY).startswith(f"{out}: 1 run, ")
    assert [file.name for file in out.parent.iterdir()] == ["r.html"]
    assert Page(out.read_text()).source.endswith("</html>\n")


def test_small_words() -> None:
    assert lead("DFA: ‖h‖ grows") == ("DFA", "‖h‖ grows")
    assert lead("no colon here") == ("", "no colon here")
    assert aside("0.3 ± 0.02 (-0.004, 1)") == ("0.3 ± 0.02", "(-0.004, 1)")
    assert aside("undefined") == ("undefined", "")
    assert overhead({"train": 8.0, "probes": 2.0}) == "25 %"
    assert overhead({"train": 0.0, "probes": 2.0}) == "undefined"
    assert (duration(None), duration(8), duration(600), duration(8000)) == (
        "–",
        "8 s",
        "10 min",
        "2 h 13 min",
    )
    assert findings_table([]) is None
