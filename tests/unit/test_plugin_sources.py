"""A plugin's source is the code that trains: no two plugins share one, and none is of a text that was not imported."""

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
from sonde.cli.diagnose import function_of
from sonde.config import RunConfig, parse
from sonde.core.errors import SondeError
from sonde.core.validated import content_digest
from sonde.engine import run_locally

FILES = Path(__file__).parents[1] / "plugin_files"
ANOTHER = "its function has made another one before.* option of the run and part of its id"

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
def test_the_first_plugin_of_a_factory_does_not_stand_in_for_the_second(
    part: str, make: Any, first: Any, second: Any
) -> None:
    one = make(first)
    taken = plugins.plugin_of(part, one)
    assert plugins.plugin_of(part, one) is taken
    with pytest.raises(SondeError, match=ANOTHER):
        plugins.plugin_of(part, make(second))
    with pytest.raises(SondeError, match=ANOTHER):
        sonde.register(part, taken.name, make(second))
    assert plugins.plugin_of(part, one) is taken


def test_the_plugins_of_a_factory_may_have_names_of_their_own() -> None:
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

    plugins.plugin_of("model", disguised(16))
    with pytest.raises(SondeError, match=ANOTHER):
        plugins.plugin_of("model", disguised(64))


def plain(shape: Any, outputs: int) -> nn.Module:
    return network_of(8)(shape, outputs)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """A module on the path with a rule and networks, for this test alone."""
    name = f"plugins_of_{abs(hash(request.node.name))}"
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


def test_a_module_imported_anew_from_the_same_file_brings_the_same_plugins(module: ModuleType) -> None:
    def configs(module: ModuleType) -> list[RunConfig]:
        inner = [f"{module.__name__}:{name}" for name in ("narrow", "wide")]
        return [tiny_config(rule=module.Mine()), *(tiny_config(model=m) for m in (module.network, *inner))]

    plugins.plugin_of("rule", module.Mine)
    first = [config.id for config in configs(module)]
    assert len(set(first)) == 4
    again = importlib.reload(module)
    plugins.plugin_of("rule", again.Mine)
    assert [config.id for config in configs(again)] == first
    del sys.modules[module.__name__]
    anew = importlib.import_module(module.__name__)
    plugins.plugin_of("rule", anew.Mine)
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
    for hand_over in (lambda: plugins.plugin_of("rule", module.Mine), lambda: parse_rule(f"{module.__name__}:Mine")):
        with pytest.raises(SondeError, match="edited after Mine was imported: import it again"):
            hand_over()


def parse_rule(reference: str) -> RunConfig:
    return parse({"model": "residual_mlp", "rule": reference, "task": "digits"})


def test_an_edited_file_is_taken_in_once_it_is_imported_anew(module: ModuleType) -> None:
    old, first = module.Mine, plugins.plugin_of("rule", module.Mine).source
    edit(module, "for g in", "for g in 2 *")
    assert plugins.plugin_of("rule", old).source == first, "taken in before the edit"
    assert plugins.plugin_of("model", module.network).source.stamp == first.stamp, "of the text that was taken in"
    importlib.reload(module)
    second = plugins.plugin_of("rule", module.Mine).source
    assert second.stamp != first.stamp
    (copy,) = plugins.copies([str(second)]).values()
    assert b"for g in 2 *" in copy
    assert plugins.plugin_of("rule", old).source == first
    assert b"for g in 2 *" not in next(iter(plugins.copies([str(first)]).values()))


def test_code_that_has_run_is_still_that_of_its_file(module: ModuleType) -> None:
    config = tiny_config(model=sonde.plugin("model", module.network, width=8))
    for _ in range(100):
        module.network((4,), 2)
        module.scaled(1.0)
    assert config.model.width == 8
    assert plugins.plugin_of("rule", module.Mine).name == "Mine"


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


RULE_WITH_SIBLING = """
import sonde
from helper_of_{name} import sign

class Mine(sonde.rules.Rule):
    def credits(self, state, signal):
        from later_of_{name} import FACTOR
        return [FACTOR * sign(g) for g in signal.gradients]
"""


def test_a_plugin_imports_modules_beside_its_file_also_in_a_worker(tmp_path: Path) -> None:
    """The digest is that of the named file alone; where the file lies is sent with it."""
    mine = tmp_path / "mine.py"
    mine.write_text(RULE_WITH_SIBLING.format(name="worker"))
    (tmp_path / "helper_of_worker.py").write_text("def sign(g):\n    return g.sign()\n")
    (tmp_path / "later_of_worker.py").write_text("FACTOR = 2\n")
    before = list(sys.path)
    config = tiny_config(rule=f"{mine}:Mine")
    assert config.sources[0].endswith(f"@{content_digest(mine.read_bytes())}")
    assert sys.path == [*before, str(tmp_path)], "what is installed comes first"
    run_locally([config], runs=tmp_path / "runs", jobs=1)
    assert sonde.load(tmp_path / "runs").runs[0].manifest.state == "complete"


def test_two_modules_of_one_name_beside_two_plugins_are_not_mixed_up(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"# {folder}\n" + RULE_WITH_SIBLING.format(name="both"))
        (tmp_path / folder / "helper_of_both.py").write_text("def sign(g):\n    return g.sign()\n")
    tiny_config(rule=f"{tmp_path / 'one' / 'mine.py'}:Mine")
    with pytest.raises(SondeError, match=r"two/mine\.py imports 'helper_of_both', but .*one/helper_of_both\.py has"):
        tiny_config(rule=f"{tmp_path / 'two' / 'mine.py'}:Mine")


def test_check_imports_a_file_as_a_plugin_is_imported(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from helper_of_check import D\n\ndef make():\n    return D\n")
    (tmp_path / "helper_of_check.py").write_text("D = 3\n")
    make = function_of(f"{tmp_path / 'net.py'}:make", "make")
    assert make() == 3
    assert make is plugins.load_plugin("model", f"{tmp_path / 'net.py'}:make").kind.make
    assert plugins.load_plugin("model", f"{tmp_path / 'net.py'}:make").source.stamp == content_digest(
        (tmp_path / "net.py").read_bytes()
    )


def test_the_earlier_name_of_plugin_still_works_and_names_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"sonde\.guest is deprecated: use sonde\.plugin"):
        assert sonde.guest("rule", f"{FILES / 'signs.py'}:Signs", strength=2.0).strength == 2.0
