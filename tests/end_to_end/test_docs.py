"""Every command and program of the documentation runs, in the order of its page, in an empty folder.

What does not run here has its line in `ELSEWHERE`, with the reason; its options are held against the command line all
the same.
"""

import fnmatch
import importlib.util
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from documented import DOCS, PAGES, ROOT, Block, bare, blocks, refuse_broken, refused, sonde_lines
from sonde.observe.watch import Watch
from tutorial_numbers import CHECKS

Command = Callable[..., CompletedProcess[str]]
RUNNING = [name for name, page in PAGES.items() if blocks(page) and not name.startswith("docs/findings/")]

ELSEWHERE = {
    "make *": "the targets are checked to be there",
    "pip *": "nothing is installed in a test; extras are checked to be there",
    "ray *": "starts a cluster: tests/cluster does",
    "export *": "a variable for what follows",
    "ssh *": "needs another machine",
    "sonde live*": "serves until it is stopped: tests/browser opens it",
    "sonde run * --engine ray*": "needs a Ray cluster: tests/cluster has one",
    "sonde run * s3://*": "needs a bucket: tests/cluster has one",
    "sonde report * s3://*": "needs a bucket: tests/cluster has one",
    "sonde * --scale full*": "hours: docs/findings has what they found",
    "sonde export --layout tensorboard*": "needs tensorboard: tests/unit/test_export_layouts.py",
    "from sonde.observe.*": "needs Lightning or transformers: tests/unit/test_integrations.py",
    "accelerator = *": "needs Accelerate",
    "sonde --install-completion*": "changes the shell of the user",
    "sonde rm --interrupted*": "the page has no interrupted run",
}
"""What never runs here, by how its first line looks, and why."""

LONG = {
    "sonde train --seeds 1,2,3 --set model.d=32,64,128*",
    "sonde run residual --seeds 42,123,456*",
    "sonde train --model vit_mini*",
    "sonde figures residual --variant raw*",
    "sonde export --out export*",  # of studies at their own size
    "sonde figures --from export*",
    "sonde run audit --set rule+=*",  # without the plugin it runs
}
"""Minutes, and so only in the slow test."""

FEWER = {
    "sonde run residual*": ["--set", "epochs=2", "--set", "task.steps_per_epoch=5", "--no-figures"],
    "sonde run audit*": ["--seeds", "42", "--set", "epochs=1", "--no-figures"],
    "sonde run rules --seeds 42 --only*": ["--set", "epochs=1", "--only", "rule=dfa", "--no-figures"],
    "sonde scaling * --over width=32,64,128,256*": ["--seeds", "2"],
    "sonde scaling * --lr *": ["--lr", "2^-8..2^-6"],
    "sonde train --model network.py*": ["--epochs", "1", "--seeds", "1"],
    "sonde train --task data.npz*": ["--epochs", "1"],
    "sonde train --set probes*": ["--epochs", "1"],
    "sonde train --rule mine.py*": ["--epochs", "1"],
    "sonde train --rule fitted.py*": ["--epochs", "1"],
    "sonde train --set rule=bp,dfa --task digits*": ["--epochs", "1"],
}
"""The same with fewer steps; the slow test runs it as it stands."""

TRAINED = """
import sonde
for d in (32, 64):
    for rule in (sonde.rules.Backprop(), sonde.rules.DirectFeedback()):
        sonde.train(sonde.RunConfig(
            model=sonde.models.ResidualMLP(d=d, L=2), rule=rule, task=sonde.tasks.Parity(samples=64, test_samples=32),
            epochs=1), runs="runs", progress=False)
"""
LOOP = """
import torch
import sonde
torch.manual_seed(0)
model, criterion = torch.nn.Linear(8, 3), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
loader = [(torch.randn(16, 8), torch.randint(3, (16,))) for _ in range(8)]
with sonde.watch(model, optimizer, loss=criterion, runs="runs", name="first look"):
    criterion(model(loader[0][0]), loader[0][1]).backward()
"""
FILES = {
    "net.py": """import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(64, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)), *batch()
def model():
    return make()[0]
def batch():
    return torch.randn(16, 64), torch.randint(3, (16,))
""",
    "data.py": """from net import batch
""",
    "mine.py": """import sonde
class Mine(sonde.rules.Rule):
    label = "mine"
    def credits(self, state, signal):
        return [g.sign() for g in signal.gradients]
""",
}
"""What a page takes for granted that its reader has."""

DATA = """
import numpy as np
np.savez("data.npz", x=np.random.randn(100, 2), y=np.arange(100) % 2)
"""
BEFORE = {
    "README.md": LOOP,
    "docs/commands.md": LOOP + DATA,
    "docs/diagnose.md": LOOP,
    "docs/own.md": DATA,
    "docs/python.md": TRAINED,
    "docs/removing.md": TRAINED,
    "docs/recompute.md": f"{TRAINED}\nseed, name = 1, 'init'\nRUN = sonde.load('runs').runs[0].id",
}
"""What went before a page, where it does not begin with nothing."""


