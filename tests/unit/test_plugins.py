"""Plugins: named, registered, handed over or installed; and one clear line for each that cannot be taken in."""

import linecache
import sys
from dataclasses import dataclass
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
from sonde.config import RunConfig, parse, to_tree
from sonde.core.errors import SondeError
from sonde.plugins.source import Source
from sonde.training.program import Program, pack, unpack

FILES = Path(__file__).parents[1] / "plugin_files"
SIGNS, FUNNEL = f"{FILES / 'signs.py'}:Signs", f"{FILES / 'funnel.py'}:funnel"
MOONS, SPARSITY = f"{FILES / 'moons.py'}:moons", f"{FILES / 'sparsity.py'}:sparsity"
CPU = torch.device("cpu")


def tree(**parts: Any) -> dict[str, Any]:
    return {"model": "residual_mlp", "rule": "bp", "task": "digits", **parts}


def write(at: Path, text: str) -> Path:
    at.write_text(text)
    return at


@pytest.mark.parametrize(
    "text",
    ["mine.py:Mine@1f2e3d4c5b6a", "lab.rules:Mine@lab-1.2.0-1f2e", "torch.optim:RMSprop", "data.npz@1f"],
)
def test_a_source_survives_being_written(text: str) -> None:
    assert str(Source.parse(text)) == text


def test_the_id_covers_the_bytes_of_the_file_and_its_options_but_not_where_it_lies(tmp_path: Path) -> None:
    text = (FILES / "signs.py").read_text()
    (tmp_path / "elsewhere").mkdir()
    moved = write(tmp_path / "elsewhere" / "signs.py", text)
    changed = write(tmp_path / "signs.py", text.replace("times a strength", "times some strength"))
    first, same, other = (parse(tree(rule=f"{at}:Signs")) for at in (FILES / "signs.py", moved, changed))
    assert first.id == same.id != other.id
    assert first.id.startswith("residual_mlp-Signs-digits-s42-")
    assert parse(tree(rule={"name": SIGNS, "strength": 2})).id not in (first.id, other.id)


def test_a_configuration_with_plugins_survives_json() -> None:
    config = parse(tree(model=FUNNEL, rule=SIGNS, task=MOONS, probes={"names": ["loss", SPARSITY]}))
    again = parse(to_tree(config))
    assert again == config
    assert again.id == config.id
    assert len(config.sources) == 4


def test_a_name_that_was_registered_stands_for_the_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FILES)
    import funnel
    import signs
    import sparsity

    assert sonde.register("rule", "signs_of_mine", signs.Signs) is signs.Signs
    sonde.register("model", "my_funnel", funnel.funnel)
    sonde.register("probe", "my_sparsity", sparsity.sparsity)
    config = parse(tree(model="my_funnel", rule="signs_of_mine", probes={"names": ["my_sparsity"]}))
    assert config.id.startswith("my_funnel-signs_of_mine-digits-s42-")
    assert parse(to_tree(config)) == config
    handed = RunConfig(model=config.model, rule=signs.Signs(), task=config.task, probes=config.probes)
    assert handed == config


def test_an_object_or_a_function_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FILES)
    import funnel
    import moons
    import sparsity

    probes = sonde.Probing(names=("loss", sparsity.sparsity))
    config = tiny_config(model=funnel.funnel, task=moons.moons, probes=probes)
    assert config.model.width == 16
    assert config.task.shape == (2,)
    assert config.sources == tiny_config(model=FUNNEL, task=MOONS, probes=probes).sources
    wider = tiny_config(model=sonde.plugin("model", funnel.funnel, width=8), task=moons.moons)
    assert wider.model.width == 8
    with pytest.raises(SondeError, match=r"unknown key 'model\.widht': did you mean 'width'"):
        sonde.plugin("model", funnel.funnel, widht=8)


def test_a_configuration_is_checked_when_it_is_made() -> None:
    with pytest.raises(SondeError, match="ResidualMLP: d = -3: input should be greater than or equal to 1"):
        sonde.models.ResidualMLP(d=-3)
    with pytest.raises(SondeError, match="epochs = 0: input should be greater than or equal to 1"):
        tiny_config(epochs=0)
    with pytest.raises(SondeError, match="Optimiser: lr = -1"):
        sonde.Optimiser(lr=-1)
    with pytest.raises(SondeError, match=r"rule\.strength = 'much'"):
        parse(tree(rule={"name": SIGNS, "strength": "much"}))


