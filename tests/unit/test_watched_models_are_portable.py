"""A watched model is saved, copied, scripted and exported as the same model without a watch."""

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from watch_programs import plain_mlp, vectors

LOAD = """
import sys
sys.modules["sonde"] = None  # as where it is not installed
import torch
model = torch.load(sys.argv[1], weights_only=False)
hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
print(hooks, model(torch.ones(2, 12)).flatten().tolist())
"""


@pytest.fixture(params=["with an optimiser", "without one"])
def watched(request: pytest.FixtureRequest) -> Iterator[tuple[nn.Module, bytes, Any]]:
    """A model that is watched, in the middle of a watched step, and its pickle from before."""
    torch.manual_seed(0)
    model = plain_mlp()
    model[1].register_forward_hook(doubled)
    alone = pickle.dumps(model)
    optimisers = [torch.optim.SGD(model.parameters(), 0.1)] if request.param == "with an optimiser" else []
    with sonde.watch(model, *optimisers, runs=None) as watch:
        yield model, alone, watch


def doubled(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    """A hook of the user's own, which stays part of the model."""
    return output * 2


def test_a_pickle_is_that_of_the_model_without_a_watch(watched: tuple[nn.Module, bytes, Any]) -> None:
    model, alone, _ = watched
    assert pickle.dumps(model) == alone
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert b"sonde" not in buffer.getvalue()


def test_a_whole_model_is_loaded_where_sonde_is_not_installed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with sonde.watch(model, optimiser, runs=None):
        model(vectors(0)[0]).sum().backward()
        optimiser.step()
        torch.save(model, tmp_path / "model.pt")
    command = [sys.executable, "-c", LOAD, str(tmp_path / "model.pt")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    hooks, _, values = said.partition(" ")
    assert hooks == "0"
    assert [float(x) for x in values.strip("[]\n").split(",")] == model(torch.ones(2, 12)).flatten().tolist()


def test_a_deep_copy_has_the_users_hooks_and_no_others(watched: tuple[nn.Module, bytes, Any]) -> None:
    model, _, watch = watched
    twin = copy.deepcopy(model)
    assert [list(module._forward_hooks.values()) for module in twin] == [[], [doubled], [], [], []]
    assert not any(module._forward_pre_hooks for module in twin)
    assert not any(module._forward_hooks_with_kwargs for module in twin.modules())
    assert torch.equal(twin(vectors(0)[0]), model(vectors(0)[0]))
    assert watch.step == 0


class Mine(nn.Module):
    """Two modules share one; what TorchScript sees must share it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.again = self.first
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(12, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.again(self.first(x)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_watched_model_is_scripted_and_stays_watched() -> None:
    model = Mine()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with sonde.watch(model, optimiser, runs=None) as watch:
        scripted = torch.jit.script(model)
        x = vectors(0)[0]
        assert torch.equal(scripted(x), model(x))
        assert scripted.first.weight.data_ptr() == model.first.weight.data_ptr()
        assert type(model.head[1]) is nn.Linear
        optimiser.zero_grad()
        model(x).sum().backward()
        optimiser.step()
        assert watch.rows.filter(metric="grad_rms", module="head.1")["defined"].all()


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_is_that_of_the_model_without_a_watch(strict: bool) -> None:
    torch.manual_seed(0)
    model, x = plain_mlp(), vectors(0)[0]
    alone = torch.export.export(model, (x,), strict=strict)
    with sonde.watch(model, torch.optim.SGD(model.parameters(), 0.1), runs=None):
        found = torch.export.export(model, (x,), strict=strict)
    operations = [[node.target for node in made.graph.nodes] for made in (alone, found)]
    assert operations[0] == operations[1]
    assert list(model.state_dict()) == list(alone.state_dict)


def test_a_module_that_pickles_itself_needs_no_sonde_either() -> None:
    model = torch.fx.symbolic_trace(plain_mlp())
    with sonde.watch(model, torch.optim.SGD(model.parameters(), 0.1), runs=None):
        stored = pickle.dumps(model)
        x = vectors(0)[0]
        assert b"sonde" not in stored
        assert torch.equal(pickle.loads(stored)(x), model(x))
        assert torch.equal(copy.deepcopy(model)(x), model(x))


def test_after_the_last_watch_pytorch_is_as_it_was() -> None:
    models = [plain_mlp(), plain_mlp()]
    watches = [sonde.watch(model, torch.optim.SGD(model.parameters(), 0.1), runs=None) for model in models]
    watches[0].close()
    assert b"sonde" not in pickle.dumps(models[1])
    watches[1].close()
    assert nn.Module.__reduce_ex__ is object.__reduce_ex__
    assert not hasattr(nn.Module, "__prepare_scriptable__")
