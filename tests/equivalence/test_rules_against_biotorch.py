"""Weight gradients of BioTorch's rules on the same weights and the same backward matrices, in float32.

Sanfiz & Akrout (2021), arXiv:2108.13446; `pip install --no-deps biotorch`.  There the head's matrix is replaced, too;
here it is an ordinary layer in both.
"""

import importlib
import importlib.util
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import sonde
from sonde.rules import (
    BatchMagnitudes,
    DirectFeedback,
    FeedbackAlignment,
    FixedMagnitudes,
    Rule,
    UniformSigns,
)
from sonde.rules.fa import LARGEST_MAGNITUDE, Magnitudes
from sonde.training.credit_assignment import CreditAssignment

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("biotorch") is None,
    reason="BioTorch is not installed: pip install --no-deps biotorch",
)
RULES: dict[str, Rule] = {
    "fa": FeedbackAlignment(level="layer", credit_scale="none"),
    "usf": UniformSigns(credit_scale="none"),
    "frsf": FixedMagnitudes(credit_scale="none"),
    "brsf": BatchMagnitudes(credit_scale="none"),
}


def layer(rule: str | None, kind: str, *sizes: int, **options: Any) -> nn.Module:
    if rule is None:
        return (nn.Linear if kind == "linear" else nn.Conv2d)(*sizes, **options)
    module = importlib.import_module(f"biotorch.layers.{rule}.{kind}")
    made: nn.Module = (module.Linear if kind == "linear" else module.Conv2d)(*sizes, **options)
    return made


def mlp(rule: str | None) -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU()),
        nn.Sequential(layer(rule, "linear", 24, 20), nn.ReLU()),
        nn.Sequential(layer(rule, "linear", 20, 16), nn.ReLU()),
        nn.Linear(16, 4),
    )


def lenet(rule: str | None) -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(layer(rule, "conv", 4, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), layer(rule, "linear", 24, 16), nn.ReLU()),
        nn.Linear(16, 4),
    )


def batch() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    return torch.randn(32, 1, 8, 8, generator=rng), torch.randint(4, (32,), generator=rng)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def backward_matrices(theirs: nn.Module) -> dict[str, nn.Module]:
    """Their layers, by the names of the weights."""
    found = theirs.named_modules()
    return {f"{name}.weight": part for name, part in found if hasattr(part, "weight_backward")}


@pytest.mark.parametrize("make", [mlp, lenet])
@pytest.mark.parametrize("rule", RULES)
def test_rules_of_layers_have_biotorch_s_weight_gradients(
    rule: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    theirs, ours, (x, y) = make(rule), make(None), batch()
    F.cross_entropy(theirs(x), y).backward()
    expected = gradients(theirs)
    ours.load_state_dict({name: theirs.state_dict()[name] for name in ours.state_dict()})
    assignment = CreditAssignment(sonde.chain(ours, sample=x), RULES[rule], sample=x)
    state: Any = assignment.state
    layers: dict[str, Any] = backward_matrices(theirs)
    match rule:
        case "brsf":
            drawn = [part.weight_backward.abs() for part in layers.values()]
            share = LARGEST_MAGNITUDE / 3**0.5
            monkeypatch.setattr(Magnitudes, "__call__", lambda draw, like: drawn.pop(0) * share)
            for scale in state.scale.matrices.values():
                scale.fill_(1)
        case _:
            for name, part in layers.items():
                wanted = part.scaling_factor if rule == "usf" else part.weight_backward
                state.matrices[name].copy_(torch.as_tensor(wanted))
    assignment.backward(x, y)
    found = gradients(ours)
    for name, value in expected.items():
        assert (found[name] - value).norm() < 1e-5 * value.norm(), name


@pytest.mark.filterwarnings("ignore::FutureWarning")  # BioTorch's hooks are of a kind PyTorch means to drop
def test_dfa_has_biotorch_s_weight_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    ours, (x, y) = mlp(None), batch()
    kind: Any = importlib.import_module("biotorch.module.biomodule").BioModule
    theirs = kind(mlp(None), mode="dfa", output_dim=4)
    F.cross_entropy(theirs(x, targets=y, loss_function=F.cross_entropy), y).backward()
    layers = [part for part in theirs.modules() if hasattr(part, "weight_backward")]
    own = [part for part in ours.modules() if isinstance(part, nn.Linear)]
    for mine, part in zip(own, layers, strict=True):
        mine.load_state_dict({"weight": part.weight, "bias": part.bias})
    assignment = CreditAssignment(sonde.chain(ours, sample=x), DirectFeedback(credit_scale="none"), sample=x)
    state: Any = assignment.state
    for b_dC, part in zip(state.matrices, layers[1:], strict=True):  # at the input of every layer but the first
        b_dC.copy_(part.weight_backward.T)
    assignment.backward(x, y)
    for mine, part in zip(own, layers, strict=True):
        assert (mine.weight.grad - part.weight.grad).norm() < 1e-5 * part.weight.grad.norm()
