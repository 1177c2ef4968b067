"""The commands and programs of a page of documentation, taken out of it as a reader would type them."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from sonde.cli import app
from sonde.core.errors import SondeError

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("**/*.md")))
}
_BLOCK = re.compile(r"^```(sh|python|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(sonde [a-z][^`\n]*)`")
_ASSIGNED = re.compile(r"[A-Z_]+=")
_NAMED = re.compile(r'"""([\w-]+\.py): ')


@dataclass(frozen=True)
class Block:
    """A program in Python, or commands of a shell."""

    kind: str  # sh or python
    text: str

    @property
    def file(self) -> str | None:
        """What a program is called that says so in its first line."""
        found = _NAMED.match(self.text) if self.kind == "python" else None
        return found[1] if found else None

    @property
    def script(self) -> bool:
        """A file for a shell, and not lines to type."""
        return self.text.startswith("#!")

    @property
    def commands(self) -> list[list[str]]:
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks(page: Path) -> list[Block]:
    """In the order of the page; of a console only what is typed after `$`."""
    found = []
    for kind, text in _BLOCK.findall(page.read_text()):
        if kind == "console":
            typed = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
            found.append(Block("sh", "\n".join(typed) + "\n"))
        else:
            found.append(Block(kind, text))
    return found


def sonde_lines(page: Path) -> Iterator[str]:
    """Every line of a page that begins with `sonde`: in blocks, in sentences, and inside of other commands."""
    yield from _INLINE.findall(page.read_text())
    for block in blocks(page):
        if block.kind == "sh":
            for words in block.commands:
                plain = bare(words)
                yield from [shlex.join(plain)] if plain[:1] == ["sonde"] else []
                yield from (word for word in plain[1:] if word.startswith("sonde "))


def bare(words: list[str]) -> list[str]:
    """Without variables set in front of the command."""
    while words and _ASSIGNED.match(words[0]):
        words = words[1:]
    return words


def refused(line: str) -> str | None:
    """Let the command line take a line apart as if it were typed, without running it: what it has against it."""
    try:
        _take_apart(shlex.split(line, comments=True)[1:])
    except (typer.Exit, Exception) as complaint:
        extra = isinstance(complaint, SondeError) and "needs a package that is not installed" in str(complaint)
        return None if extra else type(complaint).__name__
    return None


def _take_apart(words: list[str]) -> None:
    group = typer.main.get_command(app)
    if all(word.startswith("-") for word in words):  # `sonde --version`
        unknown = {*words} - {name for option in group.params for name in option.opts}
        assert not unknown, unknown
        return
    context = group.make_context("sonde", words, resilient_parsing=True)
    while True:
        name, command, words = group.resolve_command(context, words)  # type: ignore[attr-defined]
        if not hasattr(command, "resolve_command"):
            command.make_context(name, words, parent=context)
            return
        context, group = (
            command.make_context(name, words[:1], parent=context, resilient_parsing=True),
            command,
        )


def refuse_broken(script: str) -> None:
    """What a shell says of a script that it does not understand."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert not done.stderr, done.stderr
