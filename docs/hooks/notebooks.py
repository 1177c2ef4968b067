"""Notebooks as pages, with the outputs they are stored with; the notebook itself lies beside its page."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SHOWN = ("text/html", "image/png", "text/plain")
"""Of an output's forms the first that it has."""


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def _fenced(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _fenced(_text(output["text"]), "text")
    data = output["data"]
    kind = next(kind for kind in SHOWN if kind in data)
    if kind == "text/html":
        lines = (line.strip() for line in _text(data[kind]).splitlines())
        return f'<div style="overflow-x:auto">{"".join(lines)}</div>'  # one line: Markdown leaves it alone
    if kind == "image/png":
        return f'<img alt="" src="data:image/png;base64,{_text(data[kind]).strip()}">'
    return _fenced(_text(data[kind]), "text")


def _parts(notebook: dict[str, Any], name: str) -> Iterator[str]:
    for number, cell in enumerate(notebook["cells"]):
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            if number == 0:
                yield f"[This page as a notebook]({name}), as it was run."
        elif cell["cell_type"] == "code":
            yield _fenced(source, "python")
            yield from map(_output, cell["outputs"])


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    for path in sorted(Path(config.docs_dir).glob("notebooks/*.ipynb")):
        page = "\n\n".join(_parts(json.loads(path.read_text()), path.name)) + "\n"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
    return files