@dataclass
class Unfrozen:
    strength: float = 1.0
    route = reads_top_gradient = credit_scale = penalty = init = update = None

    def credits(self, state: Any, signal: Any) -> list[torch.Tensor]:
        return []


class Built:
    def __init__(self, d: int) -> None:
        self.d = d

    def build(self, signature: Any, rng: Any) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class Named:
    name: str = "x"

    def build(self, signature: Any, rng: Any) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class Bare:
    def credits(self, state: Any, signal: Any) -> list[torch.Tensor]:
        return []


def needs_width(shape: Any, width: int) -> nn.Module:
    return nn.Identity()


@pytest.mark.parametrize(
    ("part", "thing", "message"),
    [
        ("rule", Unfrozen, "Unfrozen is mutable, .*: write @dataclass"),
        ("rule", Bare, r"rule Bare does not define route, .* write class Bare\(sonde\.rules\.Rule\)"),
        ("rule", needs_width, "rule needs_width is a function: it must be a class with `credits`"),
        ("model", Built, "Built has its own constructor"),
        ("model", Named, "no option may be called 'name'"),
        ("model", needs_width, "needs_width: give width a default; it becomes an option"),
        ("model", Bare, "model Bare has no method 'build'"),
        ("probe", Bare, "a probe is a function from a snapshot to readings"),
        ("optimiser", Bare, r"an optimiser is a class like those of torch\.optim"),
        ("optimiser", torch.optim.LBFGS, "LBFGS needs the loss several times per step"),
        ("chapter", Bare, "unknown part 'chapter'"),
    ],
)
def test_what_cannot_be_a_plugin_is_told_why(part: str, thing: Any, message: str) -> None:
    with pytest.raises(SondeError, match=message):
        sonde.register(part, thing.__name__, thing)


@pytest.mark.parametrize("name", ["bp", "my rule", "../x", ""])
def test_a_name_is_plain_and_nobody_elses(name: str) -> None:
    with pytest.raises(SondeError, match=r"a name has letters|Sonde has a rule of that name"):
        sonde.register("rule", name, Bare)


def test_ours_may_be_handed_over_by_name() -> None:
    config = tiny_config(model="res_mlp", rule="dfa", task="identity", optimiser="sgd")
    assert (type(config.model), config.rule) == (sonde.models.ResMLP, sonde.rules.DirectFeedback())
    assert config.optimiser == sonde.Optimiser(name="sgd")


def test_a_module_is_not_a_model_but_a_function_that_makes_it_is() -> None:
    with pytest.raises(SondeError, match="pass a function that makes the Sequential"):
        tiny_config(model=nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (
            "import nothing_of_the_kind\n",
            "Mine",
            r"mine\.py imports 'nothing_of_the_kind' in line 1, which is not",
        ),
        ("x = 1\ny = 1 / 0\n", "Mine", r"mine\.py cannot be imported: ZeroDivisionError: .* in line 2"),
        ("def f(:\n", "Mine", r"mine\.py cannot be imported: SyntaxError: .* in line 1"),
        ("raise SystemExit(3)\n", "Mine", r"mine\.py cannot be imported: SystemExit"),
        ("class Mime:\n    pass\n", "Mine", r"mine\.py has no 'Mine': did you mean 'Mime'\?"),
        ("Mine = 3\n", "Mine", "rule Mine is a int: it must be a class with `credits`"),
    ],
)
def test_a_file_that_cannot_be_taken_in_is_one_line(tmp_path: Path, content: str, name: str, message: str) -> None:
    at = write(tmp_path / "mine.py", content)
    with pytest.raises(SondeError, match=message) as raised:
        parse(tree(rule=f"{at}:{name}"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.py:Mine", r"nowhere\.py: no such file or directory; check the name"),
        ("mine.py", r"name the object in the file: mine\.py:Name"),
        ("no_such_package.rules:Mine", "no module 'no_such_package': install it, or name a file"),
        (
            "dfaa",
            r"unknown rule 'dfaa': did you mean 'dfa' or 'fdfa' or 'fa'\? For your own, write file\.py:Name",
        ),
    ],
)
def test_a_reference_that_leads_nowhere_says_how_one_is_written(reference: str, message: str) -> None:
    with pytest.raises(SondeError, match=message):
        parse(tree(rule=reference))


