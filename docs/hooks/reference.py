"""Reference pages from what the program itself knows: its commands, its public names, its rows and files."""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import sonde
from sonde.analysis import evidence
from sonde.cli import app
from sonde.metrics import rows
from sonde.plugins import BUILT_IN
from sonde.store import index, schemas

ROOT = Path(__file__).parents[2]
AT_ROOT = ("SUPPORT", "SECURITY", "CHANGELOG")  # pages of the repository that are pages of the site, too
_SOURCE = re.compile(r"\]\((?:\.\./)+src/sonde/([\w/]+\.py)\)")


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _table(headings: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    heads = list(headings)
    body = [heads, ["---"] * len(heads), *(map(_cell, line) for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in body)


# --- commands -----------------------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """Help with the terminal's bold text as code."""
    return re.sub(r"\\(?=\[)", "", re.sub(r"\[/?bold\]", "`", inspect.cleandoc(text)))


def _options(command: Any) -> Iterator[tuple[str, str, str]]:
    for one in command.params:
        if one.name in ("help", "install_completion", "show_completion") or getattr(one, "hidden", False):
            continue
        names = [*one.opts, *one.secondary_opts] if one.param_type_name == "option" else [one.metavar or one.name]
        value = one.metavar if one.param_type_name == "option" and one.metavar else None
        shown = ", ".join(f"`{name}{f' {value}' if value else ''}`" for name in names)
        default = "" if one.default in (None, False, ...) or callable(one.default) else f"`{one.default}`"
        yield shown, "required" if one.required else default, getattr(one, "help", None) or ""


def _command(command: Any, name: str) -> Iterator[str]:
    yield f"## {name}"
    yield _plain(command.help or "")
    if lines := list(_options(command)):
        yield _table(("option", "default", "meaning"), lines)
    for below in getattr(command, "commands", {}).values():
        yield from _command(below, f"{name} {below.name}")


def _commands() -> str:
    whole = typer.main.get_command(app)
    parts = ["# Commands", "The help of every command, as `sonde COMMAND --help` prints it.", *_command(whole, "sonde")]
    return "\n\n".join(parts) + "\n"


# --- Python -------------------------------------------------------------------------------------------------------


def _path(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _python() -> str:
    flat = [getattr(sonde, name) for name in sonde.__all__]
    parts = ["# Python", "The public names are flat: `import sonde`, and `dir(sonde)` tells which there are."]
    parts += ["## sonde", *(f"::: {_path(thing)}" for thing in flat if not inspect.ismodule(thing))]
    for kind in ("model", "rule", "task", "probe"):
        table = BUILT_IN[kind]
        parts.append(f"## sonde.{kind}s")
        parts.append(
            _table(
                ("by name", "in Python"),
                ((f"`{name}`", f"`{_path(thing)}`") for name, thing in table.items()),
            )
        )
        parts += [f"::: {_path(thing)}" for thing in table.values()]
    return "\n\n".join(parts) + "\n"


# --- rows and files -----------------------------------------------------------------------------------------------


def _remarks(module: Any) -> dict[str, str]:
    """What the comments beside a module's entries and fields say."""
    said = re.findall(r'^\s+"?(\w+)"?: [^#\n]*?# (.*)$', inspect.getsource(module), re.MULTILINE)
    return dict(said)


def _columns(schema: pl.Schema, module: Any) -> str:
    remarks = _remarks(module)
    return _table(("column", "type", ""), ((f"`{n}`", f"`{t}`", remarks.get(n, "")) for n, t in schema.items()))


def _keys(kind: Any) -> str:
    remarks = _remarks(schemas)
    lines = ((f"`{f.name}`", f"`{_kind(f.type)}`", remarks.get(f.name, "")) for f in dataclasses.fields(kind))
    return _table(("key", "type", ""), lines)


def _kind(annotation: Any) -> str:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = re.sub(r"typing\.Annotated\[(\w+)(?:[^\[\]]|\[[^\]]*\])*\]", r"\1", text)
    return re.sub(r"\b(?:typing|sonde\.\w+\.\w+)\.", "", text)


def _files() -> str:
    parts = [
        "# Rows and files",
        rows.__doc__ or "",
        "## A row of `metrics.parquet`",
        _columns(rows.SCHEMA, rows),
    ]
    parts += ["Rows of a watched run have one column more, `module`: the module's or parameter's name."]
    parts += ["## A line of a run, as figures and findings see it", _columns(evidence.RUNS_SCHEMA, evidence)]
    parts += ["## `manifest.json`", inspect.getdoc(schemas.Manifest) or "", _keys(schemas.Manifest)]
    parts += ["## `run.json` of a trained run", inspect.getdoc(schemas.Trained) or "", _keys(schemas.Trained)]
    parts += ["Of its `config`, readers rely on:", _keys(schemas.Configuration)]
    parts += ["and of `about`:", _keys(schemas.TrainedAbout)]
    parts += ["## `run.json` of a watched run", inspect.getdoc(schemas.Watched) or "", _keys(schemas.Watched)]
    parts += ["## The index", f"```text\n{inspect.getdoc(index)}\n```"]
    parts += ["Tensors, and what random numbers were drawn from, are on [Recompute a run](../recompute.md)."]
    return "\n\n".join(parts) + "\n"


# --- pages at the root of the repository -------------------------------------------------------------------------


def _at_root(name: str) -> str:
    """Its text, with links as they are from the site."""
    text = (ROOT / f"{name}.md").read_text("utf-8").replace("](docs/", "](")
    for other in AT_ROOT:
        text = text.replace(f"]({other}.md)", f"]({other.lower()}.md)")
    return text


# --- hooks --------------------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    for name, page in (("commands", _commands()), ("python", _python()), ("files", _files())):
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    for name in AT_ROOT:
        files.append(File.generated(config, f"{name.lower()}.md", content=_at_root(name)))
    named = {path for file in Path(config.docs_dir).glob("**/*.md") for path in _SOURCE.findall(file.read_text())}
    for path in sorted(named):
        text = (ROOT / "src" / "sonde" / path).read_text()
        files.append(File.generated(config, f"source/{path}.txt", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """A link to a file of the package leads to a copy of it on the site."""
    up = "../" * page.file.src_uri.count("/")
    return _SOURCE.sub(rf"]({up}source/\1.txt)", markdown)
