"""A page for each rule: the plain words of docs/rules/NAME.md, then its figure, definition, options and results.

A rule without such a file has its page all the same, with what is known from its class and its stored runs.
"""

import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from sonde.rules import RULES

DOCS = Path(__file__).parents[1]
FACTS = re.compile(r"<!-- facts of (\w+) -->")
NAV = {"The rules": "rules.md"}  # the line of mkdocs.yml that the pages of rules follow
_TABLE = re.compile(r"^\|.*\n\|(?: ---\S* \|)+\n(?:\|.*\n)+", re.MULTILINE)
_NAME = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


@cache
def _rules_page() -> str:
    """docs/rules.md, which `make findings` writes from the rules' classes, stored runs and measured times."""
    return (DOCS / "rules.md").read_text("utf-8")


def _lines(name: str, heading: str, *beside: str) -> str:
    """The lines of one rule, and of the rules beside it, in the first table below a heading."""
    found = _TABLE.search(_rules_page().partition(heading)[2])
    assert found is not None, heading
    head, rule, *rows = found.group().splitlines()
    wanted = [row for row in rows if row.startswith(tuple(f"| `{one}`" for one in (name, *beside)))]
    return "\n".join([head, rule, *wanted]) if any(row.startswith(f"| `{name}`") for row in wanted) else ""


def _definition(name: str) -> str:
    section = _rules_page().partition(f"\n### `{name}`: ")[2]
    return re.split(r"\n###? ", section.partition("\n")[2])[0].strip()


def _options(name: str) -> str:
    rows = [
        f"| `--set rule.{field.name}=…` | `{field.default}` |"
        for field in dataclasses.fields(RULES[name])  # type: ignore[arg-type]
    ]
    return "\n".join(["| option | default |", "| --- | --- |", *rows]) if rows else "It has no options."


def _facts(name: str) -> str:
    parts = [f"<!-- picture: rule {name} -->", "## Definition", _definition(name)]
    parts += ["## What it needs and costs", _lines(name, "# Learning rules")]
    time = _lines(name, "## How long a step takes")
    parts += ["Time of a step, measured on one thread:", time] if time else []
    parts += ["## Options", _options(name), f"```sh\nsonde train --rule {name} --task parity\n```"]
    beside = {"bp", "frozen"} - {name}
    for title, heading in (
        ("On parity, where chance is ½", "## What they reach on parity"),
        ("On the random hierarchy, where chance is ⅛", "## What they reach on the random hierarchy"),
    ):
        if reached := _lines(name, heading, *beside):
            parts += [f"## {title}", reached]
    parts += ["[All rules in one table](../rules.md) says how these runs were made; one seed each."]
    return "\n\n".join(parts)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages in the navigation, in the order of RULES."""
    pages = [{f"{name}: {kind().label}": f"rules/{name}.md"} for name, kind in RULES.items()]
    for section in config.nav or []:
        for entries in section.values():
            if isinstance(entries, list) and NAV in entries:
                entries[entries.index(NAV)] = {"Learning rules": ["rules.md", *pages]}
    return config


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    for file in [file for file in files if Path(file.src_uri).parts[0] == "rules" and file.name not in RULES]:
        files.remove(file)  # words of a rule that this version does not have
    for name, kind in RULES.items():
        if files.get_file_from_path(f"rules/{name}.md") is None:
            page = f"# {kind().label}\n\n`{name}`\n\n<!-- facts of {name} -->\n"
            files.append(File.generated(config, f"rules/{name}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    if page.file.src_uri == "rules.md":
        return _TABLE.sub(lambda found: _NAME.sub(r"| [`\1`](rules/\1.md) |", found.group()), markdown, count=1)
    return FACTS.sub(lambda found: _facts(found[1]), markdown)
