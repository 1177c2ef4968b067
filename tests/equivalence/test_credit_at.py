"""`credit_at`: whether a block learns from the credit of the state it makes or of the one it is given.  In float64."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from conftest import tiny_config
from plain_modules import images
from sonde.config import change, to_tree, younger
from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.models import ConvNet, ResidualMLP, StudentNet
from sonde.network import Signature
from sonde.rules import RULES, CreditBridge, FeedbackAlignment, Rule, Signal
from sonde.rules.rule import LocalRule
from sonde.training.credit_assignment import CreditAssignment

IMAGES = Signature(shape=(1, 8, 8), outputs=4, classifies=True)
LOCAL = [name for name, kind in RULES.items() if name != "bp" and kind().route == "local"]
N = 6


def options(name: str) -> dict[str, Any]:
    return {"warmup": 0.0, "copies": 2} if RULES[name] is CreditBridge else {}


def net_of(kind: str) -> Any:
    models = {"residual": ResidualMLP(d=8, L=3, w2_std=0.3), "plain": StudentNet(d=8, L=3)}
    return models[kind].build(IMAGES, generator(1, "init")).double()


def batch() -> tuple[Tensor, Tensor]:
    x, y = images(N)
    return x.double(), y


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def test_every_rule_that_names_credits_has_the_option_and_no_other_has() -> None:
    assert [name for name, kind in RULES.items() if issubclass(kind, LocalRule)] == LOCAL
    for name, kind in RULES.items():
        assert kind().credit_at == "output", name


@pytest.mark.parametrize("credit_at", ["output", "input"])
@pytest.mark.parametrize("credit_scale", ["none", "rms"])
@pytest.mark.parametrize("kind", ["residual", "plain"])
@pytest.mark.parametrize("name", LOCAL)
def test_a_block_learns_from_the_credit_of_its_output_or_of_its_input(
    name: str, kind: str, credit_scale: str, credit_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin that differentiates ⟨what unit l computes, a⟩/N unit by unit, a of the state above or below it."""
    net, (x, y) = net_of(kind), batch()
    rule: Any = RULES[name](credit_scale=credit_scale, credit_at=credit_at, **options(name))
    assignment = CreditAssignment(net, rule, sample=x, steps=10, seed=3)
    named: list[Tensor] = []
    credits_of = RULES[name].credits

    def seen(self: Rule, state: Any, signal: Signal) -> list[Tensor]:
        found = credits_of(self, state, signal)
        named.extend(a.detach().clone() for a in found)
        return found

    monkeypatch.setattr(RULES[name], "credits", seen)
    assignment.backward(x, y)
    found = gradients(net)

    plain = copy.deepcopy(net)
    plain.zero_grad()
    with torch.no_grad():
        states, _ = plain.states(x)
    F.cross_entropy(plain.readout(states[-1]), y).backward()
    units = [(plain.embed, x, 0)]
    for layer, block in enumerate(plain.blocks):
        units.append((block, states[layer], layer if credit_at == "input" else layer + 1))
    for unit, given, of in units:
        a = named[of]
        if credit_scale == "rms":
            a = a / (a.square().mean().sqrt() + 1e-6)
        (unit(given) * a).sum().div(N).backward()
    expected = gradients(plain)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert (found[key] - value).norm() <= 1e-10 * value.norm() + 1e-14, key


@pytest.mark.parametrize("name", LOCAL)
def test_at_its_default_it_is_in_no_id_and_the_credits_themselves_do_not_depend_on_it(name: str) -> None:
    config = tiny_config(rule=RULES[name]())
    other = change(config, {"rule.credit_at": "input"})
    assert "credit_at" not in to_tree(config)["rule"]
    assert younger(config)["rule.credit_at"] == "output"
    assert to_tree(other)["rule"] == to_tree(config)["rule"] | {"credit_at": "input"}
    assert other.id != config.id
    x, y = batch()
    named = []
    for rule in (config.rule, other.rule):
        signal = signal_of(net_of("residual"), x, y)
        state = CreditAssignment(net_of("residual"), rule, sample=x, seed=3).state
        named.append(rule.credits(state, signal))
    for one, two in zip(*named, strict=True):
        assert torch.equal(one, two)


def signal_of(net: Any, x: Tensor, y: Tensor) -> Signal:
    seen: list[Signal] = []

    class Looking(Rule):
        def credits(self, state: Any, signal: Signal) -> list[Tensor]:
            seen.append(signal)
            return [torch.zeros_like(h) for h in signal.states]

    CreditAssignment(net, Looking(), sample=x).backward(x, y)
    return seen[0]


def test_where_there_is_no_such_credit_it_is_refused_before_the_first_step() -> None:
    x, _ = batch()
    with pytest.raises(SondeError, match=r"rule\.credit_at=input.*leave it at output"):
        CreditAssignment(net_of("residual"), FeedbackAlignment(level="layer", credit_at="input"), sample=x)
    maps = ConvNet(channels=(3, 4), d=8).build(IMAGES, generator(1, "init")).double()
    with pytest.raises(SondeError, match=r"rule\.credit_at=input: block 0.*leave it at output"):
        CreditAssignment(maps, RULES["dfa"](credit_at="input"), sample=x)  # type: ignore[call-arg]