def test_an_installed_package_brings_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab_of_signs.py").write_text((FILES / "signs.py").read_text())
    about = tmp_path / "lab_of_signs-1.2.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-of-signs\nVersion: 1.2.0\n")
    (about / "top_level.txt").write_text("lab_of_signs\n")
    (about / "RECORD").write_text("lab_of_signs.py,,\n")
    (about / "entry_points.txt").write_text("[sonde.rules]\nlab_signs = lab_of_signs:Signs\n")
    monkeypatch.syspath_prepend(tmp_path)
    from sonde.plugins import source

    source._distributions.cache_clear()
    config = parse(tree(rule="lab_signs"))
    assert config.id.startswith("residual_mlp-lab_signs-digits-s42-")
    (text,) = config.sources
    assert text.startswith("lab_of_signs:Signs@lab-of-signs-1.2.0-")
    assert parse(to_tree(config)) == config
    assert "lab_signs" in plugins.names("rule")
    assert list(plugins.copies([text])) == ["lab_of_signs.py"]
    source._distributions.cache_clear()


def program_of(config: RunConfig) -> Program:
    return Program(config, config.task.load(config.seed, None, CPU, torch.float32), CPU)


def test_dropout_follows_from_the_seed_and_goes_on_after_a_resume() -> None:
    config = parse(tree(model=FUNNEL, task=MOONS, epochs=2))
    torch.manual_seed(1)
    whole = program_of(config)
    whole.train_epoch(1)
    weights, state = whole.weights(), pack(whole.state())
    weights = {name: value.clone() for name, value in weights.items()}
    whole.train_epoch(2)
    torch.manual_seed(2)
    outside = torch.get_rng_state()
    resumed = program_of(config)
    resumed.restore(weights, unpack(state))
    resumed.train_epoch(2)
    assert torch.equal(torch.get_rng_state(), outside), "what is drawn in a run shows outside of it"
    for name, value in whole.weights().items():
        assert torch.equal(value, resumed.weights()[name]), name


def tied(shape: Any, outputs: int, width: int = 8) -> nn.Module:
    """Two layers that share their weights."""
    layer = nn.Sequential(nn.Linear(width, width), nn.Tanh())
    return nn.Sequential(nn.Linear(shape[0], width), layer, layer, nn.Linear(width, outputs))


def test_weights_that_stand_in_two_places_are_stored_and_restored(tmp_path: Path) -> None:
    config = tiny_config(model=tied, epochs=2)
    sonde.train(config, runs=tmp_path / "whole")
    sonde.train(config, runs=tmp_path / "parts", should_stop=lambda: True)
    sonde.train(config, runs=tmp_path / "parts")
    one, other = (tmp_path / at / config.id / "weights.safetensors" for at in ("whole", "parts"))
    assert one.read_bytes() == other.read_bytes()


def too_few(shape: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 4), nn.Linear(4, 3))


def test_a_network_with_other_outputs_than_the_task_is_refused_before_anything_is_stored(
    tmp_path: Path,
) -> None:
    with pytest.raises(SondeError, match=r"turns \(2, 8\) into \(2, 3\), but the task asks for 8 outputs"):
        sonde.train(tiny_config(model=too_few), runs=tmp_path)
    assert not [at for at in tmp_path.iterdir() if not at.name.startswith(".")]