def of(table: dict[str, list[str]] | dict[str, str] | set[str], line: str) -> str | None:
    """The pattern of a table that a line fits."""
    return next((pattern for pattern in table if fnmatch.fnmatch(line, pattern)), None)


def run_page(page: Path, name: str, folder: Path, sonde: Command, *, whole: bool) -> None:
    found = blocks(page)
    known: dict[str, object] = {"__name__": "page"}
    for block in found:
        if block.file:
            (folder / block.file).write_text(block.text)
    with chdir(folder):
        for file, text in FILES.items():
            Path(file).write_text(text) if not Path(file).exists() else None
        exec(compile(BEFORE.get(name, ""), "before", "exec"), known)
        for block in found:
            run_block(block, name, sonde, known, whole=whole)
        if isinstance(left := known.get("watch"), Watch):  # as the end of the program would
            left.close()
        if name in CHECKS:
            CHECKS[name](page.read_text("utf-8"))


def run_block(block: Block, name: str, sonde: Command, known: dict[str, object], *, whole: bool) -> None:
    if block.kind == "python":
        code = compile(block.text, name, "exec")
        if block.file is None and of(ELSEWHERE, block.text.splitlines()[0]) is None:
            exec(code, known)
    elif not block.script:
        for command, *rest in map(bare, block.commands):
            words = [str(known.get("RUN")) if word == "RUN" else word for word in rest]
            line = " ".join([command, *words])
            if of(ELSEWHERE, line) or (not whole and of(LONG, line)):
                continue
            if command == "python":
                runpy.run_path(words[0], run_name="__main__")
            else:
                assert command == "sonde", f"{name}: {command} has no line in ELSEWHERE"
                fewer = of(FEWER, line)
                sonde(*words, *(FEWER[fewer] if fewer and not whole else []))


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program of the page may import another, as one that was started in the folder may."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.usefixtures("imports", "coarse")
def test_what_a_page_says_to_run_runs(name: str, tmp_path: Path, sonde: Command) -> None:
    run_page(PAGES[name], name, tmp_path, sonde, whole=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.usefixtures("imports")
def test_what_a_page_says_to_run_runs_as_it_stands(name: str, tmp_path: Path, sonde: Command) -> None:
    run_page(PAGES[name], name, tmp_path, sonde, whole=True)


@pytest.mark.parametrize("name", PAGES)
def test_the_command_line_knows_every_command_and_option_of_a_page(name: str) -> None:
    typed = {shlex.join(bare(words)) for block in blocks(PAGES[name]) if block.kind == "sh" for words in block.commands}
    for line in sonde_lines(PAGES[name]):
        complaint = refused(line)
        mentioned = complaint == "MissingParameter" and line not in typed  # in a sentence, by its name alone
        assert complaint is None or mentioned, f"{name}: {line}: {complaint}"


@pytest.mark.parametrize("line", ["sonde run audit --nope", "sonde nope", "sonde data nope"])
def test_a_command_or_option_that_does_not_exist_is_noticed(line: str) -> None:
    assert refused(line) is not None


@pytest.mark.parametrize("name", PAGES)
def test_targets_extras_and_scripts_of_a_page_exist(name: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for block in blocks(PAGES[name]):
        if block.script:
            refuse_broken(block.text)
        for words in block.commands if block.kind == "sh" and not block.script else []:
            if words[0] == "make":
                assert words[1] in targets, name
            asked = [extra for word in words for extra in re.findall(r"(?:sonde|\.)\[([\w,-]+)\]", word)]
            assert {one for extra in asked for one in extra.split(",")} <= extras.keys(), (name, words)


def test_the_callbacks_of_the_page_are_where_it_imports_them_from() -> None:
    for module in re.findall(r"from (sonde\.integrations\.\w+) import", (DOCS / "watch.md").read_text()):
        assert importlib.util.find_spec(module) is not None


def test_every_tutorial_runs_something() -> None:
    assert {path.relative_to(ROOT).as_posix() for path in DOCS.glob("tutorials/*.md")} <= {*RUNNING}


def test_every_reason_not_to_run_a_line_is_needed() -> None:
    lines = [
        line
        for page in PAGES.values()
        for block in blocks(page)
        for line in (
            [block.text.splitlines()[0]]
            if block.kind == "python"
            else [" ".join(bare(words)) for words in block.commands]
        )
    ]
    for table in (ELSEWHERE, LONG, FEWER):
        for pattern in table:
            assert fnmatch.filter(lines, pattern), f"{pattern} fits no line of any page"
