"""A guest's source is the code that trains: no two guests share one, and none is of a text that was not imported."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sonde
from conftest import tiny_config
from sonde import plugins
from sonde.config import RunConfig, parse
from sonde.core.errors import SondeError

FILES = Path(__file__).parents[1] / "guest_files"
ANOTHER = "another one that the same function made.* it becomes an option of the run, and part of its id"

RULE = """
import functools

import sonde


def scaled(gradient):
    return 1.0 * gradient


def logged(function):
    @functools.wraps(function)
    def inner(*given, **named):
        return function(*given, **named)

    return inner


class Mine(sonde.rules.Rule):
    strength: float = 1.0

    @property
    def label(self):
        return "mine"

    def credits(self, state, signal):
        return [scaled(g) for g in signal.gradients]


@logged
def network(shape, outputs, width=16):
    from torch import nn
    return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, width), nn.Linear(width, outputs))


def factory(width):
    def inner(shape, outputs):
        return network(shape, outputs, width)

    return inner


narrow, wide = factory(16), factory(64)
"""


def network_of(width: int) -> Callable[..., nn.Module]:
    def network(shape: Any, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, width), nn.Linear(width, outputs))

    return network


def rule_of(strength: float) -> type[Any]:
    class Scaled(sonde.rules.Rule):
        def credits(self, state: Any, signal: Any) -> list[torch.Tensor]:
            return [strength * g for g in signal.gradients]

    return Scaled


def task_of(samples: int) -> Callable[..., Any]:
    def points() -> Any:
        return np.eye(samples), np.arange(samples) % 2

    return points


def probe_of(metric: str) -> Callable[..., Any]:
    def probe(snapshot: Any) -> Iterator[sonde.Reading]:
        yield sonde.Reading(metric=metric, value=1.0)

    return probe


def default_of(width: int) -> Callable[..., nn.Module]:
    def with_default(shape: Any, outputs: int, width: int = width) -> nn.Module:
        return network_of(width)(shape, outputs)

    return with_default


@pytest.mark.parametrize(
    ("part", "make", "first", "second"),
    [
        ("model", network_of, 16, 64),
        ("model", default_of, 16, 64),
        ("rule", rule_of, 1.0, 2.0),
        ("task", task_of, 8, 16),
        ("probe", probe_of, "one", "other"),
    ],
)
def test_the_first_guest_of_a_factory_does_not_stand_in_for_the_second(
    part: str, make: Any, first: Any, second: Any
) -> None:
    one = make(first)
    taken = plugins.of(part, one)
    assert plugins.of(part, one) is taken
    with pytest.raises(SondeError, match=ANOTHER):
        plugins.of(part, make(second))
    with pytest.raises(SondeError, match=ANOTHER):
        sonde.register(part, taken.name, make(second))
    assert plugins.of(part, one) is taken


def test_the_guests_of_a_factory_may_have_names_of_their_own() -> None:
    one, other = network_of(8), network_of(32)
    for _ in range(2):  # again, as a cell of a notebook is
        sonde.register("model", "narrow_one", one)
        sonde.register("model", "wide_one", other)
        sonde.register("model", "narrow_too", one)
    narrow, wide = (tiny_config(model=name) for name in ("narrow_one", "wide_one"))
    assert narrow.id != wide.id


def test_a_function_that_takes_the_name_of_another_does_not_stand_in_for_it() -> None:
    def disguised(width: int) -> Callable[..., nn.Module]:
        @wraps(plain)
        def inner(shape: Any, outputs: int) -> nn.Module:
            return network_of(width)(shape, outputs)

        return inner

    plugins.of("model", disguised(16))
    with pytest.raises(SondeError, match=ANOTHER):
        plugins.of("model", disguised(64))


def plain(shape: Any, outputs: int) -> nn.Module:
    return network_of(8)(shape, outputs)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """A module on the path with a rule and networks, for this test alone."""
    name = f"guests_of_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(f"# {name}" + RULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    imported = importlib.import_module(name)
    monkeypatch.setitem(sys.modules, name, imported)
    return imported


def edit(module: ModuleType, before: str, after: str) -> None:
    assert module.__file__
    text = Path(module.__file__).read_text()
    assert before in text
    Path(module.__file__).write_text(text.replace(before, after))


def test_a_module_imported_anew_from_the_same_file_brings_the_same_guests(module: ModuleType) -> None:
    def configs(module: ModuleType) -> list[RunConfig]:
        inner = [f"{module.__name__}:{name}" for name in ("narrow", "wide")]
        return [tiny_config(rule=module.Mine()), *(tiny_config(model=m) for m in (module.network, *inner))]

    plugins.of("rule", module.Mine)
    first = [config.id for config in configs(module)]
    assert len(set(first)) == 4
    again = importlib.reload(module)
    plugins.of("rule", again.Mine)
    assert [config.id for config in configs(again)] == first
    del sys.modules[module.__name__]
    anew = importlib.import_module(module.__name__)
    plugins.of("rule", anew.Mine)
    assert [config.id for config in configs(anew)] == first


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("for g in", "for g in 2 *"),  # of a method
        ("1.0 * gradient", "2.0 * gradient"),  # of a function that it calls
        ('return "mine"', 'return "ours"'),
        ("import functools", "import functools\n"),  # the lines
        ("class Mine", "class Other"),
        ("def credits(", "def credits("[:-1]),  # no Python any more
    ],
)
def test_a_file_that_was_edited_after_its_import_is_refused(module: ModuleType, before: str, after: str) -> None:
    edit(module, before, after)
    if before == "class Mine":
        edit(module, "def credits(", "\n    def credits(")
    for hand_over in (lambda: plugins.of("rule", module.Mine), lambda: parse_rule(f"{module.__name__}:Mine")):
        with pytest.raises(SondeError, match="edited after Mine was imported: import it anew, or start Python"):
            hand_over()


def parse_rule(reference: str) -> RunConfig:
    return parse({"model": "residual_mlp", "rule": reference, "task": "digits"})


def test_an_edited_file_is_taken_in_once_it_is_imported_anew(module: ModuleType) -> None:
    old, first = module.Mine, plugins.of("rule", module.Mine).source
    edit(module, "for g in", "for g in 2 *")
    assert plugins.of("rule", old).source == first, "taken in before the edit"
    assert plugins.of("model", module.network).source.stamp == first.stamp, "of the text that was taken in"
    importlib.reload(module)
    second = plugins.of("rule", module.Mine).source
    assert second.stamp != first.stamp
    (copy,) = plugins.copies([str(second)]).values()
    assert b"for g in 2 *" in copy
    assert plugins.of("rule", old).source == first
    assert b"for g in 2 *" not in next(iter(plugins.copies([str(first)]).values()))


def test_code_that_has_run_is_still_that_of_its_file(module: ModuleType) -> None:
    config = tiny_config(model=sonde.guest("model", module.network, width=8))
    for _ in range(100):
        module.network((4,), 2)
        module.scaled(1.0)
    assert config.model.width == 8
    assert plugins.of("rule", module.Mine).name == "Mine"


SCRIPT = """
from pathlib import Path

