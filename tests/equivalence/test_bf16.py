"""Training with matrix products in bfloat16 against float32."""

from dataclasses import replace

import pytest
import torch

from sonde.config import RunConfig
from sonde.models import MODELS, ResidualMLP
from sonde.rules import Backprop, DirectFeedback, FeedbackAlignment, Rule
from sonde.tasks import Digits
from sonde.training.program import DTYPES, Program

CPU = torch.device("cpu")
CONFIG = RunConfig(model=ResidualMLP(d=32, L=2), rule=Backprop(), task=Digits(), epochs=3)


def program(config: RunConfig) -> Program:
    return Program(config, config.task.load(config.seed, None, CPU, DTYPES[config.precision]), CPU)


@pytest.mark.parametrize("rule", [Backprop(), FeedbackAlignment(), DirectFeedback()], ids=lambda r: r.label)
def test_losses_follow_those_of_float32(rule: Rule) -> None:
    exact = program(replace(CONFIG, rule=rule)).train_epoch(1).losses
    rounded = program(replace(CONFIG, rule=rule, precision="bf16")).train_epoch(1).losses
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.03, atol=0)


def test_one_product_is_rounded_to_eight_bits_and_no_further() -> None:
    net = program(replace(CONFIG, precision="bf16")).net
    x = torch.randn(7, 1, 8, 8)
    rounded = net.embed(x)
    linear = net.embed.linear
    exact = x.flatten(1).double() @ linear.weight.double().T + linear.bias.double()
    assert rounded.dtype == torch.float32
    error = (rounded - exact).abs().max() / exact.abs().max()
    assert 1e-5 < error < 2**-7


@pytest.mark.parametrize("name", MODELS)
def test_weights_gradients_and_moments_stay_in_float32(name: str) -> None:
    sizes: dict[str, dict[str, object]] = {
        "vit_mini": {"d": 32, "L": 2, "patch": 2},
        "conv_net": {"channels": (4, 4), "d": 8},
        "res_net": {"d": 4},
    }
    model = MODELS[name](**sizes.get(name, {"d": 32, "L": 2}))
    trained = program(replace(CONFIG, model=model, precision="bf16"))
    assert torch.isfinite(trained.train_epoch(1).losses).all()
    kept = [*trained.net.parameters(), *trained.optimiser.first, *(p.grad for p in trained.net.parameters())]
    assert {tensor.dtype for tensor in kept if tensor is not None} == {torch.float32}


def test_evaluation_and_probes_are_those_of_float32() -> None:
    plain, rounding = program(CONFIG), program(replace(CONFIG, precision="bf16"))
    assert plain.evaluate() == rounding.evaluate()
    exact, rounded = (
        [reading for reading in one.probe(0) if reading.metric != "grad_resolution"] for one in (plain, rounding)
    )
    assert exact == rounded
