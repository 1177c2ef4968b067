"""Steps whose backward pass is written out against autograd's, on the same weights and batches."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sonde.config import RunConfig, parse, to_tree
from sonde.models import PlainMLP, ResidualMLP, ResMLP, StudentNet
from sonde.network import Network
from sonde.network.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR
from sonde.rules import Backprop, CreditBridge, DirectFeedback, FeedbackAlignment, Frozen, StateBridge
from sonde.tasks import Digits, Identity
from sonde.training.backward_by_hand import StepByHand
from sonde.training.program import DTYPES, Program
from sonde.training.step import Step, rule_backward
from sonde.training.train import Stack, stackable

CPU = torch.device("cpu")
BATCH = 29
MODELS = {
    "plain": PlainMLP(d=32, L=3),
    "res": ResMLP(d=32, L=3, weight_scale="1/sqrt(L)"),
    "plain, linear output": PlainMLP(d=32, L=3, output="linear"),
    "res, linear output": ResMLP(d=32, L=3, weight_scale="1/sqrt(L)", output="linear"),
    "pre-norm": ResidualMLP(d=32, L=2, w2_std=0.3),
    "pre-norm, no terminal LN": ResidualMLP(d=32, L=2, w2_std=0.3, out_ln=False),
    "pre-norm, not residual": ResidualMLP(d=32, L=2, w2_std=0.3, residual=False),
}
RULES = {
    "bp": Backprop(),
    "fa": FeedbackAlignment(),
    "fa, unscaled": FeedbackAlignment(credit_scale="none"),
    "dfa": DirectFeedback(),
    "fa, credit of the input": FeedbackAlignment(credit_at="input"),
    "dfa, credit of the input": DirectFeedback(credit_at="input"),
}
CONFIGS = {
    **{
        f"{model}, {rule}": RunConfig(model=MODELS[model], rule=RULES[rule], task=Digits(), batch_size=BATCH)
        for model in MODELS
        for rule in RULES
    },
    **{
        f"{model}, identity": RunConfig(
            model=MODELS[model], rule=Backprop(), task=Identity(d=32, steps_per_epoch=4), batch_size=BATCH
        )
        for model in ("plain", "res", "plain, linear output", "res, linear output")
    },
}
BRIDGES = {
    "state bridge": StateBridge(hidden=32),
    "state bridge, credit of the input": StateBridge(hidden=32, input_norm="none", credit_at="input"),
    "credit bridge": CreditBridge(warmup=0),
    "credit bridge, warming up": CreditBridge(warmup=0.5),
    "credit bridge, perturbed": CreditBridge(warmup=0, perturb=0.1),
}
ALONE = {  # they have no stack
    f"{model}, {rule}": RunConfig(model=MODELS[model], rule=BRIDGES[rule], task=Digits(), batch_size=BATCH)
    for model in ("res", "pre-norm")
    for rule in BRIDGES
}
EVERY = [(config, stacked) for config in CONFIGS.values() for stacked in (False, True)]
EVERY += [(config, False) for config in ALONE.values()]
NAMES = [f"{name}, {words}" for name in CONFIGS for words in ("alone", "stacked")] + list(ALONE)


def trained(config: RunConfig, seed: int = 0) -> Program:
    config = replace(config, seed=seed, epochs=2)
    return Program(config, config.task.load(seed, None, CPU, DTYPES[config.precision]), CPU)


def ready(config: RunConfig, stacked: bool) -> tuple[Program | Stack, list[tuple[Tensor, Tensor]]]:
    """A run, or three in a stack, and three batches for it, one of them smaller."""
    programs = [trained(config, seed) for seed in range(3 if stacked else 1)]
    drawn = [list(program.data.batches(BATCH, program.order))[:2] for program in programs]
    batches = [
        (torch.stack([x for x, _ in each]), torch.stack([y for _, y in each])) if stacked else each[0]
        for each in zip(*drawn, strict=True)
    ]
    few = (slice(None), slice(11)) if stacked else slice(11)
    batches.insert(1, (batches[0][0][few], batches[0][1][few]))
    return Stack(programs) if stacked else programs[0], batches


def gradients(net: Network) -> list[Tensor]:
    found = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    assert len(found) == len(list(net.parameters()))
    net.zero_grad()
    return found


def both(run: Program | Stack, x: Tensor, y: Tensor) -> tuple[tuple[Step, list[Tensor]], ...]:
    """The step and its gradients by hand, and by autograd."""
    assert isinstance(run.backward, StepByHand)
    state = run.state if isinstance(run, Stack) else run.credit.state
    before = copy.deepcopy(state.state_dict())
    by_hand = run.backward(x, y), gradients(run.net)
    state.load_state_dict(before)
    by_autograd = rule_backward(run.net, run.config.rule, state, x, y, run.loss), gradients(run.net)
    return by_hand, by_autograd


@pytest.mark.parametrize(("config", "stacked"), EVERY, ids=NAMES)
def test_gradients_are_those_of_autograd_in_float64(config: RunConfig, stacked: bool) -> None:
    run, batches = ready(replace(config, precision="float64"), stacked)
    for x, y in batches:
        (step, mine), (expected, theirs) = both(run, x, y)
        torch.testing.assert_close(step.loss, expected.loss, rtol=1e-10, atol=0)
        torch.testing.assert_close(step.output_NC, expected.output_NC, rtol=1e-10, atol=1e-12)
        for one, other in zip(mine, theirs, strict=True):
            assert other.abs().max() > 0
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10 * other.abs().max().item())
        assert step.logs.keys() == expected.logs.keys()
        for name, value in step.logs.items():
            torch.testing.assert_close(value, expected.logs[name], rtol=1e-9, atol=0)


@pytest.mark.parametrize(("config", "stacked"), EVERY, ids=NAMES)
def test_an_epoch_has_the_bits_of_autograd(config: RunConfig, stacked: bool) -> None:
    """Weights, losses and accuracy, in float32; so a run that was begun one way may go on the other."""
    one, _ = ready(config, stacked)
    other, _ = ready(config, stacked)
    state = other.state if isinstance(other, Stack) else other.credit.state

    def by_autograd(x: Tensor, y: Tensor) -> Step:
        other.net.zero_grad()
        return rule_backward(other.net, other.config.rule, state, x, y, other.loss)

    other.backward = by_autograd
    ends = []
    for run in (one, other):
        epochs = run.train_epoch(1)
        epochs = epochs if isinstance(epochs, list) else [epochs]
        ends.append(
            (
                [p.tolist() for p in run.net.parameters()],
                [epoch.losses.tolist() for epoch in epochs],
                [[reading.value for reading in epoch.readings] for epoch in epochs],
            )
        )
    assert ends[0] == ends[1]


SHAPES = [(7, 3), (64, 48), (1, 32, 10), (3, 7, 5), (8, 29, 64), (2, 1, 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_losses_have_the_bits_of_autograd(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(shape[-1], shape[:-1], generator=rng)
    for scale in (1.0, 30.0, 1e-20):
        z, target = (torch.randn(shape, generator=rng).to(dtype) * scale for _ in range(2))
        for loss, y in ((MEAN_SQUARED_ERROR, target), (CROSS_ENTROPY, labels)):
            found, expected = (one.mean_and_slope(z, y) for one in (loss, replace(loss, slope=None)))
            assert torch.equal(found[0], expected[0])
            assert torch.equal(found[1], expected[1])


def test_what_a_step_returns_is_not_changed_by_the_next() -> None:
    run, ((x, y), _, (x_after, y_after)) = ready(CONFIGS["pre-norm, bp"], stacked=False)
    step = run.backward(x, y)
    kept = step.loss.clone(), step.output_NC.clone()
    run.backward(x_after, y_after)
    assert torch.equal(step.loss, kept[0])
    assert torch.equal(step.output_NC, kept[1])


class DerivedModel(ResidualMLP):  # type: ignore[misc]
    """It may build other blocks."""


class DerivedRule(DirectFeedback):  # type: ignore[misc]
    """It may send other credit."""


BASE = CONFIGS["pre-norm, bp"]
BY_AUTOGRAD = {
    "another model": replace(BASE, model=StudentNet(d=32, L=2)),
    "a penalty": replace(BASE, rule=Backprop(penalty=0.01)),
    "normalised backprop": replace(BASE, rule=Backprop(credit_scale="rms")),
    "feedback by layers": replace(BASE, rule=FeedbackAlignment(level="layer")),
    "frozen blocks": replace(BASE, rule=Frozen()),
    "a bridge with a penalty": replace(BASE, rule=StateBridge(penalty=0.01)),
    "bfloat16": replace(BASE, precision="bf16"),
    "a model that derives from ours": replace(BASE, model=DerivedModel(d=32, L=2)),
    "a rule that derives from ours": replace(BASE, rule=DerivedRule()),
    "an optimiser of torch's": parse(to_tree(BASE) | {"optimiser": {"name": "torch.optim:RMSprop"}}),
}


@pytest.mark.parametrize("name", BY_AUTOGRAD)
def test_whatever_is_not_written_out_is_left_to_autograd(name: str) -> None:
    run = trained(BY_AUTOGRAD[name])
    assert not isinstance(run.backward, StepByHand)
    assert not stackable(BY_AUTOGRAD[name]) or not ("derives" in name or "torch's" in name)
    x, y = next(iter(run.data.batches(BATCH, run.order)))
    assert torch.isfinite(run.backward(x, y).loss)