from torch import nn

import sonde


def network(shape, outputs, width=16):
    return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, width), nn.Linear(width, outputs))


def config():
    return sonde.RunConfig(model=network, rule=sonde.rules.Backprop(), task=sonde.tasks.Digits())


if {edits}:
    Path(__file__).write_text(Path(__file__).read_text().replace("width, outputs)", "width, 2 * outputs)"))
print(config().id)
"""


def test_a_script_may_hand_over_what_it_defines_unless_it_is_edited_meanwhile(tmp_path: Path) -> None:
    for edits in (False, True):
        (tmp_path / "script.py").write_text(SCRIPT.replace("{edits}", str(edits)))
        done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == edits, done.stderr
        assert ("script.py was edited after network was imported" in done.stderr) == edits


@pytest.mark.parametrize("name", ["mine@2.py", "mine:2.py"])
def test_a_file_of_code_whose_name_a_source_cannot_hold_is_to_be_renamed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text((FILES / "signs.py").read_text())
    with pytest.raises(SondeError, match=rf"{name}: rename the file, without '@' and ':'"):
        parse_rule(f"{tmp_path / name}:Signs")


@pytest.mark.parametrize("name", ["data@v2.npz", "data:v2.npz"])
def test_a_file_of_arrays_whose_name_a_source_cannot_hold_is_to_be_renamed(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / name, x=np.eye(20), y=np.arange(20) % 2)
    with pytest.raises(SondeError, match=rf"{name}: rename the file, without '@' and ':'"):
        tiny_config(task=str(tmp_path / name))


def test_the_folder_of_a_file_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "me@lab").mkdir()
    np.savez(tmp_path / "me@lab" / "data.npz", x=np.eye(20), y=np.arange(20) % 2)
    assert tiny_config(task=str(tmp_path / "me@lab" / "data.npz")).task.outputs == 2
