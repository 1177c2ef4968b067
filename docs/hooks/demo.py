"""The playground, and what `make demo` left: its report, its figures and what its studies found.

Without a demo the site is whole, too: where a figure or a finding would stand, the page says which command makes it.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from sonde.core.errors import SondeError
from sonde.show.figures import FIGURES
from sonde.show.playground import render_playground
from sonde.store.load import load
from sonde.studies import STUDIES, Study
from sonde.studies.study import gather

DEMO = Path(__file__).parents[2] / "demo"
OF_DEMO = ("residual", "audit")  # what `make demo` trains
_FIGURE = re.compile(r"<!-- figure: (\w+) of (\w+) -->")


def _drawn(name: str, study: str) -> Path:
    return DEMO / "out" / f"{FIGURES[name].paths[study]}.png"


def _found(name: str, study: Study) -> str:
    command = f"```sh\nsonde run {name}\n```"
    full = f"At full scale: `sonde run {name} --scale full`."
    parts = [f"## {name}", study.question[0].upper() + study.question[1:], command, full]
    try:
        configs = study.configs("quick", study.seeds["quick"])
        beside = study.beside("quick", study.seeds["quick"])
        gathered = gather(load(DEMO / "runs"), configs, "the demo", beside=beside)
    except SondeError:
        return "\n\n".join([*parts, "This site was built without its runs: the command says what it finds."])
    if missing := len(configs) - len(gathered.stored.runs):
        parts.append(f"{missing} of {len(configs)} runs are not in the store this site was built from.")
    for finding in study.findings(gathered):
        seeds = ", ".join(map(str, finding.seeds))
        parts.append(f"- {finding.sentence} (n = {len(finding.runs)}; seeds: {seeds})")
    parts += [f"<!-- figure: {figure} of {name} -->" for figure, spec in FIGURES.items() if name in spec.paths][:2]
    return "\n\n".join(parts)


def _findings() -> str:
    begin = (
        "What the studies find at the quick scale, computed from stored runs as this site was built. Each has its "
        "n; the command trains the runs and prints the same sentences."
    )
    return "\n\n".join(["# Findings", begin, *(_found(*item) for item in STUDIES.items())]) + "\n"


def _here(report: bool) -> str:
    shown = (
        "- [A report](try/report.html): what `make demo` wrote of two studies, one file with charts to play with."
        if report
        else "- A report of two studies is here where the site is built by `make docs`; `make demo` writes the same."
    )
    playground = (
        "- [The playground](try/playground.html): networks are built and trained in the page. "
        "[Its guide](playground.md) says what there is to see."
    )
    return "\n".join(
        [
            "# Try it here",
            "",
            "Each is one file that needs no server and no network.",
            "",
            playground,
            shown,
            "",
        ]
    )


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    report = DEMO / "report.html"
    files.append(File.generated(config, "try/playground.html", content=render_playground()))
    if report.exists():
        files.append(File.generated(config, "try/report.html", content=report.read_bytes()))
    for study in OF_DEMO:
        for name, spec in FIGURES.items():
            if study in spec.paths and (picture := _drawn(name, study)).exists():
                files.append(File.generated(config, f"figures/{study}/{name}.png", content=picture.read_bytes()))
    files.append(File.generated(config, "demo.md", content=_here(report.exists())))
    files.append(File.generated(config, "findings.md", content=_findings()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    up = "../" * page.file.src_uri.count("/")

    def shown(found: re.Match[str]) -> str:
        name, study = found.groups()
        picture = _drawn(name, study)
        if not picture.exists():
            return f"*{FIGURES[name].title}: drawn by `sonde run {study}`.*"
        caption = picture.with_suffix(".txt").read_text().strip()
        return f"![{FIGURES[name].title}]({up}figures/{study}/{name}.png)\n\n*{caption}*"

    if page.file.src_uri == "playground.md":
        markdown = markdown.replace("\n\n", "\n\n[Open the playground](try/playground.html)\n\n", 1)
    return _FIGURE.sub(shown, markdown)
