"""What every rule and every probe must do on networks that others wrote."""

import copy
import math

import pytest
import torch
from torch import Tensor

from networks import read
from plain_modules import GUESTS, T, V
from sonde.core.errors import SondeError
from sonde.metrics.probes import PROBES, Context, take
from sonde.rules import RULES, CreditBridge, Rule
from sonde.training.credit_assignment import CreditAssignment
from sonde.training.program import pack, unpack

STEPS = 40
RULES_HERE: dict[str, Rule] = {name: rule() for name, rule in RULES.items()} | {"credit_bridge": CreditBridge(copies=2)}
ONE_SHAPE = ("fa", "credit_bridge")  # refuse LeNet, whose units change the shape of their maps
REAL_INPUTS = ("pepita", "ff")  # refuse tokens: they change the inputs


def fits(guest: str, rule: str) -> bool:
    return not (guest == "lenet" and rule in ONE_SHAPE) and not (guest.startswith("gpt") and rule in REAL_INPUTS)


PAIRS = [(guest, rule) for guest in GUESTS for rule in RULES if fits(guest, rule)]
ALIKE = ("sequential", "vit_cls", "gpt_tuples", "gpt_passes_on")  # a kind of states that another network has too
FIRST_RULES = ("bp", "fa", "dfa", "state_bridge", "credit_bridge", "frozen")
STALLED = [("lenet", "pepita")]  # convolutions under PEPITA do not learn this fast


def task(guest: str) -> tuple[Tensor, Tensor]:
    """Something that can be learned: which quarter of an image is brightest; the word after a word."""
    rng = torch.Generator().manual_seed(7)
    if guest.startswith("gpt"):
        x = torch.randint(V, (32, T), generator=rng)
        return x, (x + 1) % V
    x, y = torch.randn(48, 1, 8, 8, generator=rng), torch.randint(4, (48,), generator=rng)
    for image, label in zip(x, y.tolist(), strict=True):
        image[0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 2
    return x, y


def assignment_of(guest: str, rule: str) -> tuple[CreditAssignment, Tensor, Tensor]:
    x, y = task(guest)
    net = GUESTS[guest].chain().train()
    return CreditAssignment(net, RULES_HERE[rule], sample=x, steps=STEPS), x, y


def sometimes(guest: str, rule: str) -> object:
    """Newer rules on one network of each kind; the rest with `make test-slow`."""
    late = guest in ALIKE and rule not in FIRST_RULES
    return pytest.param(guest, rule, marks=pytest.mark.slow) if late else (guest, rule)


@pytest.mark.parametrize(("guest", "rule"), [sometimes(*pair) for pair in PAIRS])
def test_the_loss_falls_only_frozen_units_stay_and_every_probe_has_a_number_or_a_reason(guest: str, rule: str) -> None:
    assignment, x, y = assignment_of(guest, rule)
    net = assignment.net
    before = copy.deepcopy(net.blocks.state_dict())
    initial = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimiser = torch.optim.Adam(assignment.parameters(), lr=3e-3)
    losses = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        step = assignment.backward(x, y)
        optimiser.step()
        losses.append(step.loss.item())
    assert math.isfinite(losses[-1])
    assert losses[-1] < losses[0] or (guest, rule) in STALLED
    names = {name for name, _ in net.blocks.named_parameters()}
    moved = {name for name in names if not torch.equal(net.blocks.state_dict()[name], before[name])}
    assert moved == (set() if rule == "frozen" else names)
    context = Context(
        credits=assignment.credits,
        initial=initial,
        test=lambda a, b: (x[a:b], y[a:b]),
        test_samples=len(x),
        directions=4,
    )
    found = read(take(net, x, y, assignment.loss, context))
    for (metric, layer), reading in found.items():
        assert reading.defined or reading.reason, (metric, layer)
        assert reading.defined == math.isfinite(reading.value), (metric, layer)
    for layer in range(net.depth + 1):
        for metric in (
            "hidden_norm",
            "grad_norm",
            "credit_norm",
            "rho/bp",
            "credit_cosine/bp",
            "nudge[0.01]/bp",
        ):
            assert found[metric, layer].defined, (metric, layer, found[metric, layer].reason)
        assert found["credit_cosine/bp", layer].value == pytest.approx(1)


@pytest.mark.parametrize(("guest", "rule"), [pair for pair in PAIRS if pair[0] in ("convnet", "vit_mean", "gpt")])
def test_what_a_rule_owns_is_restored_bit_for_bit(guest: str, rule: str) -> None:
    assignment, x, y = assignment_of(guest, rule)
    assignment.backward(x, y)
    other, _, _ = assignment_of(guest, rule)
    other.net.load_state_dict(copy.deepcopy(assignment.net.state_dict()))
    other.load_state_dict(unpack(pack(assignment.state_dict())))
    for one in (assignment, other):
        one.net.zero_grad()
        one.backward(x, y)
    for ours, theirs in zip(assignment.net.parameters(), other.net.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)
    assert pack(assignment.state_dict()) == pack(other.state_dict())


@pytest.mark.parametrize("rule", REAL_INPUTS)
def test_a_rule_that_changes_the_inputs_refuses_tokens(rule: str) -> None:
    x, _ = task("gpt")
    with pytest.raises(SondeError, match=rule):
        CreditAssignment(GUESTS["gpt"].chain(), RULES_HERE[rule], sample=x)


@pytest.mark.parametrize("rule", ONE_SHAPE)
def test_where_a_rule_cannot_carry_credit_it_says_so_before_the_first_step(rule: str) -> None:
    x, _ = task("lenet")
    net = GUESTS["lenet"].chain()
    with pytest.raises(SondeError, match=r"unit 'pool1'"):
        CreditAssignment(net, RULES_HERE[rule], sample=x)


def test_every_probe_is_here() -> None:
    x, y = task("sequential")
    found = read(take(GUESTS["sequential"].chain(), x, y, torch.nn.CrossEntropyLoss()))
    families = {metric.split("[")[0].split("/")[0] for metric, _ in found}
    assert families == {"state" if name == "trace" else name for name in PROBES} | {
        "grad_per_error",
        "grad_resolution",
        "weight_ratio",
    }
