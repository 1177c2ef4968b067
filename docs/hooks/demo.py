"""The playground, and what `make demo` left: its report, its figures and what its studies found.

Without a demo the site is whole, too: where a figure or a finding would stand, the page says which command makes it.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from sonde.config import RunConfig, to_tree
from sonde.core.errors import SondeError
from sonde.show.figures import FIGURES
from sonde.show.playground import render_playground
from sonde.store.load import load
from sonde.studies import STUDIES, Study
from sonde.studies.study import Gathered, gather

DEMO = Path(__file__).parents[2] / "demo"
PUBLISHED = Path(__file__).parents[1] / "findings" / "runs"
OF_DEMO = ("residual", "audit")  # what `make demo` trains
_FIGURE = re.compile(r"<!-- figure: (\w+) of (\w+) -->")
_RECIPE = re.compile(r"<!-- recipe of (\w+) -->")
_FINDINGS = re.compile(r"<!-- findings of (\w+)(?: with (.+?))? -->")


def _drawn(name: str, study: str) -> Path:
    return DEMO / "out" / f"{FIGURES[name].paths[study]}.png"


def _gathered(study: Study, runs: Path) -> Gathered:
    seeds = study.seeds["quick"]
    beside = study.beside("quick", seeds)
    return gather(load(runs), study.configs("quick", seeds), "stored runs", beside=beside)


def _sentences(name: str, words: str | None) -> str:
    """What a study found in published runs with the seeds of the quick scale; only sentences with these words."""
    found = STUDIES[name].findings(_gathered(STUDIES[name], PUBLISHED))
    return "\n\n".join(f"> {one.sentence}" for one in found if words is None or words in one.sentence)


def _recipe(name: str) -> str:
    """What the runs of a study have, at both scales, from their configurations."""
    study = STUDIES[name]
    lines = [["", "quick", "full"]]
    columns = []
    for scale in ("quick", "full"):
        configs = [*study.configs(scale, study.seeds[scale]), *study.beside(scale, study.seeds[scale])]
        columns.append(_values([to_tree(config) for config in configs]))
    lines += [[label, *(column[label] for column in columns)] for label in columns[0]]
    lines.insert(1, ["---"] * 3)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _values(trees: list[dict[str, Any]]) -> dict[str, str]:
    def each(part: str, *options: str) -> str:
        names = dict.fromkeys(tree[part]["name"] for tree in trees)
        return "; ".join(
            _named([tree[part] for tree in trees if tree[part]["name"] == name], options) for name in names
        )

    def of(key: str) -> str:
        return ", ".join(str(value) for value in dict.fromkeys(tree[key] for tree in trees))

    return {
        "networks": each("model", "d", "L"),
        "rules": each("rule"),
        "tasks": each("task"),
        "optimiser": each("optimiser", "lr", "weight_decay", "schedule"),
        "epochs": of("epochs"),
        "batch": of("batch_size"),
        "seeds": of("seed"),
        "runs": str(len(trees)),
    }


def _named(parts: list[dict[str, Any]], options: tuple[str, ...]) -> str:
    """Parts of one name, with all values that their options have."""
    values = {name: sorted({part[name] for part in parts if name in part}) for name in options}
    known = "; ".join(f"{name} = {', '.join(map(str, found))}" for name, found in values.items() if found)
    return f"`{parts[0]['name']}`" + (f" ({known})" if known else "")


def _found(name: str, study: Study) -> str:
    command = f"```sh\nsonde run {name}\n```"
    full = f"At full scale: `sonde run {name} --scale full`. [Where the recipe comes from](studies.md#{name})."
    parts = [f"## {name}", study.question[0].upper() + study.question[1:], command, full]
    configs: list[RunConfig] = study.configs("quick", study.seeds["quick"])
    try:
        gathered = _gathered(study, DEMO / "runs")
    except SondeError:
        return "\n\n".join(
            [
                *parts,
                "This site was built without the runs of this study. The command trains them and prints the findings.",
            ]
        )
    if missing := len(configs) - len(gathered.stored.runs):
        parts.append(f"{missing} of {len(configs)} runs are not in the store this site was built from.")
    for finding in study.findings(gathered):
        seeds = ", ".join(map(str, finding.seeds))
        parts.append(f"- {finding.sentence} (n = {len(finding.runs)}; seeds: {seeds})")
    parts += [f"<!-- figure: {figure} of {name} -->" for figure, spec in FIGURES.items() if name in spec.paths][:2]
    return "\n\n".join(parts)


def _findings() -> str:
    begin = (
        "These are the findings of the studies at the quick scale, computed from stored runs when this site was built. "
        "Each states its sample size. The command trains the runs and prints the same sentences."
    )
    return "\n\n".join(["# Findings", begin, *(_found(*item) for item in STUDIES.items())]) + "\n"


def _here(report: bool) -> str:
    shown = (
        "- [A report](try/report.html) of two studies, as `make demo` writes it: one file with interactive charts."
        if report
        else "- A report of two studies is shown here if the site is built with `make docs`."
    )
    playground = (
        "- [The playground](try/playground.html): build and train networks in the page. "
        "[The guide](playground.md) explains what you see."
    )
    return "\n".join(
        [
            "# Try it here",
            "",
            "Each is one file that needs neither a server nor a network connection.",
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
    markdown = _RECIPE.sub(lambda found: _recipe(found[1]), markdown)
    markdown = _FINDINGS.sub(lambda found: _sentences(found[1], found[2]), markdown)
    return _FIGURE.sub(shown, markdown)