GOOD = {
    "x_train": np.zeros((6, 4), np.float32),
    "y_train": np.array([0, 1, 2, 0, 1, 2]),
    "x_test": np.ones((3, 4), np.float32),
    "y_test": np.array([0, 1, 2]),
}
NAN = np.where(np.arange(24).reshape(6, 4) == 9, np.nan, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": GOOD["y_test"]}, "x_train has 6 samples, but y_train 3: there must be as many"),
        ({"x_train": NAN}, "x_train has NaN or infinite numbers in 1 of 6 samples, first in sample 2"),
        ({"y_test": np.array([0, 1, 7])}, "y_test has the label 7, out of range: y_train has 0 to 2"),
        ({"y_train": GOOD["y_train"] - 1}, "y_train has the label -1, out of range"),
        ({"y_test": None}, r"has no y_test: it needs x_train, y_train, x_test, y_test, or x and y"),
        ({"x_train": np.array([{}] * 6)}, "x_train holds Python objects, which are never unpickled"),
        ({"x_train": np.array(["a"] * 6)}, "x_train holds <U1: save an array of numbers"),
        ({"x_test": np.ones((3, 5))}, "they must be alike"),
        ({"x_train": np.zeros((0, 4)), "y_train": np.zeros(0)}, "x_train is empty"),
        (
            {"y_train": GOOD["y_train"][:, None], "y_test": GOOD["y_test"][:, None]},
            "labels are one whole number",
        ),
        (
            dict.fromkeys(GOOD) | {"image": np.zeros(3)},
            "has no x_train and no x: it needs .* there are: image",
        ),
    ],
)
def test_arrays_that_make_no_task_are_told_why(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    arrays = {name: array for name, array in (GOOD | changes).items() if array is not None}
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(SondeError, match=message) as raised:
        parse(tree(task=str(tmp_path / "data.npz")))
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_npz_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"PK\x03\x04 but nothing more")
    with pytest.raises(SondeError, match=r"is not an \.npz file: write it with numpy\.savez"):
        parse(tree(task=str(tmp_path / "data.npz")))
    with pytest.raises(SondeError, match=r"absent\.npz is not there"):
        parse(tree(task=str(tmp_path / "absent.npz")))


def test_whole_numbers_are_labels_and_broken_ones_are_predicted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3)), rng.integers(4, size=50)
    np.savez(tmp_path / "labels.npz", x=x, y=y)
    np.savez(tmp_path / "targets.npz", x=x, y=x[:, :2])
    labels = parse(tree(task={"name": str(tmp_path / "labels.npz"), "test": 0.3, "classes": 5})).task
    data = labels.load(0, None, CPU, torch.float32)
    assert (labels.outputs, labels.classifies, data.test_samples) == (5, True, 15)
    targets = parse(tree(task=str(tmp_path / "targets.npz"))).task
    assert (targets.outputs, targets.classifies, targets.label) == (2, False, "targets, regression")
    assert not targets.load(0, None, CPU, torch.float32).loss.classifies
    scaled = parse(tree(task={"name": str(tmp_path / "labels.npz"), "standardise": True})).task
    train_x, _ = next(scaled.load(0, None, CPU, torch.float64).batches(40, torch.Generator()))
    assert train_x.mean().abs() < 1e-12
    assert (train_x.std(correction=0) - 1).abs() < 1e-12


def test_the_split_is_the_same_for_every_seed_and_loses_nothing(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2)
    task = parse(tree(task=str(tmp_path / "d.npz"))).task
    first, second = (task.load(seed, None, CPU, torch.float32).test(0, 4)[0] for seed in (1, 2))
    assert torch.equal(first, second)
    train = task.read(0).x_train
    assert sorted([*train[:, 0], *first[:, 0].tolist()]) == list(range(0, 40, 2))


def test_a_plugin_from_a_stored_run_is_asked_for_by_its_file() -> None:
    stored = tree(rule={"name": "Signs", "source": "signs.py:Signs@000000000000"})
    with pytest.raises(SondeError, match=r"signs.py:Signs@000000000000 is not known here: name the file again"):
        parse(stored)


def test_a_function_of_a_notebook_is_known_by_its_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "def made_in_a_cell(shape, outputs):\n    return None\n"
    notebook = ModuleType("notebook_of_a_test")
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    monkeypatch.setitem(linecache.cache, "<cell 1>", (len(cell), None, cell.splitlines(True), "<cell 1>"))
    exec(compile(cell, "<cell 1>", "exec"), notebook.__dict__)
    assert str(plugins.source.source_of_object(notebook.made_in_a_cell)).startswith("made_in_a_cell.py:made_in_a_cell@")
    monkeypatch.delitem(linecache.cache, "<cell 1>")
    with pytest.raises(SondeError, match="made_in_a_cell is not defined in a file"):
        plugins.source.source_of_object(notebook.made_in_a_cell)
